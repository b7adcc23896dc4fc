"""A folder is described without loading it, and what is wrong with one is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from zephon_core.errors import ModelError
from zephon_core.models import read_model_folder


def test_what_the_headers_say_is_what_the_model_is(bert_folder: Path, qwen_folder: Path) -> None:
    from transformers import AutoModel

    for path in (bert_folder, qwen_folder):
        folder = read_model_folder(path)
        model = AutoModel.from_pretrained(path)
        assert folder.hidden_size == model.config.hidden_size
        assert folder.layer_count == 2
        assert folder.vocabulary_size == 99
        layers = model.encoder.layer if path == bert_folder else model.layers
        assert folder.matrix_parameters == sum(p.numel() for p in layers.parameters() if p.dim() == 2)
        head = 0 if path == bert_folder else 99 * 64
        assert folder.parameter_count == head + sum(p.numel() for p in model.parameters())
        assert folder.weight_bytes == 4 * folder.parameter_count
    assert read_model_folder(bert_folder).longest_text == 64
    assert read_model_folder(qwen_folder).longest_text == 0


def test_a_roberta_loses_two_positions_to_its_padding(save_model: Callable[..., Path]) -> None:
    settings = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    assert read_model_folder(save_model("RobertaModel", **settings, max_position_embeddings=40)).longest_text == 38


def test_operations_a_token_count_each_weight_twice(bert_folder: Path) -> None:
    folder = read_model_folder(bert_folder)
    assert folder.forward_flops(10) == 2 * folder.matrix_parameters + 4 * 10 * 32 * 2


def test_shards_are_read_as_one(qwen_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    AutoModel.from_pretrained(qwen_folder).save_pretrained(tmp_path, max_shard_size="60KB")
    folder = read_model_folder(tmp_path)
    assert len(folder.weight_files) > 1
    assert folder.parameter_count == read_model_folder(qwen_folder).parameter_count - 99 * 64
    (tmp_path / folder.weight_files[0]).unlink()
    with pytest.raises(ModelError, match="the index names it"):
        read_model_folder(tmp_path)


def test_sentence_transformers_modules_are_read(sentence_folder: Callable[..., Path]) -> None:
    modules = ["Transformer", "Pooling", "Dropout", "Dense", "Normalize"]
    found = read_model_folder(sentence_folder(modules, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True})).modules
    assert found.pooling == ("cls", "mean")
    assert found.normalize
    assert found.unknown == ("Dense (3_Dense)",)


@pytest.mark.parametrize(("config", "modes"), [({"pooling_mode": "lasttoken"}, ("lasttoken",)), ({}, ("mean",))])
def test_newer_pooling_configurations_are_read(
    sentence_folder: Callable[..., Path], config: dict[str, str], modes: tuple[str, ...]
) -> None:
    assert read_model_folder(sentence_folder(["Transformer", "Pooling"], config)).modules.pooling == modes


def test_an_unknown_pooling_mode_is_refused(sentence_folder: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match="pooling 'median'"):
        read_model_folder(sentence_folder(["Transformer", "Pooling"], {"pooling_mode": "median"}))


def test_the_transformer_of_an_old_layout_lies_in_a_folder_of_its_own(bert_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(bert_folder, tmp_path / "0_Transformer")
    entry = {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    (tmp_path / "modules.json").write_text(json.dumps([entry]))
    assert read_model_folder(tmp_path).path == tmp_path / "0_Transformer"


class TestRefusals:
    @pytest.fixture
    def copy(self, bert_folder: Path, tmp_path: Path) -> Path:
        shutil.copytree(bert_folder, tmp_path / "model")
        return tmp_path / "model"

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="does not exist, expected a local Hugging Face folder"):
            read_model_folder(tmp_path / "absent")

    def test_a_file(self, copy: Path) -> None:
        with pytest.raises(ModelError, match="is a file"):
            read_model_folder(copy / "config.json")

    def test_no_configuration(self, copy: Path) -> None:
        (copy / "config.json").unlink()
        with pytest.raises(ModelError, match=r"config\.json: is missing"):
            read_model_folder(copy)

    def test_broken_configuration(self, copy: Path) -> None:
        (copy / "config.json").write_text("{")
        with pytest.raises(ModelError, match="can't be read"):
            read_model_folder(copy)

    def test_pickle_weights(self, copy: Path) -> None:
        (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
        with pytest.raises(ModelError, match=r"pickle weights only \(pytorch_model.bin\).*save_pretrained"):
            read_model_folder(copy)

    def test_no_weights(self, copy: Path) -> None:
        (copy / "model.safetensors").unlink()
        with pytest.raises(ModelError, match="holds no weights"):
            read_model_folder(copy)

    @pytest.mark.parametrize("kept", [0, 7, 100, -1])
    def test_weights_cut_short(self, copy: Path, kept: int) -> None:
        weights = copy / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:kept])
        with pytest.raises(ModelError, match=r"cut short|bytes, expected"):
            read_model_folder(copy)

    def test_broken_modules(self, copy: Path) -> None:
        (copy / "modules.json").write_text('[{"idx": 0}]')
        with pytest.raises(ModelError, match=r"modules\.json: can't be read"):
            read_model_folder(copy)
