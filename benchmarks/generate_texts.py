"""Write router rows of made-up text: `python benchmarks/generate_texts.py rows.jsonl --texts 1000000`.

Words are taken from this Python's own standard library sources and drawn with a Zipf-like weight, so that lengths, letters and
repetition look like prose. Nothing is kept in memory: ten million texts take as much as ten.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

__all__ = ["router_rows", "short_rows", "vocabulary", "write_rows"]


def vocabulary(size: int = 4000) -> list[str]:
    """Return the commonest words of the standard library's comments and documentation, commonest first."""
    counts: Counter[str] = Counter()
    folder = Path(sysconfig.get_paths()["stdlib"])
    for source in sorted(folder.glob("*.py")):
        counts.update(re.findall(r"[A-Za-z][a-z]+", source.read_text("utf-8", "replace")))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return ordered[:size]


def router_rows(*, seed: int = 0, candidates: int = 8, repeated: float = 0.1) -> Iterator[str]:
    """Yield rows of one query and its candidates (about 60 and 250 bytes) without end, some of them seen before."""
    rng = random.Random(seed)
    words = vocabulary()
    weights = [1 / (rank + 8) for rank in range(len(words))]
    recent: list[str] = []
    while True:
        # One draw a row: drawing words one by one would cost more than all the rest.
        drawn = iter(rng.choices(words, weights, k=10 + 45 * candidates + 60))
        texts = []
        for _ in range(candidates):
            if recent and rng.random() < repeated:
                texts.append(rng.choice(recent))
                continue
            text = " ".join(islice(drawn, rng.randint(20, 64)))
            texts.append(text[:1].upper() + text[1:] + rng.choice((".", ".", ".", "?", "!", ' — "sic".', "…")))
        recent = (recent + texts)[-512:]
        query = " ".join(islice(drawn, rng.randint(4, 16))) + f" {rng.randrange(1 << 40)}?"
        yield json.dumps({"query": query, "candidates": [{"text": text} for text in texts]}, ensure_ascii=False)


def short_rows(texts: int, *, texts_a_row: int = 9) -> Iterator[str]:
    """Yield rows that hold `texts` distinct texts of about 20 bytes."""
    for first in range(0, texts, texts_a_row):
        numbers = range(first, min(first + texts_a_row, texts))
        shorts = [f'"text {number * 2654435761 % 2**40:011x}-{number}"' for number in numbers]
        inner = ", ".join('{"text": ' + short + "}" for short in shorts[1:])
        yield f'{{"query": {shorts[0]}, "candidates": [{inner}]}}'


def write_rows(path: Path, rows: Iterator[str], *, limit_bytes: int | None = None) -> int:
    """Write rows as JSONL until they end or the file has `limit_bytes`; return the bytes written."""
    written = 0
    with path.open("wb", buffering=1 << 20) as file:
        for row in rows:
            written += file.write(row.encode("utf-8") + b"\n")
            if limit_bytes is not None and written >= limit_bytes:
                break
    return written


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--texts", type=int, help="so many distinct short texts")
    amount.add_argument("--megabytes", type=float, help="so much prose: one query and eight candidates a row")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.texts:
        write_rows(options.path, short_rows(options.texts))
    else:
        write_rows(options.path, router_rows(seed=options.seed), limit_bytes=int(options.megabytes * 1e6))


if __name__ == "__main__":
    _main()
