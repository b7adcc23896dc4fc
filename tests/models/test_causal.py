"""The probability of each token, beside the simplest computation there is, in float64."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from zephon_core.errors import ModelError, SpecError
from zephon_core.models import EncoderOptions, ModelSpec
from zephon_core.models import causal as causal_module
from zephon_core.models.causal import CausalScorer, load_scorer, scorer_name, slice_positions

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
GROUPED = {**SMALL, "num_key_value_heads": 2}
MODELS = {
    "Qwen3ForCausalLM": {**GROUPED, "head_dim": 8, "initializer_range": 0.3},
    "LlamaForCausalLM": {**GROUPED, "initializer_range": 0.3},
    "Gemma2ForCausalLM": {**GROUPED, "head_dim": 8, "final_logit_softcapping": 2.0, "initializer_range": 0.3},
    "GraniteForCausalLM": {**GROUPED, "logits_scaling": 3.0, "initializer_range": 0.3},
    "GPT2LMHeadModel": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "GPTNeoXForCausalLM": SMALL,
}


def plain_scores(folder: Path, ids: np.ndarray) -> np.ndarray:
    """One text at a time, whole logits, float64."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval().double()
    rows = []
    with torch.no_grad():
        for row in torch.from_numpy(ids):
            logs = model(input_ids=row[None]).logits[0, :-1].log_softmax(-1)
            rows.append(logs.gather(1, row[1:, None])[:, 0].numpy())
    return np.stack(rows)


def load(folder: Path, **settings: str) -> CausalScorer:
    return load_scorer(ModelSpec(path=str(folder), **settings))


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 99, (7, 23))


@pytest.mark.parametrize("class_name", MODELS)
def test_scores_are_those_of_float64(save_model: Callable[..., Path], ids: np.ndarray, class_name: str) -> None:
    folder = save_model(class_name, **MODELS[class_name])
    scores = load(folder).score(ids)
    assert scores.dtype == np.float32
    assert np.isnan(scores[:, 0]).all()
    assert np.abs(scores[:, 1:] - plain_scores(folder, ids)).max() < 1e-4


@pytest.mark.parametrize("at_once", [1, 2, 5, 1000])
def test_the_size_of_a_slice_changes_nothing(
    save_model: Callable[..., Path], ids: np.ndarray, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    folder = save_model("Qwen3ForCausalLM", **MODELS["Qwen3ForCausalLM"])
    expected = plain_scores(folder, ids)
    monkeypatch.setattr(causal_module, "slice_positions", lambda *_, **__: at_once)
    assert np.abs(load(folder).score(ids)[:, 1:] - expected).max() < 1e-4


@pytest.mark.parametrize(("settings", "most"), [({"dtype": "bfloat16"}, 0.2), ({"quantization": "8bit"}, 0.5)])
def test_other_arithmetic_is_near(save_model: Callable[..., Path], ids: np.ndarray, settings: dict[str, str], most: float) -> None:
    folder = save_model("Qwen3ForCausalLM", **{**MODELS["Qwen3ForCausalLM"], "hidden_size": 64, "head_dim": 16})
    scores = load(folder, **settings).score(ids)[:, 1:]
    assert 0 < np.abs(scores - plain_scores(folder, ids)).max() < most


def test_four_bits_are_the_four_bit_model(save_model: Callable[..., Path], ids: np.ndarray) -> None:
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    folder = save_model("Qwen3ForCausalLM", **{**MODELS["Qwen3ForCausalLM"], "hidden_size": 64, "head_dim": 16})
    quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantised, device_map={"": "cpu"}).eval()
    with torch.no_grad():
        logs = model(input_ids=torch.from_numpy(ids)).logits[:, :-1].float().log_softmax(-1)
    expected = logs.gather(2, torch.from_numpy(ids)[:, 1:, None])[..., 0].numpy()
    assert np.abs(load(folder, quantization="4bit").score(ids)[:, 1:] - expected).max() < 1e-4


@pytest.mark.parametrize(("sizes", "most"), [({"hidden_size": 48, "intermediate_size": 80}, 1e-4), ({}, 0.2)])
def test_four_bits_of_layers_of_any_width(
    save_model: Callable[..., Path], ids: np.ndarray, sizes: dict[str, int], most: float
) -> None:
    """bitsandbytes packs layers on a CPU by 32 rows and 64 columns; others run too, as what their four bits stand for."""
    import torch
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    folder = save_model("Qwen3ForCausalLM", **{**MODELS["Qwen3ForCausalLM"], **sizes})
    quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantised, device_map={"": "cpu"}).eval()
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, Linear4bit):
                plain = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
                plain.weight.data = dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
                if layer.bias is not None:
                    plain.bias.data = layer.bias.data
                setattr(parent, name, plain)
    with torch.no_grad():
        logs = model(input_ids=torch.from_numpy(ids)).logits[:, :-1].float().log_softmax(-1)
    expected = logs.gather(2, torch.from_numpy(ids)[:, 1:, None])[..., 0].numpy()
    assert np.abs(load(folder, quantization="4bit").score(ids)[:, 1:] - expected).max() < most


