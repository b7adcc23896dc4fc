"""Interruption is invisible: from whatever a crash can leave behind, the finished files are the same bytes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_core.bank.specs import RunOptions, TokenizeSpec
from zephon_core.bank.tokens import tokenize_texts
from zephon_core.bank.tokens.store import LEDGER_NAME, TOKEN_FILES, Tally, TokenStoreIdentity, TokenWriter
from zephon_core.tokenizers import Tokenizer

WORDS = ["one", "two", "three", "four", "five"]
DEFINITION = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(["?", *WORDS])}, "unk_token": "?"},
}
TOKENIZER = Tokenizer(json.dumps(DEFINITION).encode(), origin="made here")
SPEC = TokenizeSpec(max_key_tokens=4)


class _Killed(Exception):
    pass


class _KillAfter:
    """A progress that stops the run after some steps, as a crash would."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def phase(self, label: str, *, total: float | None, unit: str) -> Any:
        return self

    def __enter__(self) -> _KillAfter:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def advance(self, amount: float) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise _Killed

    def note(self, message: str) -> None:
        pass


def tokenize(
    file: Path, count: int, directory: Path, *, steps: int = 1 << 30, chunk_bytes: int, checkpoint_bytes: int
) -> dict[str, Any]:
    return tokenize_texts(
        file,
        count,
        TOKENIZER,
        SPEC,
        directory,
        run=RunOptions(workers=2),
        progress=_KillAfter(steps),
        chunk_bytes=chunk_bytes,
        checkpoint_bytes=checkpoint_bytes,
    )


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join), min_size=1, max_size=25)


@settings(max_examples=60)
@given(texts, st.lists(st.integers(0, 8), max_size=4), st.integers(1, 120), st.integers(1, 300), st.data())
def test_a_run_that_is_killed_and_resumed_ends_the_same(
    rows: list[str], kills: list[int], chunk_bytes: int, checkpoint_bytes: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.jsonl"
        file.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
        straight, killed = Path(folder) / "straight", Path(folder) / "killed"
        straight.mkdir()
        killed.mkdir()
        expected = tokenize(file, len(rows), straight, chunk_bytes=50, checkpoint_bytes=10**6)
        for steps in kills:
            try:
                tokenize(file, len(rows), killed, steps=steps, chunk_bytes=chunk_bytes, checkpoint_bytes=checkpoint_bytes)
            except _Killed:
                _lose_what_is_not_on_record(killed, data)
        statistics = tokenize(file, len(rows), killed, chunk_bytes=chunk_bytes, checkpoint_bytes=checkpoint_bytes)
        assert content(killed) == content(straight)
        assert {**statistics, "last_run": 0} == {**expected, "last_run": 0}
        assert 0 <= statistics["last_run"]["texts"] <= expected["last_run"]["texts"] == len(rows)


def _lose_what_is_not_on_record(directory: Path, data: st.DataObject) -> None:
    """Do to the files what a power cut may do to what was never flushed, and to what was written in place of it."""
    ledger = directory / LEDGER_NAME
    lines = ledger.read_bytes().splitlines(keepends=True)
    tally = json.loads(lines[-1]) if len(lines) > 1 else {"tokens": 0, "texts": 0}
    recorded = (tally["tokens"], 8 * (tally["texts"] + 1), 4 * tally["texts"])
    for name, size in zip(TOKEN_FILES, recorded, strict=True):
        path = directory / name
        kept = path.read_bytes()
        cut = data.draw(st.integers(min(128 + size, len(kept)), len(kept)))
        path.write_bytes(kept[:cut] + data.draw(st.binary(max_size=20)))
    torn = b'{"texts":9,"text_bytes":99,"tok'
    ledger.write_bytes(ledger.read_bytes() + torn[: data.draw(st.integers(0, len(torn)))])


IDENTITY = TokenStoreIdentity("0" * 64, 4, 6, 60, 300)


def write(directory: Path, parts: list[list[int]]) -> TokenWriter:
    writer = TokenWriter(directory, IDENTITY)
    for part in parts:
        lengths = np.array(part, dtype=np.int32)
        ids = np.arange(int(lengths.sum()), dtype=np.uint16)
        writer.append(ids, lengths, Tally(texts=len(part), text_bytes=10, tokens=len(ids)))
        writer.checkpoint()
    return writer


@pytest.mark.parametrize("name", TOKEN_FILES)
def test_a_record_whose_data_are_not_there_is_not_believed(name: str, tmp_path: Path) -> None:
    with write(tmp_path, [[1, 2], [3], [2]]) as writer:
        assert writer.done.texts == 4
    shorter = (tmp_path / name).read_bytes()[:-1]
    (tmp_path / name).write_bytes(shorter)
    with TokenWriter(tmp_path, IDENTITY) as writer:
        assert (writer.done.texts, writer.done.tokens) == (3, 6)
        ids, lengths = writer.recorded()
        assert lengths.tolist() == [1, 2, 3]
        assert ids.tolist() == [0, 1, 2, 0, 1, 2]
    assert (tmp_path / LEDGER_NAME).read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("ledger", [b"", b'{"tokenizer_sha256": "000', None])
def test_without_a_ledger_the_work_begins_anew(ledger: bytes | None, tmp_path: Path) -> None:
    write(tmp_path, [[1, 2], [3]]).__exit__()
    if ledger is None:
        (tmp_path / LEDGER_NAME).unlink()
    else:
        (tmp_path / LEDGER_NAME).write_bytes(ledger)
    with TokenWriter(tmp_path, IDENTITY) as writer:
        assert writer.done == Tally()
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    write(fresh, []).__exit__()
    assert content(fresh) == {name: (tmp_path / name).read_bytes() for name in (*TOKEN_FILES, LEDGER_NAME)}
