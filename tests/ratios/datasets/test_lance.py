"""Lance tables: fragments, ranges of rows, deleted rows, and files that are broken or gone."""

from __future__ import annotations

import builtins
import re
import shutil
import subprocess
import sys
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


READ_ALL = """
import sys
from zephon_core.errors import InputError
from zephon_core.ratios.datasets import Dataset
from zephon_core.store import ArtifactStore

dataset = Dataset.from_path("x", sys.argv[1], store=ArtifactStore(sys.argv[2]))
print(*(f"problem {problem.url}: {problem.reason}" for problem in dataset.problems), sep="\\n")
with dataset.open() as reader:
    for unit in range(len(dataset.units)):
        try:
            print("read", len(reader.read(unit).row_bytes))
        except InputError as error:
            print("error", error)
"""


def far_too_many_columns(content: bytes) -> bytes:
    return content[:-12] + b"\xff" * 4 + content[-8:]


def error_with_a_zero_byte(content: bytes) -> bytes:
    return re.sub(rb"lance\.encodings(\w*)\.PageLayout", rb"lance\0encodings\1.PageLayout", content)


def block_far_outside(content: bytes) -> bytes:
    return content[:-100] + b"\xff" * 40 + content[-60:]


@pytest.mark.parametrize(
    ("folder", "spoil", "said"),
    [
        ("data", far_too_many_columns, "has a broken footer (4,294,967,295 columns"),
        ("data", error_with_a_zero_byte, "can't be decoded"),
        ("data", lambda content: content[:20], "has 20 bytes"),
        ("_deletions", block_far_outside, "can't be decoded"),
    ],
)
def test_what_would_end_the_process_costs_its_fragment_only(
    table: Path, tmp_path: Path, folder: str, spoil: Callable[[bytes], bytes], said: str
) -> None:
    file = sorted((table / folder).iterdir())[0]
    content = file.read_bytes()
    assert spoil(content) != content
    file.write_bytes(spoil(content))
    command = [sys.executable, "-c", READ_ALL, str(table), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.split("\n")
    assert [line for line in lines if said in line], done.stdout
    assert len([line for line in lines if line.startswith("read ")]) == 3
