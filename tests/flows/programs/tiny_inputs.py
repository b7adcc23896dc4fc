"""Small inputs of a bank: router rows made of numbered words, and a tokenizer that knows these words."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

WORDS = [f"word{number}" for number in range(300)]


def make_inputs(folder: Path) -> None:
    """Write train.jsonl, eval.jsonl and tokenizer.json."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = random.Random(0)
    for name, rows in (("train", 80), ("eval", 20)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for _ in range(rows):
                texts = [" ".join(words.choices(WORDS, k=words.randint(1, 20))) for _ in range(4)]
                file.write(json.dumps({"query": texts[0], "candidates": [{"text": text} for text in texts[1:]]}) + "\n")
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0} | {word: number for number, word in enumerate(WORDS, 1)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def bank_spec(folder: Path, **encode: Any) -> dict[str, Any]:
    """Return the parameters of a bank of these inputs, encoded by the tiny encoder."""
    return {
        "name": "Small.one",
        "scan": {"sources": [f"train={folder / 'train.jsonl'}", f"eval={folder / 'eval.jsonl'}"]},
        "tokenize": {"tokenizer": str(folder / "tokenizer.json")},
        "encode": {"model": {"path": "tiny_encoder:one"}, "max_batch": 16, **encode},
    }
