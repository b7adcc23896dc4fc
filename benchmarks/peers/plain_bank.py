"""A plain feature-bank builder, as one writes it first: line by line, json, hashlib, a dictionary.

The scan phase only: the same files as `zephon_core.bank.scan`, from the same rows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import numpy as np

__all__ = ["scan"]


def scan(sources: list[Path], directory: Path) -> dict[str, object]:
    """Collect the distinct texts of router rows into `directory`; returns counts and seconds."""
    started, cpu_started = time.perf_counter(), time.process_time()
    directory.mkdir(parents=True, exist_ok=True)
    index: dict[str, int] = {}
    kinds: list[int] = []
    texts = 0
    with (directory / "texts.jsonl").open("w", encoding="utf-8", newline="\n") as out:
        for source in sources:
            with source.open("rb") as lines:
                for line in lines:
                    row = json.loads(line)
                    for kind, raw in [(0, row["query"]), *((1, candidate["text"]) for candidate in row["candidates"])]:
                        text = raw.strip()
                        if not text:
                            continue
                        texts += 1
                        digest = hashlib.sha1(text.encode("utf-8")).hexdigest()
                        if digest not in index:
                            index[digest] = len(index)
                            kinds.append(kind)
                            out.write(json.dumps(text, ensure_ascii=False) + "\n")
    (directory / "index.json").write_text(json.dumps(index))
    np.save(directory / "kinds.npy", np.array(kinds, np.uint8))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    return {"texts": texts, "distinct": len(index), "seconds": seconds, "cpu_s": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("sources", type=Path, nargs="+")
    options = parser.parse_args()
    print(json.dumps(scan(options.sources, options.directory)))


if __name__ == "__main__":
    main()
