"""What a tokenizer is known by is remembered by the bytes of its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from zephon_core.errors import TokenizerError
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import identify_tokenizer, load_tokenizer


@pytest.fixture
def folder(tmp_path: Path, minilm_folder: Path) -> Path:
    """A copy of a tokenizer's folder."""
    place = tmp_path / "tokenizer"
    place.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm_folder / name, place / name)
    return place


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def notes(store: ArtifactStore) -> list[Path]:
    return sorted((store.root / "memo" / "tokenizers").iterdir())


def test_the_identity_is_that_of_the_loaded_tokenizer_at_first_and_from_memory(folder: Path, store: ArtifactStore) -> None:
    expected = load_tokenizer(folder).content_sha256
    for place in (folder, folder / "tokenizer.json", str(folder)):
        assert [identify_tokenizer(place, store) for _ in range(2)] == [expected] * 2
    assert load_tokenizer(folder, store=store).content_sha256 == expected


def test_what_is_known_is_not_worked_out_again(folder: Path, store: ArtifactStore) -> None:
    identify_tokenizer(folder, store)
    for note in notes(store):
        note.write_text("0" * 64)  # so that an answer from memory shows
    assert identify_tokenizer(folder, store) == "0" * 64
    assert load_tokenizer(folder, store=store).content_sha256 == "0" * 64
    definition = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(definition))  # other bytes
    assert identify_tokenizer(folder, store) == load_tokenizer(folder).content_sha256


def test_a_broken_note_or_a_store_that_cannot_be_written_costs_nothing_else(
    folder: Path, store: ArtifactStore, tmp_path: Path
) -> None:
    expected = identify_tokenizer(folder, store)
    for note in notes(store):
        note.write_text("cut sho")
    assert identify_tokenizer(folder, store) == expected
    blocked = tmp_path / "file"
    blocked.touch()
    assert identify_tokenizer(folder, ArtifactStore(blocked)) == expected


def test_a_contradicting_configuration_is_refused_whatever_is_known_of_the_tokenizer(folder: Path, store: ArtifactStore) -> None:
    identify_tokenizer(folder, store)
    identify_tokenizer(folder / "tokenizer.json", store)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "do_lower_case": False}))
    for _ in range(2):
        with pytest.raises(TokenizerError, match="do_lower_case"):
            identify_tokenizer(folder, store)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(TokenizerError, match="holds no tokenizer"):
        identify_tokenizer(folder, store)
