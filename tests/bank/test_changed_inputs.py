"""What a run identified is what it uses: a model or tokenizer that changes meanwhile gets into no bank under another's name."""

from __future__ import annotations

import json
import shutil

import pytest

from zephon_core.bank import build_bank, steps
from zephon_core.blocks import BlockWork
from zephon_core.errors import MismatchError, SourceChangedError
from zephon_core.fingerprint import file_sha256
from zephon_core.store import ArtifactStore


def save_bert(folder, seed):
    import torch
    import transformers

    torch.manual_seed(seed)
    settings = {"vocab_size": 999, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.BertModel(transformers.BertConfig(**settings)).save_pretrained(folder)
    return folder


@pytest.fixture
def model(tmp_path):
    return save_bert(tmp_path / "model", 0)


@pytest.fixture
def other(tmp_path):
    return save_bert(tmp_path / "other", 1)


def overwrite(model, other):
    shutil.copyfile(other / "model.safetensors", model / "model.safetensors")


def parameters(bank_parameters, model, **settings):
    return bank_parameters(encode={"model": str(model)}, workers=1, **settings)


def true_features(bank_parameters, model, tmp_path):
    build_bank(*parameters(bank_parameters, model, store=str(tmp_path / "true-store"), output="true"))
    return file_sha256(tmp_path / "true" / "features.f16.npy")


def test_weights_that_change_before_they_are_loaded(bank_parameters, model, other, tmp_path):
    wanted = true_features(bank_parameters, model, tmp_path)
    kept = shutil.copytree(model, tmp_path / "kept")
    spec, run = parameters(bank_parameters, model)
    store = ArtifactStore(run.store)
    identity = steps.identify(spec, store=store)
    steps.scan(spec, identity, run, store=store)
    steps.tokenize(spec, identity, run, store=store)
    overwrite(model, other)
    with pytest.raises(SourceChangedError, match=r"model: was changed since this run identified it\. Run again"):
        steps.encode(spec, identity, run, store=store)
    overwrite(model, kept)
    build_bank(spec, run)
    assert file_sha256(tmp_path / "bank" / "features.f16.npy") == wanted


def test_weights_that_change_while_they_are_used(bank_parameters, model, other, tmp_path, monkeypatch):
    wanted = true_features(bank_parameters, model, tmp_path)
    kept = shutil.copytree(model, tmp_path / "kept")
    encode = BlockWork._work

    def encode_and_change(self, *arguments):
        encode(self, *arguments)
        overwrite(model, other)

    spec, run = parameters(bank_parameters, model)
    monkeypatch.setattr(BlockWork, "_work", encode_and_change)
    with pytest.raises(SourceChangedError, match="was changed"):
        build_bank(spec, run)
    monkeypatch.undo()
    overwrite(model, kept)
    result = build_bank(spec, run)
    assert result.complete and not result.cached["encode"]
    assert file_sha256(tmp_path / "bank" / "features.f16.npy") == wanted


def test_a_tokenizer_that_changes_before_it_is_used(bank_parameters, inputs):
    spec, run = bank_parameters()
    store = ArtifactStore(run.store)
    identity = steps.identify(spec, store=store)
    steps.scan(spec, identity, run, store=store)
    path = inputs / "tokenizer.json"
    definition = json.loads(path.read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary["another"] = max(vocabulary.values()) + 1
    path.write_text(json.dumps(definition))
    with pytest.raises(SourceChangedError, match=r"tokenizer\.json: was changed since this run identified it"):
        steps.tokenize(spec, identity, run, store=store)


def test_a_bank_is_not_asked_with_another_model_than_its_own(bank_parameters, model, other, tmp_path):
    from zephon_core.bank import FeatureBank
    from zephon_core.bank.encode import row_encoder
    from zephon_core.bank.query import encode_text
    from zephon_core.bank.verify import Level, verify_bank

    spec, run = parameters(bank_parameters, model)
    build_bank(spec, run)

    def failing():
        checks = verify_bank(tmp_path / "bank", Level.REENCODE, encode=row_encoder(spec.encode), sample=4)
        return [check.name for check in checks if not check.ok]

    assert failing() == []
    assert encode_text(FeatureBank.open(tmp_path / "bank"), "a text of its own").shape == (32,)
    overwrite(model, other)
    assert "model" in failing()
    with pytest.raises(MismatchError, match=r"model: holds model [0-9a-f]{16}, and the bank was made with"):
        encode_text(FeatureBank.open(tmp_path / "bank"), "a text of its own")
