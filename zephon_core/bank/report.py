"""The page that a person looks at after a build: report.html, self-contained."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.atomic import write_bytes
from zephon_core.bank.manifest import empty_fields
from zephon_core.html import Bar, bars, columns, line, page, section, stacked, table, tiles
from zephon_core.progress import format_amount

__all__ = ["REPORT_NAME", "length_bins", "render_report"]

REPORT_NAME = "report.html"
_MOST_COLUMNS = 64
_MOST_BAD_ROWS = 20
_MOST_SAMPLES = 24


def render_report(manifest: Mapping[str, Any], directory: Path) -> None:
    """Write report.html for the bank in `directory`, from its manifest and the length table that lies there."""
    lengths = np.load(directory / "lengths.npy", mmap_mode="r")
    body = [
        _figures(manifest),
        _lengths(manifest, lengths),
        _sources(manifest),
        _time(manifest),
        _bytes(manifest),
        _bad_rows(manifest, directory),
        _receipts(manifest),
        _settings(manifest),
    ]
    complete = bool(manifest["complete"])
    write_bytes(
        directory / REPORT_NAME,
        page(
            manifest["name"],
            [part for part in body if part],
            badge="complete" if complete else f"{manifest['encoded_rows']:,} of {manifest['text_count']:,} rows",
            good=complete,
            subtitle=f"Feature bank <code>{html.escape(manifest['fingerprints']['bank'])}</code>, encoded by "
            f"<code>{html.escape(manifest['model_path'])}</code>",
        ).encode(),
    )


def _figures(manifest: Mapping[str, Any]) -> str:
    scan, tokens = manifest["statistics"]["scan"], manifest["statistics"]["tokens"]
    values = [
        (f"{manifest['text_count']:,}", "distinct texts"),
        (f"{scan['texts']:,}", f"texts in all: {_ratio(scan['texts'], manifest['text_count'])} for each distinct one"),
        (f"{tokens['tokens']:,}", "tokens"),
        (f"{_share(tokens['truncated'], manifest['text_count']):.1%}", f"texts cut off at {manifest['max_key_tokens']} tokens"),
        (f"{manifest['hidden_size']:,}", f"features a text, {manifest['dtype'].removesuffix('_memmap')}"),
        (format_amount(manifest["files"][manifest["bank"]]["bytes"], "B"), "matrix"),
    ]
    if rate := _last_run(manifest).get("tokens_per_second"):
        values.append((f"{rate:,.0f}", f"tokens a second{' in the last run' if manifest['seconds']['encode'] is None else ''}"))
    if None not in manifest["seconds"].values():
        values.append((f"{sum(manifest['seconds'].values()):,.0f} s", "from the first row to the last feature"))
    return tiles(values)


def _last_run(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how the run went that encoded last; empty where that isn't known."""
    last_run: Mapping[str, Any] = manifest["statistics"]["encode"].get("last_run", {})
    return last_run


