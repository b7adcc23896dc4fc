"""The catalog of a data set of many shards, beside a plain loop over the same files.

    python benchmarks/catalog.py [--shards 10000] [--rounds 3] [--json result.json]

The loop does what has to be done, one file after the other: SHA-256 of each file, and its footer with pyarrow (Parquet) or its
number of lines (JSONL). Against it, for the same files in the page cache:

    build     Dataset.from_path with an empty store: what the loop finds out, flushed to the disk
    attach    Dataset.from_path once more, as each later process does
    one more  Dataset.from_path after one file more has appeared

Figures are medians over rounds that alternate between the contestants; quote ratios, not seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from zephon_core.ratios import Dataset
from zephon_core.store import ArtifactStore

FORMATS = ("parquet", "jsonl")
OLD_NS = 10**18


def write_shards(folder: Path, kind: str, shards: int) -> None:
    """Write `shards` small files, a hundred in a folder, old enough for their catalog to be kept."""
    for number in range(shards):
        path = folder / f"{number // 100:04d}" / f"shard-{number:06d}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_shard(path, number)


def write_shard(path: Path, number: int) -> None:
    """Write one shard of 50 rows."""
    texts = [f"row {row} of shard {number}, and so on" for row in range(50)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=25)
    else:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    os.utime(path, ns=(OLD_NS, OLD_NS))


def plain_loop(folder: Path) -> int:
    """Hash every file and count its rows, as a script would."""
    rows = 0
    for path in sorted(folder.rglob("shard-*")):
        content = path.read_bytes()
        hashlib.sha256(content).hexdigest()
        rows += pq.read_metadata(path).num_rows if path.suffix == ".parquet" else content.count(b"\n")
    return rows


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that some work takes."""
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def measure(kind: str, shards: int, rounds: int) -> dict[str, float]:
    """Measure one format; returns median seconds by contestant."""
    seconds: dict[str, list[float]] = {"loop": [], "build": [], "attach": [], "one more": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        write_shards(folder, kind, shards)
        plain_loop(folder)
        for number in range(rounds):
            store = ArtifactStore(Path(temporary) / f"store-{number}")

            def attach(store: ArtifactStore = store) -> Dataset:
                return Dataset.from_path("many", str(folder), store=store)

            seconds["loop"].append(timed(lambda: plain_loop(folder)))
            seconds["build"].append(timed(attach))
            seconds["attach"].append(timed(attach))
            if len(attach().shards) != shards:
                raise RuntimeError(f"found {len(attach().shards)} of {shards} shards")
            extra = folder / f"extra.{kind}"
            write_shard(extra, shards)
            seconds["one more"].append(timed(attach))
            extra.unlink()
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Measure, print a table, and write the figures where asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    results = {kind: measure(kind, flags.shards, flags.rounds) for kind in FORMATS}
    print(f"{flags.shards:,} shards, seconds (times the loop's)")
    print(f"{'':8}" + "".join(f"{name:>18}" for name in results[FORMATS[0]]))
    for kind, medians in results.items():
        cells = [f"{value:.2f} ({value / medians['loop']:.2f}x)" for value in medians.values()]
        print(f"{kind:8}" + "".join(f"{cell:>18}" for cell in cells))
    if flags.json:
        flags.json.write_text(json.dumps({"shards": flags.shards, "rounds": flags.rounds, "seconds": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
