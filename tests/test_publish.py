"""Published folders: whole or not at all, left alone where they are right, and never in the place of something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zephon_core.errors import SpecError
from zephon_core.publish import PublishedKind, output_place
from zephon_core.store import ArtifactRef, ArtifactStore, Recipe
from zephon_core.upkeep import list_entries

CAKES = PublishedKind("cakes.json", "cakes")


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def baked(store: ArtifactStore, kind: str, **files: str) -> ArtifactRef:
    def produce(directory: Path) -> dict[str, object]:
        for name, content in files.items():
            (directory / name).write_text(content)
        return {}

    return store.build(Recipe.made_of(kind, 1, {}, files), produce).ref


def test_files_of_several_artifacts_lie_together_under_a_manifest(store: ArtifactStore, tmp_path: Path) -> None:
    parts = {"cake": baked(store, "cake", dough="flour"), "icing": baked(store, "icing", top="sugar")}
    output = tmp_path / "deep" / "out"
    assert CAKES.publish(store, "mine", parts, output) == output
    manifest = json.loads((output / "cakes.json").read_bytes())
    assert manifest["name"] == "mine" and list(manifest["files"]) == ["dough", "top"]
    assert manifest["fingerprints"] == {name: ref.fingerprint for name, ref in parts.items()}
    assert (output / "dough").samefile(parts["cake"].path / "dough")
    assert all(entry.published for entry in list_entries(store))
    before = (output / "cakes.json").stat()
    CAKES.publish(store, "mine", parts, output)
    assert (output / "cakes.json").stat() == before  # left alone
    (output / "top").unlink()
    (output / "top").write_text("salt")
    CAKES.publish(store, "mine", parts, output)
    assert (output / "top").read_text() == "sugar"
    CAKES.publish(store, "mine", {"cake": baked(store, "cake", dough="rye")}, output)
    assert {file.name for file in output.iterdir()} == {"dough", "cakes.json"} and (output / "dough").read_text() == "rye"
    assert [file.name for file in output.parent.iterdir()] == ["out"]


def test_nothing_else_is_replaced(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("words")
    wanted = "a new folder, an empty one, or one that holds cakes"
    with pytest.raises(SpecError, match=f"holds files that are no cakes, expected {wanted}"):
        CAKES.check_output(str(tmp_path / "thesis"))
    with pytest.raises(SpecError, match="holds files that are no cakes"):
        CAKES.publish(store, "mine", {"cake": baked(store, "cake", dough="flour")}, tmp_path / "thesis")
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    for place in ("thesis/chapter.txt", "thesis/chapter.txt/below"):
        with pytest.raises(SpecError, match=f"is no folder, expected {wanted}"):
            CAKES.check_output(str(tmp_path / place))
    (tmp_path / "empty").mkdir()
    for place in ("empty", "new", "new/deep"):
        CAKES.check_output(str(tmp_path / place))


@pytest.mark.parametrize("url", ["s3://bucket/out", "file:///tmp/out", "memory://out"])
def test_a_url_is_no_folder(url: str) -> None:
    with pytest.raises(SpecError, match=r"is a URL, expected a folder.*store push"):
        output_place(url, wanted="a folder")


def test_an_output_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert output_place("out", wanted="a folder") == tmp_path / "out"
