"""Lance tables: fragments, ranges of rows, deleted rows, and files that are broken or gone."""

from __future__ import annotations

import builtins
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from zephon_core.errors import InputError, MissingExtraError
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.datasets import lance as lance_format

lance = pytest.importorskip("lance")

Opener = Callable[..., Dataset]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.lance"
    rows = pa.table({"text": [f"text {number}" for number in range(100)], "id": range(100)})
    lance.write_dataset(rows, str(path), max_rows_per_file=30).delete("id < 3")
    return path


def test_rows_of_every_fragment(table: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_format, "RANGE_ROWS", 8)
    dataset = opened(table)
    assert sorted(dataset.counts().tolist()) == [10, 27, 30, 30]
    assert int(dataset.raw_bytes().sum()) == sum(file.stat().st_size for file in (table / "data").iterdir())
    assert sorted(dataset.units.rows.tolist(), reverse=True)[:11] == [8] * 10 + [6]
    with dataset.open(["text"]) as reader:
        texts = [
            row["text"]
            for unit in range(len(dataset.units))
            for rows in [reader.read(unit)]
            for row in rows.payloads(range(len(rows.row_bytes)))
        ]
        assert reader.bytes_read > 0
        with pytest.raises(InputError, match="can't be read at a byte"):
            reader.read_at(0, 0)
    assert sorted(texts) == sorted(f"text {number}" for number in range(3, 100))


def test_equal_content_is_equal_elsewhere(table: Path, tmp_path: Path, opened: Opener) -> None:
    shutil.copytree(table, tmp_path / "copy.lance")
    assert opened(table).fingerprint == opened(tmp_path / "copy.lance").fingerprint
    lance.dataset(str(table)).delete("id = 50")
    assert opened(table).fingerprint != opened(tmp_path / "copy.lance").fingerprint


def test_broken_and_absent_files_cost_themselves_only(table: Path, opened: Opener) -> None:
    gone, cut, *_ = sorted((table / "data").iterdir())
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:300])
    dataset = opened(table)
    assert [(problem.url, problem.transient) for problem in dataset.problems] == [(str(gone), True)]
    failed = 0
    with dataset.open() as reader:
        for unit in range(len(dataset.units)):
            try:
                reader.read(unit)
            except InputError:
                failed += 1
    assert failed == 1


def test_a_missing_package_is_named_with_its_install_command(table: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    really_import = builtins.__import__

    def without_lance(name: str, *rest: object) -> object:
        if name == "lance":
            raise ImportError("No module named 'lance'")
        return really_import(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_lance)
    with pytest.raises(MissingExtraError, match=r"pip install 'zephon-flows\[lance\]'"):
        opened(table)
