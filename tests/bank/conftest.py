"""Small banks: router rows of numbered words, a tokenizer that knows these words, an encoder that looks vectors up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zephon_core.bank.specs import BankSpec, RunOptions

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def word_encoder(monkeypatch):
    """Make the module `word_encoder` importable here and in child processes; returns the path of its log of blocks."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")]))
    return "word_encoder:words"


@pytest.fixture
def inputs(tmp_path, word_encoder):
    """A folder with train.jsonl, eval.jsonl and tokenizer.json."""
    from small_inputs import router_rows, write_rows, write_tokenizer

    folder = tmp_path / "inputs"
    folder.mkdir()
    write_rows(folder / "train.jsonl", router_rows(1, 60))
    write_rows(folder / "eval.jsonl", router_rows(2, 15) + router_rows(1, 5))
    write_tokenizer(folder / "tokenizer.json")
    return folder


@pytest.fixture
def bank_parameters(inputs, tmp_path, word_encoder):
    """A function that makes (spec, run) of a small bank; keyword arguments change single settings."""

    def make(*, sources=None, output="bank", **settings):
        encode = {"model": word_encoder, "max_batch": 8, **settings.pop("encode", {})}
        spec = {
            "scan": {
                "sources": sources or [f"train={inputs / 'train.jsonl'}", f"eval={inputs / 'eval.jsonl'}"],
                **settings.pop("scan", {}),
            },
            "tokenize": {"tokenizer": str(inputs / "tokenizer.json"), **settings.pop("tokenize", {})},
            "encode": encode,
            "name": settings.pop("name", "bank"),
        }
        run = {"store": str(tmp_path / "store"), "workers": 2, "output": str(tmp_path / output) if output else "", **settings}
        return BankSpec.model_validate(spec), RunOptions.model_validate(run)

    return make
