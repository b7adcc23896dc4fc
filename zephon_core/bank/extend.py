"""Extend a bank: old rows stay where they are, and new sources add only the texts that it lacks.

The new sources are scanned as any are; what the bank has already is taken out of that scan (`drop_known`), and what is left is
tokenized and encoded by itself. Putting that behind what the bank has (`join_scans` and so on) is array work, some megabytes at a
time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_core.atomic import write_json
from zephon_core.bank.scan.distinct import Dropped
from zephon_core.bank.scan.drop import drop_texts
from zephon_core.npy import NpyWriter

__all__ = ["copy_files", "drop_known", "join_features", "join_scans", "join_statistics", "join_tokens"]

_CHUNK = 1 << 18
_COPY_BYTES = 16 << 20
_SCRATCH = "known.tmp"

Array = npt.NDArray[Any]


def drop_known(scan: Path, statistics: Mapping[str, Any], base: Path, directory: Path) -> dict[str, Any]:
    """Copy a finished scan without the texts that the bank in `base` holds; return the statistics of what is left.

    scan: folder of a scan artifact, and its statistics. directory: is filled; leftovers of a killed run are replaced.
    """
    scratch = directory / _SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for name in ("texts.jsonl", "text_offsets.npy", "kinds.npy"):
        (directory / name).unlink(missing_ok=True)
        shutil.copyfile(scan / name, directory / name)
    if (scan / "bad_rows.jsonl").exists():
        shutil.copyfile(scan / "bad_rows.jsonl", directory / "bad_rows.jsonl")
    digests, rows = _mapped(scan, "digests.npy"), _mapped(scan, "rows.npy")
    known = np.concatenate([np.zeros(0, np.bool_), *_known(digests, _mapped(base, "digests.npy"))])
    dropped = Dropped(len(digests))
    dropped.add(rows[known].astype(np.int64))
    left = dict(statistics)
    if dropped.count:
        kinds, lengths = drop_texts(directory, scratch, len(digests), dropped)
        left |= _without(statistics, kinds, lengths)
    with closing(NpyWriter(directory / "digests.npy", np.uint8, 20)) as kept_digests:
        for start in range(0, len(digests), _CHUNK):
            kept_digests.append(digests[start : start + _CHUNK][~known[start : start + _CHUNK]])
    with closing(NpyWriter(directory / "rows.npy", rows.dtype)) as kept_rows:
        for start in range(0, len(rows), _CHUNK):
            kept_rows.append(dropped.rows(rows[start : start + _CHUNK][~known[start : start + _CHUNK]].astype(np.int64)))
    shutil.rmtree(scratch)
    return left | {"known": dropped.count}


def _known(digests: Array, base: Array) -> Iterator[npt.NDArray[np.bool_]]:
    """Tell for each digest whether it is among those of the base; both are sorted."""
    filed = base.reshape(-1).view("S20")
    for start in range(0, len(digests), _CHUNK):
        some = np.ascontiguousarray(digests[start : start + _CHUNK]).reshape(-1).view("S20")
        places = np.searchsorted(filed, some)
        yield (
            (places < len(filed)) & (filed[np.minimum(places, len(filed) - 1)] == some)
            if len(filed)
            else np.zeros(len(some), np.bool_)
        )


def _without(statistics: Mapping[str, Any], kinds: Array, lengths: Array) -> dict[str, Any]:
    """Take texts of these kinds and byte lengths out of a scan's statistics."""
    names = statistics["kind_names"]
    gone = dict(zip(names, np.bincount(kinds, minlength=len(names)).tolist(), strict=True))
    bins = np.bincount(np.frexp(lengths)[1], minlength=64)
    histogram = {size: count - int(bins[int(size).bit_length()]) for size, count in statistics["length_histogram"].items()}
    return {
        "distinct": statistics["distinct"] - len(kinds),
        "kinds": {kind: count - gone[kind] for kind, count in statistics["kinds"].items()},
        "distinct_bytes": statistics["distinct_bytes"] - int(lengths.sum()),
        "length_histogram": {size: count for size, count in histogram.items() if count},
    }


def join_scans(base: Path, added: Path, directory: Path, *, shift: int) -> None:
    """Write the scan files of `base` with the added texts behind them.

    base: a bank's folder. added: the folder of a scan. shift: how many sources the base has.
    """
    _join_bytes([base / "texts.jsonl", added / "texts.jsonl"], directory / "texts.jsonl")
    _join_offsets(_mapped(base, "text_offsets.npy"), _mapped(added, "text_offsets.npy"), directory / "text_offsets.npy")
    _join_rows(_mapped(base, "kinds.npy"), _mapped(added, "kinds.npy"), directory / "kinds.npy")
    _join_index(base, added, directory)
    _join_bad_rows(base, added, directory, shift)


def join_tokens(base: Path, added: Path, directory: Path) -> None:
    """Write the token store of `base`, a bank's folder, with that in `added` behind it."""
    _join_offsets(_mapped(base, "token_offsets.npy"), _mapped(added, "token_offsets.npy"), directory / "token_offsets.npy")
    for name in ("lengths.npy", "token_ids.npy"):
        _join_rows(_mapped(base, name), _mapped(added, name), directory / name)


