"""The prediction is worked out from lengths and file headers alone, and is right where it can be checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_core.bank.encode.plan import EncodePlan, feature_width, predict_encode
from zephon_core.bank.encode.run import make_plan
from zephon_core.bank.specs import EncodeSpec
from zephon_core.errors import ModelError

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    BertModel(BertConfig(**SMALL, max_position_embeddings=32)).save_pretrained(folder)
    return folder


LENGTHS = np.array([3, 9, 9, 9, 2, 2, 2, 2, 2, 7], np.int32)


def predict(folder: Path, **settings: Any) -> EncodePlan:
    rate = settings.pop("tokens_per_s", None)
    lengths = settings.pop("lengths", LENGTHS)
    spec = EncodeSpec.model_validate({"max_batch": 4, "token_budget": 20, "model": str(folder), **settings})
    return predict_encode(lengths, make_plan(lengths, spec), spec, tokens_per_s=rate)


def test_counts_are_those_of_the_plan(bert: Path) -> None:
    plan = predict(bert)
    assert (plan.rows, plan.blocks, plan.tokens, plan.padded_tokens) == (10, 6, 47, 47)
    assert (plan.longest, plan.distinct_lengths, plan.hidden_size) == (9, 4, 32)
    assert plan.expected_s is None
    assert predict(bert, tokens_per_s=94.0).expected_s == 0.5
    json.dumps(plan.to_json(), allow_nan=False)


def test_operations_are_those_that_a_profiler_counts(bert: Path) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModel

    model = AutoModel.from_pretrained(bert, attn_implementation="eager").eval()
    counted = 0
    for length in LENGTHS.tolist():
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.encoder(model.embeddings(torch.ones(1, length, dtype=torch.int64)))
        counted += counter.get_total_flops()
    assert predict(bert).flops == counted


def test_disk_bytes_are_those_that_are_written(bert: Path) -> None:
    assert predict(bert).disk_bytes == 128 + 10 * 32 * 2 + 6 * 56
    assert predict(bert, store_dtype="float32").disk_bytes == 128 + 10 * 32 * 4 + 6 * 56


def test_weights_shrink_with_precision_and_quantisation(bert: Path) -> None:
    full, half, eight, four = (
        predict(bert, model={"path": str(bert), **model}).weight_bytes
        for model in ({}, {"dtype": "bfloat16"}, {"quantization": "8bit"}, {"quantization": "4bit"})
    )
    assert full == 2 * half == (bert / "model.safetensors").stat().st_size - header_bytes(bert)
    assert full > eight > four


def header_bytes(model: Path) -> int:
    content = (model / "model.safetensors").read_bytes()
    return 8 + int.from_bytes(content[:8], "little")


def test_padding_costs_operations_and_tokens(bert: Path) -> None:
    lengths = np.array([20, 19, 18, 18, 5], np.int32)
    exact, padded = (
        predict(bert, lengths=lengths, grouping=grouping, token_budget=99) for grouping in ("exact_token_length", "padded")
    )
    assert exact.padded_tokens == exact.tokens == padded.tokens == 80
    assert padded.padded_tokens == 85
    assert padded.flops > exact.flops
    assert padded.blocks < exact.blocks


def test_pooling_modes_are_part_of_the_width(bert: Path) -> None:
    assert feature_width(EncodeSpec.model_validate({"model": str(bert), "pooling": "last"})) == 32


def test_texts_that_are_too_long_are_refused(bert: Path) -> None:
    with pytest.raises(ModelError, match="up to 32 tokens, and the longest has 33"):
        predict(bert, lengths=np.array([33], np.int32))


def test_a_plugin_is_planned_without_knowing_its_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "planned_plugin.py").write_text("class Encoder:\n    hidden_size = 5\n    def encode(self, ids): ...\n")
    spec = EncodeSpec.model_validate({"model": "planned_plugin:Encoder", "max_batch": 4, "token_budget": 20})
    plan = predict_encode(LENGTHS, make_plan(LENGTHS, spec), spec)
    assert (plan.hidden_size, plan.blocks, plan.flops, plan.weight_bytes) == (5, 6, 0.0, 0)
