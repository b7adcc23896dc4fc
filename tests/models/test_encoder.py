"""All ways to run a model agree with transformers in plain float32, as closely as their arithmetic allows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_core.errors import ModelError, SpecError
from zephon_core.models import Encoder, EncoderOptions, ModelSpec, load_encoder
from zephon_core.models.encoder import check_ids, forward_name, load_reference

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def plain_mean(folder: Path, groups: list[np.ndarray]) -> np.ndarray:
    """The mean of transformers' last hidden states, written down as simply as can be."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = [model(input_ids=torch.from_numpy(row[None, :])).last_hidden_state[0] for ids in groups for row in ids]
    return np.stack([vectors.mean(0).numpy() for vectors in states])


def lowest_cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(((first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)).min())


def load(path: Path, pooling: str = "mean", **settings: str) -> Encoder:
    return load_encoder(ModelSpec(path=str(path), **settings), EncoderOptions(pooling=pooling))


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_a_bert_agrees_with_transformers(save_model: Callable[..., Path], some_ids: list[np.ndarray], activation: str) -> None:
    folder = save_model("BertModel", **SMALL, hidden_act=activation, initializer_range=0.5)
    encoder = load(folder)
    assert encoder.name == forward_name(ModelSpec(path=str(folder)), device="cpu")
    assert np.abs(encoder.encode(some_ids) - plain_mean(folder, some_ids)).max() < 2e-5