def test_a_text_of_one_token_has_no_score(save_model: Callable[..., Path]) -> None:
    folder = save_model("Qwen3ForCausalLM", **MODELS["Qwen3ForCausalLM"])
    assert np.isnan(load(folder).score(np.array([[3], [4]]))).all()


def test_what_is_no_causal_model_is_refused(save_model: Callable[..., Path]) -> None:
    folder = save_model("BertModel", **SMALL)
    with pytest.raises(ModelError, match="is a BertModel, expected a causal language model"):
        load(folder)
    with pytest.raises(SpecError, match="plugins encode, and don't score"):
        load_scorer(ModelSpec(path="some.module:factory"))
    with pytest.raises(SpecError, match="torch, which alone scores"):
        load(folder, engine="openvino")


def test_a_head_that_the_weights_lack_is_refused(save_model: Callable[..., Path], tmp_path: Path) -> None:
    """transformers would make one up. Where the head is the table of words, none is missing."""
    from safetensors.torch import load_file, save_file

    for tied in (True, False):
        folder = tmp_path / str(tied)
        shutil.copytree(save_model("Qwen3ForCausalLM", **MODELS["Qwen3ForCausalLM"], tie_word_embeddings=tied), folder)
        weights = load_file(folder / "model.safetensors")
        weights.pop("lm_head.weight", None)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load(tmp_path / "True")
    with pytest.raises(ModelError, match=r"config\.json: asks for tensors that the weights lack: lm_head\.weight\."):
        load(tmp_path / "False")


def test_ids_that_the_model_lacks_are_refused(save_model: Callable[..., Path]) -> None:
    scorer = load(save_model("Qwen3ForCausalLM", **MODELS["Qwen3ForCausalLM"]))
    with pytest.raises(ModelError, match="holds token id 99"):
        scorer.score(np.array([[1, 99]]))


def test_a_head_that_sees_more_than_the_states_is_refused(save_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    plain = transformers.Qwen3ForCausalLM.forward

    def forward(self: object, input_ids: object = None, **kwargs: object) -> object:
        outputs = plain(self, input_ids=input_ids, **kwargs)
        outputs.logits = outputs.logits + outputs.logits.roll(1, 1)
        return outputs

    folder = save_model("Qwen3ForCausalLM", **MODELS["Qwen3ForCausalLM"])
    monkeypatch.setattr(transformers.Qwen3ForCausalLM, "forward", forward)
    monkeypatch.setattr(causal_module, "slice_positions", lambda *_, **__: 3)
    with pytest.raises(ModelError, match="scores otherwise when its head runs by itself"):
        load(folder)


def test_the_logits_of_a_large_vocabulary_never_exist_at_once(save_model: Callable[..., Path]) -> None:
    """150,000 words and 4,000 positions would take 2.4 GB of logits."""
    folder = save_model("LlamaForCausalLM", **{**GROUPED, "vocab_size": 150_000})
    code = f"""
import numpy as np
from zephon_core.models import ModelSpec
from zephon_core.models.causal import load_scorer
scorer = load_scorer(ModelSpec(path={str(folder)!r}))
scorer.score(np.ones((1, 8), np.int64))
def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
scorer.score(np.random.default_rng(0).integers(0, 150_000, (8, 500)))
print(peak() - before)
"""
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 30 << 20 < grown < 300 << 20
    assert slice_positions(150_000, device="cpu", bytes_a_logit=4) == 111


def test_the_name_is_known_without_loading(save_model: Callable[..., Path]) -> None:
    folder = save_model("Qwen3ForCausalLM", **MODELS["Qwen3ForCausalLM"])
    assert load(folder).name == scorer_name(ModelSpec(path=str(folder)), device="cpu")
    assert scorer_name(ModelSpec(path=str(folder), quantization="4bit"), device="cpu") == "causal"
    with pytest.raises(SpecError, match="a GPU of this machine"):
        load_scorer(ModelSpec(path=str(folder)), EncoderOptions(device="cuda:7"))