def join_features(base: Path, added: Path, directory: Path, *, matrix: str) -> None:
    """Write the matrix of `base`, a bank's folder, with that in `added` behind it, and the tables of their blocks."""
    _join_rows(_mapped(base, matrix), _mapped(added, matrix), directory / matrix)
    blocks = [np.load(folder / "blocks.npy") for folder in (base, added)]
    np.save(directory / "blocks.npy", np.concatenate(blocks))
    poison = [np.load(path) if (path := folder / "blocks.poison.npy").exists() else None for folder in (base, added)]
    if poison[1] is not None:
        poison[1]["row"] += len(_mapped(base, matrix))
        poison[1]["block"] += len(blocks[0])
    if found := [table for table in poison if table is not None]:
        np.save(directory / "blocks.poison.npy", np.concatenate(found))
    first, second = (json.loads((folder / "blocks.json").read_bytes()) for folder in (base, added))
    stretches = [*first["identity"].get("stretches", [first["identity"]]), second["identity"]]
    count = int(first["identity"]["text_count"]) + int(second["identity"]["text_count"])
    joined = {**second, "identity": {"text_count": count, "stretches": stretches}, "block_count": sum(map(len, blocks))}
    write_json(directory / "blocks.json", joined)


def copy_files(source: Path, directory: Path, names: Sequence[str]) -> None:
    """Copy those of the named files that are there."""
    for name in names:
        if (source / name).exists():
            (directory / name).unlink(missing_ok=True)
            shutil.copyfile(source / name, directory / name)


def _mapped(folder: Path, name: str) -> Array:
    array: Array = np.load(folder / name, mmap_mode="r")
    return array


def _join_bytes(paths: Sequence[Path], target: Path) -> None:
    with target.open("wb") as writer:
        for path in paths:
            with path.open("rb") as reader:
                shutil.copyfileobj(reader, writer, _COPY_BYTES)


def _join_rows(first: Array, second: Array, target: Path) -> None:
    columns = first.shape[1] if first.ndim == 2 else None
    with closing(NpyWriter(target, first.dtype, columns)) as writer:
        for part in (first, second):
            for start in range(0, len(part), _CHUNK):
                writer.append(part[start : start + _CHUNK])


def _join_offsets(first: Array, second: Array, target: Path) -> None:
    with closing(NpyWriter(target, np.uint64)) as writer:
        for start in range(0, len(first), _CHUNK):
            writer.append(first[start : start + _CHUNK])
        for start in range(1, len(second), _CHUNK):
            writer.append(second[start : start + _CHUNK] + first[-1])


def _join_index(base: Path, scan: Path, directory: Path) -> None:
    """Merge two sorted indices; the added rows come after those of the base."""
    digests, rows = _mapped(base, "digests.npy"), _mapped(base, "rows.npy")
    new_digests, new_rows = _mapped(scan, "digests.npy"), _mapped(scan, "rows.npy")
    filed = digests.reshape(-1).view("S20")
    places = np.searchsorted(filed, np.ascontiguousarray(new_digests).reshape(-1).view("S20"))
    total = len(digests) + len(new_digests)
    with (
        closing(NpyWriter(directory / "digests.npy", np.uint8, 20)) as all_digests,
        closing(NpyWriter(directory / "rows.npy", np.uint32 if total <= 0xFFFFFFFF else np.uint64)) as all_rows,
    ):
        for start in range(0, max(len(digests), 1), _CHUNK):
            stop = min(start + _CHUNK, len(digests))
            low = int(np.searchsorted(places, start))
            high = len(places) if stop == len(digests) else int(np.searchsorted(places, stop))
            inside = places[low:high] - start
            all_digests.append(np.insert(digests[start:stop], inside, new_digests[low:high], axis=0))
            all_rows.append(
                np.insert(rows[start:stop].astype(np.int64), inside, new_rows[low:high].astype(np.int64) + len(digests))
            )


def _join_bad_rows(base: Path, scan: Path, directory: Path, shift: int) -> None:
    sources = [(folder / "bad_rows.jsonl", by) for folder, by in ((base, 0), (scan, shift)) if (folder / "bad_rows.jsonl").exists()]
    if not sources:
        return
    with (directory / "bad_rows.jsonl").open("w", encoding="utf-8") as writer:
        for path, by in sources:
            with path.open(encoding="utf-8") as reader:
                for line in reader:
                    row = json.loads(line)
                    writer.write(json.dumps({**row, "source": row["source"] + by}, ensure_ascii=False) + "\n")


def join_statistics(base: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Add up the statistics of scans or of token stores: numbers are summed, lists joined, the longest kept, averages weighed.

    `last_run` is that of what was added.
    """
    joined: dict[str, Any] = {name: _join_value(name, base.get(name), added.get(name)) for name in {**base, **added}}
    if "distinct" in joined:
        joined["duplicates"] = joined["texts"] - joined["distinct"]
    for name, weight in (("mean_length", "texts"), ("characters_per_token", "tokens")):
        parts = [(part[name], part[weight]) for part in (base, added) if part.get(name) is not None]
        if parts:
            joined[name] = round(sum(value * count for value, count in parts) / max(1, sum(count for _, count in parts)), 6)
    return joined


def _join_value(name: str, first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    if name == "last_run":
        return second
    if name.startswith("longest"):
        return max(first, second)
    if name in ("kind_names", "first"):
        return list(dict.fromkeys([*first, *second]))
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: _join_value(key, first.get(key), second.get(key)) for key in {**first, **second}}
    if isinstance(first, bool | str) or type(first) is not type(second):
        return second
    if isinstance(first, list):
        counts = all(isinstance(value, int) for value in [*first, *second]) and len(first) == len(second)
        return [a + b for a, b in zip(first, second, strict=True)] if counts else [*first, *second]
    return first + second