def _ratio(total: int, distinct: int) -> str:
    return f"{total / distinct:.1f}" if distinct else "none"


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def length_bins(lengths: npt.NDArray[np.int32], longest: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Bin token lengths 1..longest into at most 64 equal bins; returns the bins' first lengths and the counts, int64 each."""
    width = max(1, -(-longest // _MOST_COLUMNS))
    counts = np.bincount((np.asarray(lengths, np.int64) - 1) // width, minlength=-(-longest // width))
    return np.arange(len(counts), dtype=np.int64) * width + 1, counts.astype(np.int64)


def _lengths(manifest: Mapping[str, Any], lengths: npt.NDArray[np.int32]) -> str:
    if not len(lengths):
        return ""
    longest = int(lengths.max())
    firsts, counts = length_bins(lengths, longest)
    width = int(firsts[1] - firsts[0]) if len(firsts) > 1 else 1
    cut = int(manifest["max_key_tokens"])
    chart = columns(
        [
            Bar(
                str(first),
                float(count),
                f"{first} to {first + width - 1} tokens: {count:,} texts" if width > 1 else f"{first} tokens: {count:,} texts",
                accent=first <= cut < first + width and longest == cut,
            )
            for first, count in zip(firsts.tolist(), counts.tolist(), strict=True)
        ],
        describe="histogram of token lengths",
    )
    truncated = manifest["statistics"]["tokens"]["truncated"]
    quartiles = np.percentile(lengths, [25, 50, 75])
    words = f"Half of the texts have {quartiles[0]:.0f} to {quartiles[2]:.0f} tokens, the median {quartiles[1]:.0f}, "
    words += f"the longest {longest}. "
    words += f"{truncated:,} longer texts were cut off at {cut}." if truncated else "No text was cut off."
    return section("Length of the texts", words, chart)


def _sources(manifest: Mapping[str, Any]) -> str:
    rows = [
        [
            source["name"] or Path(source["url"]).name,
            format_amount(source["bytes"], "B"),
            source.get("rows", 0),
            source.get("bad_rows", 0),
            source["sha256"][:16],
        ]
        for source in manifest["sources"]
    ]
    kinds = [[kind, count] for kind, count in manifest["kinds"].items()]
    scan = manifest["statistics"]["scan"]
    fields = [[path, count] for path, count in scan.get("fields", {}).items()]
    words = "What was read, in order. A text counts for the kind under which it appeared first."
    if empty := empty_fields(scan):
        words += f" No row of any source holds a text at {', '.join(empty)}: check the path."
    return section(
        "Sources",
        words,
        table(["source", "size", "rows", "bad rows", "SHA-256"], rows),
        table(["field path", "texts"], fields),
        table(["kind", "distinct texts"], kinds),
    )


def _time(manifest: Mapping[str, Any]) -> str:
    seconds = {name: float(value) for name, value in manifest["seconds"].items() if value}
    parts = [Bar(name, value, f"{value:,.1f} s") for name, value in seconds.items()]
    several = [name for name, value in manifest["seconds"].items() if value is None]
    last_run = _last_run(manifest)
    words = "Seconds a step took when it was made, and the encoder's speed while it ran."
    if several:
        words += f" Not known is the time of what took several runs, or isn't done yet: {', '.join(several)}."
    if last_run and manifest["seconds"]["encode"] is None:
        words += f" The speed is that of the last run, which encoded {last_run['rows']:,} of {manifest['text_count']:,} rows."
    chart = line(
        _thinned(last_run.get("throughput", [])),
        x_label="seconds",
        y_label="tokens a second",
        describe="encoding throughput over time",
    )
    return section(
        "Where the time went",
        words,
        stacked(parts, describe="share of each step in the time"),
        chart,
    )


def _thinned(samples: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Average neighbouring samples of equal spacing until few enough are left for a line that can be read."""
    width = -(-len(samples) // _MOST_SAMPLES) or 1
    groups = [samples[first : first + width] for first in range(0, len(samples), width)]
    return [(float(group[0][0]), sum(rate for _, rate in group) / len(group)) for group in groups]


def _bytes(manifest: Mapping[str, Any]) -> str:
    files = sorted(manifest["files"].items(), key=lambda item: -item[1]["bytes"])
    values = [Bar(name, float(file["bytes"]), format_amount(file["bytes"], "B")) for name, file in files]
    total = format_amount(sum(file["bytes"] for _, file in files), "B")
    return section("Where the bytes went", f"{total} in {len(files)} files.", bars(values, describe="size of each file"))


def _bad_rows(manifest: Mapping[str, Any], directory: Path) -> str:
    path = directory / "bad_rows.jsonl"
    reasons = manifest["statistics"]["scan"].get("bad_rows", {})
    if not path.exists():
        return section("Quarantined rows", "None: every row was read.")
    names = [source["name"] or Path(source["url"]).name for source in manifest["sources"]]
    examples = []
    with path.open("rb") as handle:
        for _, raw in zip(range(_MOST_BAD_ROWS), handle, strict=False):
            row = json.loads(raw)
            examples.append([names[row["source"]], row["row"], row["reason"], str(row.get("raw", "(bytes)"))[:120]])
    return section(
        "Quarantined rows",
        f"{sum(reasons.values()):,} rows were set aside in bad_rows.jsonl; the first {len(examples)} are shown.",
        table(["reason", "rows"], [[reason, count] for reason, count in reasons.items()]),
        table(["source", "row", "reason", "beginning"], examples),
    )


def _receipts(manifest: Mapping[str, Any]) -> str:
    receipt = manifest["statistics"]["encode"].get("receipt")
    if not receipt or not receipt["probe"]["rows"]:
        return ""
    names = {"float32": "stored features and plain float32", "batch_shapes": "a row alone and among others"}
    rows = [
        [name, figures["lowest_cosine"], figures["mean_cosine"], f"{figures['largest_deviation']:.2e}"]
        if "skipped" not in figures
        else [name, figures["skipped"], "", ""]
        for name, figures in ((names[key], receipt[key]) for key in names if key in receipt)
    ]
    return section(
        "Receipts",
        f"{receipt['probe']['rows']} rows were computed again in other ways. Equal vectors have a cosine of 1 and a deviation (the "
        "largest difference of a feature) of 0: how far these are from that is what to expect of another machine or batch.",
        table(["compared", "lowest cosine", "mean cosine", "largest deviation"], rows),
    )


def _settings(manifest: Mapping[str, Any]) -> str:
    encode = manifest["spec"]["encode"]
    settings = {**encode["model"], **{name: value for name, value in encode.items() if name != "model"}}
    rows = [[name, str(value) or "none"] for name, value in settings.items()]
    rows += [["tokenizer SHA-256", manifest["tokenizer"]["sha256"]], ["model SHA-256", manifest["model"]["sha256"]]]
    versions = [[name, version] for name, version in manifest["versions"].items()]
    return section(
        "Settings and versions",
        "What decided the features.",
        table(["setting", "value"], rows),
        table(["package", "version"], versions),
    )