@pytest.mark.parametrize(
    ("class_name", "settings"),
    [
        ("RobertaModel", {}),
        ("XLMRobertaForMaskedLM", {}),
        ("BertForMaskedLM", {}),
        ("DistilBertModel", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
        ("Qwen3ForCausalLM", {"num_key_value_heads": 2, "head_dim": 8}),
        ("T5EncoderModel", {"d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 64}),
    ],
)
def test_other_transformers_agree_too(
    save_model: Callable[..., Path], some_ids: list[np.ndarray], class_name: str, settings: dict[str, int]
) -> None:
    base = {"vocab_size": 99} if class_name.startswith(("Distil", "T5")) else SMALL
    folder = save_model(class_name, **base, **settings)
    if class_name.startswith("T5"):
        reference = load_reference(ModelSpec(path=str(folder)), EncoderOptions(pooling="mean")).encode(some_ids)
    else:
        reference = plain_mean(folder, some_ids)
    assert np.abs(load(folder).encode(some_ids) - reference).max() < 1e-5


def test_ids_that_are_padding_in_training_are_ordinary_here(save_model: Callable[..., Path]) -> None:
    folder = save_model("RobertaModel", **SMALL)
    ids = [np.array([[5, 1, 7], [1, 1, 1]])]
    assert np.abs(load(folder).encode(ids) - plain_mean(folder, ids)).max() < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_features_do_not_depend_on_what_shares_the_forward_pass(minilm_folder: Path, dtype: str) -> None:
    encoder = load(minilm_folder, dtype=dtype)
    assert encoder.ragged
    rng = np.random.default_rng(1)
    groups = [rng.integers(1000, 30000, shape) for shape in ((2, 250), (20, 61), (1, 33), (7, 12), (30, 5), (2, 1), (1, 1))]
    together = encoder.encode(groups)
    one_by_one = np.concatenate([encoder.encode([row[None, :]]) for ids in groups for row in ids])
    assert (together == one_by_one).all()
    backwards = encoder.encode([ids[::-1] for ids in groups[::-1]])[::-1]
    assert (together == backwards).all()


def test_weights_shared_between_processes_give_the_same_features(minilm_folder: Path, some_ids: list[np.ndarray]) -> None:
    spec = ModelSpec(path=str(minilm_folder))
    many = load_encoder(spec, EncoderOptions(pooling="mean", copies=1000))
    assert (many.encode(some_ids) == load(minilm_folder).encode(some_ids)).all()


def test_inner_and_outer_give_the_same_features(qwen_folder: Path, some_ids: list[np.ndarray]) -> None:
    inner, outer = (load(qwen_folder, backbone=backbone).encode(some_ids) for backbone in ("inner", "outer"))
    assert (inner == outer).all()


def test_a_masked_language_model_has_an_outer_too(save_model: Callable[..., Path], some_ids: list[np.ndarray]) -> None:
    folder = save_model("BertForMaskedLM", **SMALL)
    assert np.abs(load(folder, backbone="outer").encode(some_ids) - plain_mean(folder, some_ids)).max() < 1e-5


def test_a_classifier_has_no_outer(save_model: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match="BertForSequenceClassification, no language model"):
        load(save_model("BertForSequenceClassification", **SMALL), backbone="outer")


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"dtype": "bfloat16"}, 0.9999),
        ({"dtype": "float16"}, 0.9999),
        ({"quantization": "8bit"}, 0.99),
        ({"quantization": "4bit"}, 0.9),
        ({"quantization": "4bit", "dtype": "bfloat16"}, 0.9),
    ],
)
def test_lower_precisions_stay_close_on_a_cpu_and_are_quiet(
    qwen_folder: Path, some_ids: list[np.ndarray], settings: dict[str, str], least: float
) -> None:
    encoder = load(qwen_folder, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        features = encoder.encode(some_ids)
    assert features.dtype == np.float32
    assert lowest_cosine(features, plain_mean(qwen_folder, some_ids)) > least


_LOAD_QUANTISED = """
import logging, sys
logging.basicConfig(level=logging.WARNING)
import numpy as np
from zephon_core.models import EncoderOptions, ModelSpec, load_encoder
for quantization in ("8bit", "4bit"):
    encoder = load_encoder(ModelSpec(path=sys.argv[1], quantization=quantization), EncoderOptions(pooling="mean"))
    encoder.encode([np.ones((2, 5), np.int64)] * 3)
logging.getLogger("bitsandbytes.autograd._functions").warning("something else")
"""


def test_quantised_models_leave_the_terminal_alone(qwen_folder: Path) -> None:
    """In a process of its own, as in a build: bitsandbytes logs when it is imported and at every product."""
    command = [sys.executable, "-c", _LOAD_QUANTISED, str(qwen_folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "MatMul8bitLt" not in result.stderr
    assert "gemm_4bit" not in result.stderr
    assert "something else" in result.stderr  # whatever else there is to say is heard


def altered(folder: Path, target: Path, changes: dict[str, Any]) -> Path:
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


@pytest.mark.parametrize("kind", ["bert", "qwen"])
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"num_hidden_layers": 3, "layer_types": None},
            r"config\.json: asks for tensors that the weights lack: .*layers?\.2\..* more\.",
        ),
        (
            {"num_hidden_layers": 1, "layer_types": None},
            r"config\.json: asks for fewer layers than the weights have: .*layers?\.1\..* more would be left out\.",
        ),
        ({"vocab_size": 50}, r"config\.json: asks for other shapes .*: .*embed.* there, \[50, \d+\] asked for\)"),
        ({"intermediate_size": 65}, r"config\.json: asks for other shapes .*\[65"),
        ({"num_attention_heads": "x"}, r"config\.json: contradicts itself \(.*num_attention_heads.*\)"),
        ({"num_attention_heads": 0}, r"can't be loaded by transformers .*ZeroDivisionError"),
        ({"hidden_act": "nope"}, r"can't be loaded by transformers .*nope"),
        ({"model_type": "nope"}, r"can't be loaded by transformers .*nope"),
    ],
)
def test_a_config_that_contradicts_the_weights_is_named_in_one_line(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, changes: dict[str, Any], complaint: str
) -> None:
    folder = altered(request.getfixturevalue(f"{kind}_folder"), tmp_path / "model", changes)
    with pytest.raises(ModelError, match=complaint) as caught:
        load(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("Download the model again, or correct its config.json.")


_DEEP = {
    "BertForMaskedLM": ("num_hidden_layers", SMALL),
    "RobertaModel": ("num_hidden_layers", SMALL),
    "DistilBertModel": ("n_layers", {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "GPT2LMHeadModel": ("n_layer", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "T5ForConditionalGeneration": (
        "num_layers",
        {"vocab_size": 99, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "d_kv": 8},
    ),
    "Qwen3MoeForCausalLM": (
        "num_hidden_layers",
        {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    ),
}


@pytest.mark.parametrize("class_name", _DEEP)
@pytest.mark.parametrize("backbone", ["inner", "outer"])
def test_a_model_is_never_cut_short_silently(
    save_model: Callable[..., Path], tmp_path: Path, class_name: str, backbone: str
) -> None:
    name, settings = _DEEP[class_name]
    folder = save_model(class_name, **settings)
    load(folder, backbone=backbone)
    with pytest.raises(ModelError, match="asks for fewer layers than the weights have: "):
        load(altered(folder, tmp_path / "model", {name: 1, "layer_types": None}), backbone=backbone)


def test_layers_that_config_and_weights_count_differently_are_a_model_error(qwen_folder: Path, tmp_path: Path) -> None:
    """What transformers checks of a config by itself comes as an exception of its own kind."""
    folder = altered(qwen_folder, tmp_path / "model", {"num_hidden_layers": 1, "layer_types": ["full_attention"] * 2})
    with pytest.raises(ModelError, match=r"config\.json: contradicts itself .*num_hidden_layers.*layer_types"):
        load(folder)


def test_a_head_that_the_weights_lack_is_not_missed(save_model: Callable[..., Path], some_ids: list[np.ndarray]) -> None:
    folder = save_model("BertForMaskedLM", **SMALL)  # no pooler
    assert np.abs(load(folder, dtype="float16").encode(some_ids) - plain_mean(folder, some_ids)).max() < 1e-2


@pytest.mark.parametrize("path", ["word:words", "folder"])
@pytest.mark.parametrize("device", ["cuda:99", "cuda:300"])
def test_a_gpu_that_is_not_there_is_refused_whatever_the_model(bert_folder: Path, path: str, device: str) -> None:
    spec = ModelSpec(path=str(bert_folder) if path == "folder" else path)
    with pytest.raises(SpecError, match=f"device: is {device}, expected a GPU of this machine. Set device: auto or cpu."):
        load_encoder(spec, EncoderOptions(pooling="model", device=device))


@pytest.mark.parametrize("class_name", ["BertModel", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_padding_is_masked(save_model: Callable[..., Path], class_name: str, dtype: str) -> None:
    more = {"num_key_value_heads": 2, "head_dim": 8} if class_name.startswith("Qwen") else {}
    folder = save_model(class_name, **SMALL, **more)
    encoder = load(folder, dtype=dtype)
    rng = np.random.default_rng(5)
    lengths = np.array([9, 9, 7, 2, 1])
    ids = rng.integers(1, 99, (5, 9))
    padded = encoder.encode_padded(ids, lengths)
    exact = np.concatenate([encoder.encode([ids[row : row + 1, :length]]) for row, length in enumerate(lengths)])
    assert np.abs(padded - exact).max() < (1e-5 if dtype == "float32" else 2e-2)
    ids[np.arange(9) >= lengths[:, None]] = 0
    assert (encoder.encode_padded(ids, lengths) == padded).all() or dtype == "float32"


def test_openvino_agrees_with_transformers(qwen_folder: Path, bert_folder: Path, some_ids: list[np.ndarray]) -> None:
    pytest.importorskip("openvino")
    for folder in (bert_folder, qwen_folder):
        encoder = load(folder, engine="openvino")
        assert np.abs(encoder.encode(some_ids) - plain_mean(folder, some_ids)).max() < 1e-5
        ids, lengths = np.array([[4, 5, 6], [7, 8, 0]]), np.array([3, 2])
        exact = encoder.encode([ids[:1], ids[1:, :2]])
        assert np.abs(encoder.encode_padded(ids, lengths) - exact).max() < 1e-5
    with pytest.raises(SpecError, match="expected torch"):
        load(qwen_folder, engine="openvino", quantization="4bit")


class TestPooling:
    @pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"])
    def test_a_sentence_transformers_folder_pools_as_that_library_does(
        self, sentence_folder: Callable[..., Path], some_ids: list[np.ndarray], mode: str
    ) -> None:
        pooling = pytest.importorskip("sentence_transformers.sentence_transformer.modules.pooling")
        import torch
        from transformers import AutoModel

        folder = sentence_folder(["Transformer", "Pooling", "Normalize"], {"pooling_mode": [mode, "cls"]})
        encoder = load(folder, "model")
        model = AutoModel.from_pretrained(folder).eval()
        judge = pooling.Pooling(32, (mode, "cls"))
        for ids in some_ids:
            with torch.no_grad():
                states = model(input_ids=torch.from_numpy(ids)).last_hidden_state
                mask = torch.ones_like(torch.from_numpy(ids))
                wanted = judge({"token_embeddings": states, "attention_mask": mask})["sentence_embedding"].numpy()
            assert encoder.hidden_size == wanted.shape[1] == 64
            assert np.abs(encoder.encode([ids]) - wanted).max() < 1e-5

    @pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"])
    def test_padding_does_not_count(self, mode: str) -> None:
        import torch

        from zephon_core.models.pooling import pool

        states = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
        lengths = torch.tensor([5, 3, 1])
        masked = pool(states, (mode,), lengths)
        for row, length in enumerate(lengths.tolist()):
            assert torch.allclose(masked[row], pool(states[row : row + 1, :length], (mode,))[0], atol=1e-6)

    def test_last_and_cls_take_that_token(self, bert_folder: Path) -> None:
        import torch
        from transformers import AutoModel

        ids = np.array([[4, 5, 6], [7, 8, 9]])
        with torch.no_grad():
            states = AutoModel.from_pretrained(bert_folder).eval()(input_ids=torch.from_numpy(ids)).last_hidden_state.numpy()
        assert np.abs(load(bert_folder, "cls").encode([ids]) - states[:, 0]).max() < 1e-5
        assert np.abs(load(bert_folder, "last").encode([ids]) - states[:, -1]).max() < 1e-5

    def test_modules_that_are_not_run_are_refused_by_name_unless_they_are_passed_over(
        self, sentence_folder: Callable[..., Path], some_ids: list[np.ndarray]
    ) -> None:
        folder = sentence_folder(["Transformer", "Pooling", "Dense"], {"pooling_mode": "cls"})
        with pytest.raises(ModelError, match=r"Dense \(2_Dense\)"):
            load(folder, "model")
        assert len(load(folder, "mean").encode(some_ids)) == 12


class TestRefusals:
    def test_ids_beyond_the_vocabulary_are_named(self, bert_folder: Path) -> None:
        encoder = load(bert_folder)
        check_ids(encoder, np.array([[98]]), where="x")
        with pytest.raises(ModelError, match=r"token id 99, expected ids below the model's 99.*tokenizer"):
            check_ids(encoder, np.array([[1, 99]]), where="x")

    def test_texts_longer_than_the_positions_are_named(self, bert_folder: Path) -> None:
        encoder = load(bert_folder)
        check_ids(encoder, np.ones((1, 64), np.int64), where="x")
        with pytest.raises(ModelError, match=r"65 tokens, expected at most the model's 64\. Set max_key_tokens to 64"):
            check_ids(encoder, np.ones((1, 65), np.int64), where="x")

    def test_code_in_a_folder_runs_only_if_its_class_is_named(self, bert_folder: Path, tmp_path: Path) -> None:
        import json
        import shutil

        folder = Path(shutil.copytree(bert_folder, tmp_path / "model"))
        config = json.loads((folder / "config.json").read_bytes())
        config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "own.py").write_text(
            "from transformers import BertConfig, BertModel\n"
            "class OwnConfig(BertConfig):\n    model_type = 'own'\n"
            "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
        )
        with pytest.raises(ModelError, match="can't be loaded by transformers"):
            load(folder)
        with pytest.raises(ModelError, match="names no class Other of its own, expected OwnConfig, OwnModel"):
            load(folder, remote_code="Other")
        ids = [np.array([[4, 5]])]
        allowed = load(folder, remote_code="OwnModel").encode(ids)
        assert np.abs(allowed - plain_mean(bert_folder, ids)).max() < 1e-5

    def test_an_absent_gpu_is_named(self, bert_folder: Path) -> None:
        with pytest.raises(SpecError, match="cuda:7"):
            load_encoder(ModelSpec(path=str(bert_folder)), EncoderOptions(device="cuda:7"))

    def test_pooling_is_a_plugins_own_business(self) -> None:
        with pytest.raises(SpecError, match="pooling"):
            load_encoder(ModelSpec(path="any.module:factory"), EncoderOptions(pooling="mean"))


def test_a_real_model_agrees_with_an_independent_masked_mean(minilm_folder: Path) -> None:
    import torch
    from transformers import AutoModel

    rng = np.random.default_rng(2)
    lengths = np.sort(rng.integers(1, 90, 60))[::-1]
    ids = rng.integers(1000, 30000, (60, int(lengths.max())))
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    model = AutoModel.from_pretrained(minilm_folder).eval()
    with torch.no_grad():
        states = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask.astype(np.int64))).last_hidden_state
    wanted = (states.numpy() * mask[:, :, None]).sum(1) / lengths[:, None]
    encoder = load(minilm_folder)
    found = np.concatenate([encoder.encode([ids[row : row + 1, :length]]) for row, length in enumerate(lengths)])
    assert lowest_cosine(found, wanted) >= 0.99999
    assert lowest_cosine(load(minilm_folder, dtype="bfloat16").encode([ids[:4, :40]]), encoder.encode([ids[:4, :40]])) > 0.9999
