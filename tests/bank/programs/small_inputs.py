"""Small inputs of a bank: router rows made of numbered words, and a tokenizer that gives word wN the id N."""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = [f"w{number}" for number in range(1, 1200)]


def router_rows(seed: int, count: int, *, candidates: int = 4, longest: int = 30) -> list[dict]:
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(rng.choices(WORDS[:990], k=rng.randint(1, longest)))

    return [{"query": text(), "candidates": [{"text": text()} for _ in range(candidates)]} for _ in range(count)]


def write_rows(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_tokenizer(path: Path) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0} | {word: number for number, word in enumerate(WORDS, 1)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(path))
    return path
