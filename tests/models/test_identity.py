"""A model's identity changes with every file that decides its features, and with no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from zephon_core.errors import ModelError
from zephon_core.fingerprint import file_sha256
from zephon_core.models import ModelSpec, model_content_sha256


@pytest.fixture
def copy(minilm_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(minilm_folder, tmp_path / "model"))


def test_place_tokenizer_and_papers_do_not_count(copy: Path, minilm_folder: Path) -> None:
    (copy / "README.md").write_text("other")
    (copy / "tokenizer.json").unlink()
    (copy / "unused.py").write_text("1")
    assert model_content_sha256(copy) == model_content_sha256(ModelSpec(path=str(minilm_folder), dtype="bfloat16"))


@pytest.mark.parametrize("name", ["config.json", "modules.json", "1_Pooling/config.json"])
def test_configuration_counts(copy: Path, minilm_folder: Path, name: str) -> None:
    (copy / name).write_bytes((copy / name).read_bytes() + b"\n")
    assert model_content_sha256(copy) != model_content_sha256(minilm_folder)


def test_one_bit_of_the_weights_counts(copy: Path, minilm_folder: Path) -> None:
    with (copy / "model.safetensors").open("r+b") as handle:
        handle.seek(-1, 2)
        last = handle.read(1)[0]
        handle.seek(-1, 2)
        handle.write(bytes([last ^ 1]))
    assert model_content_sha256(copy) != model_content_sha256(minilm_folder)


def test_code_counts_only_where_it_may_run(copy: Path) -> None:
    allowed = ModelSpec(path=str(copy), remote_code="Own")
    before = model_content_sha256(copy), model_content_sha256(allowed)
    (copy / "modeling.py").write_text("x = 1")
    assert model_content_sha256(copy) == before[0]
    assert model_content_sha256(allowed) != before[1]


def test_hashes_are_asked_of_the_caller(minilm_folder: Path) -> None:
    asked: list[str] = []

    def remember(path: Path) -> str:
        asked.append(path.name)
        return file_sha256(path)

    assert model_content_sha256(minilm_folder, hash_file=remember) == model_content_sha256(minilm_folder)
    assert sorted(asked) == ["config.json", "config.json", "model.safetensors", "modules.json"]


class TestPlugins:
    @pytest.fixture
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.syspath_prepend(str(tmp_path))
        path = tmp_path / "identity_plugin.py"
        path.write_text(
            "import numpy as np\n"
            "class Plain:\n"
            "    hidden_size = 2\n"
            "    def encode(self, ids): return np.ones((len(ids), 2), np.float32)\n"
            "class Known(Plain):\n"
            "    content_sha256 = 'abc'\n"
            "def by_function(): return Plain()\n"
            "def by_attribute(): raise AssertionError('need not be called')\n"
            "by_attribute.content_sha256 = 'abc'\n"
        )
        return path

    def test_source_is_the_identity_of_a_plugin_that_says_nothing(self, module: Path) -> None:
        before = model_content_sha256("identity_plugin:by_function")
        assert before != model_content_sha256("identity_plugin:Plain")
        module.write_text(module.read_text() + "\n")
        assert model_content_sha256("identity_plugin:by_function") != before

    def test_a_plugin_can_say_what_it_is(self, module: Path) -> None:
        for name in ("Known", "by_attribute"):
            before = model_content_sha256(f"identity_plugin:{name}")
            module.write_text(module.read_text() + "\n")
            assert model_content_sha256(f"identity_plugin:{name}") == before

    @pytest.mark.parametrize("name", ["absent.module:factory", "identity_plugin:absent", "identity_plugin:np"])
    def test_what_cannot_be_imported_is_named(self, module: Path, name: str) -> None:
        with pytest.raises(ModelError, match=name):
            model_content_sha256(name)
