"""Small data sets, a tokenizer that knows their words, and functions that count them: inputs of ratio tests."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [f"word{number}" for number in range(300)]


def make_tokenizer(folder: Path) -> Path:
    """Write a tokenizer.json to which each of WORDS is a token, and return its path."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    vocabulary = {"[UNK]": 0} | {word: number for number, word in enumerate(WORDS, 1)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def make_dataset(folder: Path, name: str, *, shards: int = 3, rows: int = 40, seed: int = 0) -> Path:
    """Write a folder of JSONL shards with a text a row, and return it. Each name and seed gives other texts."""
    words = random.Random(f"{name} {seed}")
    place = folder / name
    place.mkdir(parents=True)
    for shard in range(shards):
        lines = []
        for _ in range(rows):
            text = " ".join(words.choices(WORDS, k=words.randint(1, 40)))
            lines.append(json.dumps({"text": text, "name": name}))
        (place / f"shard-{shard:05}.jsonl").write_text("\n".join(lines) + "\n")
    return place


def count_words(payload: Any) -> int:
    """Count a row's words, and note each time that a data set is read: a line in the file named by $COUNT_LOG.

    While the file named by $COUNT_HOLD exists, counting goes on; that is where tests stop it.
    """
    _note(payload)
    if hold := os.environ.get("COUNT_HOLD"):
        Path(hold).with_suffix(".reached").touch()
        while Path(hold).exists():
            time.sleep(0.02)
    return len(payload["text"].split())


def _note(payload: Any) -> None:
    if log := os.environ.get("COUNT_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{payload['name']}\n")


def fail(payload: Any) -> int:
    """Fail on every row."""
    raise RuntimeError("this function always fails")


def die(payload: Any) -> int:
    """End the process, unless it is $COUNT_SURVIVOR, as the kernel does when memory runs out."""
    if os.getpid() != int(os.environ["COUNT_SURVIVOR"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return 1


def upper(payload: Any) -> Any:
    """Return a row with its text in capitals, which the tokenizer doesn't know."""
    return {**payload, "text": payload["text"].upper()}


@dataclass
class Sizes:
    """One shard of so many rows and bytes."""

    rows: int
    size: int

    def ids(self) -> np.ndarray:
        return np.zeros(1, np.int64)

    def counts(self) -> np.ndarray:
        return np.array([self.rows], np.int64)

    def raw_bytes(self) -> np.ndarray:
        return np.array([self.size], np.int64)
