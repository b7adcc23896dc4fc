"""Make small data sets out of text found on every machine, one for each kind of file that Python and its packages bring along.

    python examples/local_corpora.py OUTPUT_DIR [--megabytes 24]

writes a folder of shards each for `python` (sources; JSONL), `docs` (Markdown, reStructuredText and package descriptions;
Parquet), `json` (compressed JSONL) and `headers` (C and C++ headers; Parquet), a kind of which nothing is found left out. The
same installation gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sysconfig
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SHARDS = 24
LONGEST_FILE_BYTES = 2 << 20
KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "python": (("*.py",), "jsonl"),
    "docs": (("*.md", "*.rst", "METADATA"), "parquet"),
    "json": (("*.json",), "jsonl.gz"),
    "headers": (("*.h", "*.hpp", "*.cuh"), "parquet"),
}


def files_of(patterns: tuple[str, ...]) -> list[Path]:
    """Return the files of Python's folders that match, in an order that mixes folders: by the hash of their place."""
    roots = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib", "include")}
    roots = {root for root in roots if root.is_dir() and not any(other in root.parents for other in roots)}
    found = {path for root in roots for pattern in patterns for path in root.rglob(pattern) if path.is_file()}
    return sorted(found, key=lambda path: hashlib.sha256("/".join(path.parts[-4:]).encode()).digest())


def rows_of(paths: list[Path], most_bytes: int) -> Iterator[dict[str, str]]:
    """Yield files as rows until there are `most_bytes` of text; what is no UTF-8, or very long, is passed over."""
    for path in paths:
        if most_bytes <= 0:
            return
        try:
            content = path.read_bytes()
            text = content.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if 0 < len(content) <= LONGEST_FILE_BYTES:
            most_bytes -= len(content)
            yield {"name": path.name, "text": text}


def write_corpora(output: Path, most_bytes: int) -> dict[str, Path]:
    """Write the data sets below `output`, at most `most_bytes` of text each; those that are there already stay as they are."""
    made = {}
    for name, (patterns, format) in KINDS.items():
        folder = output / name
        if not folder.is_dir():
            rows = list(rows_of(files_of(patterns), most_bytes))
            if not rows:
                continue
            staging = output / f".{name}"
            staging.mkdir(parents=True, exist_ok=True)
            per_shard = -(-len(rows) // SHARDS)
            waiting = iter(rows)
            for number in range(SHARDS):
                if shard := list(islice(waiting, per_shard)):
                    WRITERS[format](staging / f"shard-{number:05}.{format}", shard)
            staging.rename(folder)
        made[name] = folder
    return made


def _lines(rows: list[dict[str, str]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def _write_jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_bytes(_lines(rows))


def _write_gzip(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_bytes(gzip.compress(_lines(rows), mtime=0))


def _write_parquet(path: Path, rows: list[dict[str, str]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd")


WRITERS: dict[str, Callable[[Path, list[dict[str, str]]], None]] = {
    "jsonl": _write_jsonl,
    "jsonl.gz": _write_gzip,
    "parquet": _write_parquet,
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--megabytes", type=float, default=24.0, help="most text of each kind")
    options = parser.parse_args()
    for name, folder in write_corpora(options.output, int(options.megabytes * 1e6)).items():
        print(f"{name}: {sum(path.stat().st_size for path in folder.iterdir()):,} bytes in {folder}")


if __name__ == "__main__":
    main()
