"""A file of rows is a standard .npy file whatever the order of its writes; checksums notice any change and any swap."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.blocks.rows import RowFile, RowLayout, block_checksum, row_checksums
from zephon_core.errors import ArtifactError, CorruptArtifactError

HALF = np.dtype(np.float16)


def filled(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((rows, width)).astype(np.float16)


@given(order=st.permutations(range(13)), cut=st.integers(0, 13))
def test_rows_written_in_any_order_make_the_file_that_numpy_makes(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], cut: int
) -> None:
    values = filled(13, 5)
    path = tmp_path_factory.mktemp("matrix") / "features.f16.npy"
    for part in (order[:cut], order[cut:]):
        with RowFile(path, RowLayout.matrix(13, 5, HALF)) as matrix:
            if part:
                matrix.write(np.array(part), values[part])
                matrix.sync()
                assert (matrix.read(np.array(part)) == values[part]).all()
    expected = io.BytesIO()
    np.save(expected, values)
    assert path.read_bytes() == expected.getvalue()
    assert path.stat().st_size == RowLayout.matrix(13, 5, HALF).file_bytes


def test_opening_a_matrix_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    RowFile(path, RowLayout.matrix(3, 2, HALF)).close()
    os.utime(path, ns=(1, 1))
    RowFile(path, RowLayout.matrix(3, 2, HALF)).close()
    assert path.stat().st_mtime_ns == 1


@pytest.mark.parametrize("shape", [(4, 2), (3, 3)])
def test_a_matrix_of_another_shape_is_not_overwritten(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = tmp_path / "m.npy"
    RowFile(path, RowLayout.matrix(3, 2, HALF)).close()
    before = path.read_bytes()
    with pytest.raises(CorruptArtifactError, match="is no array"):
        RowFile(path, RowLayout.matrix(*shape, HALF))
    assert path.read_bytes() == before


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="GB free, expected"):
        RowFile(tmp_path / "m.npy", RowLayout.matrix(1 << 40, 1 << 12, HALF))


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with RowFile(tmp_path / "m.npy", RowLayout.matrix(3, 2, HALF)) as file:
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, file._handle)
        os.close(full)
        with pytest.raises(ArtifactError, match="disk is full"):
            file.write(np.array([0]), np.ones((1, 2), HALF))


@given(row=st.integers(0, 3), place=st.integers(0, 4), other=st.integers(0, 3))
def test_a_changed_number_and_swapped_rows_change_the_checksum(row: int, place: int, other: int) -> None:
    rows, values = np.array([8, 2, 5, 6]), filled(4, 5)
    whole = block_checksum(rows, values)
    changed = values.copy()
    changed[row, place] += 1
    assert block_checksum(rows, changed) != whole
    swapped = values.copy()
    swapped[[row, other]] = swapped[[other, row]]
    assert (block_checksum(rows, swapped) == whole) == (row == other)


def test_a_checksum_is_the_sum_of_its_rows_in_any_order() -> None:
    rows, values = np.array([8, 2, 5, 6]), filled(4, 5)
    order = np.array([2, 0, 3, 1])
    assert block_checksum(rows, values) == block_checksum(rows[order], values[order])
    assert block_checksum(rows, values) == sum(map(int, row_checksums(rows, values))) % 2**64


LENGTHS = np.array([3, 0, 5, 5, 1, 0, 4, 5])


@given(order=st.permutations(range(8)), cut=st.integers(0, 8))
def test_ragged_rows_too_make_the_file_that_numpy_makes(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], cut: int
) -> None:
    layout = RowLayout.ragged(LENGTHS, HALF)
    values = filled(1, int(LENGTHS.sum()))[0]
    rows = np.split(values, np.cumsum(LENGTHS)[:-1])
    path = tmp_path_factory.mktemp("ragged") / "scores.npy"
    for part in (order[:cut], order[cut:]):
        with RowFile(path, layout) as file:
            for row in part:
                file.write(np.array([row]), rows[row][None])
                assert (file.read(np.array([row])) == rows[row]).all()
    expected = io.BytesIO()
    np.save(expected, values)
    assert path.read_bytes() == expected.getvalue()
    assert path.stat().st_size == layout.file_bytes


def test_equally_long_ragged_rows_are_read_and_written_together(tmp_path: Path) -> None:
    with RowFile(tmp_path / "r.npy", RowLayout.ragged(LENGTHS, HALF)) as file:
        values = filled(3, 5)
        file.write(np.array([2, 3, 7]), values)
        assert (file.read(np.array([7, 2, 3])) == values[[2, 0, 1]]).all()
        assert not file.read(np.array([0])).any()


@pytest.mark.parametrize("layout", [RowLayout.matrix(7, 5, HALF), RowLayout.ragged(np.array([3, 0, 5, 5, 1, 0, 9]), HALF)])
@pytest.mark.parametrize("left_out", [[], [0, 6], [1, 2, 3, 4, 5], list(range(7))])
def test_checksums_of_a_file_are_those_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: RowLayout, left_out: list[int]
) -> None:
    monkeypatch.setattr("zephon_core.blocks.rows._CHUNK_BYTES", 25)
    values = filled(1, layout.elements_before(7))[0]
    with RowFile(tmp_path / "m.npy", layout) as file:
        rows = [values[layout.elements_before(row) : layout.elements_before(row + 1)][None] for row in range(7)]
        for row, stored in enumerate(rows):
            file.write(np.array([row]), stored)
        wanted = ~np.isin(np.arange(7), left_out)
        chunks = list(file.checksums(wanted))
    found = {int(row): int(checksum) for some, checksums in chunks for row, checksum in zip(some, checksums, strict=True)}
    assert found == {row: block_checksum(np.array([row]), rows[row]) for row in np.flatnonzero(wanted).tolist()}
    assert list(found) == sorted(found)
    assert left_out or len(chunks) > 2


def test_many_that_begin_at_once_make_one_file(tmp_path: Path) -> None:
    layout = RowLayout.matrix(400, 16, HALF)
    for number in range(20):
        path, begin = tmp_path / f"{number}.npy", Barrier(8)

        def write(row: int, path: Path = path, begin: Barrier = begin) -> None:
            begin.wait()
            with RowFile(path, layout) as file:
                file.write(np.array([row]), np.full((1, 16), row + 1, HALF))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        assert np.load(path)[:9, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    assert len(list(tmp_path.iterdir())) == 20


def test_a_file_killed_in_the_making_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "m.npy"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "hardlink_to", killed)
        with pytest.raises(KeyboardInterrupt):
            RowFile(path, RowLayout.matrix(3, 2, HALF))
    assert not path.exists()
    RowFile(path, RowLayout.matrix(3, 2, HALF)).close()
    assert np.load(path).shape == (3, 2)


def test_where_there_are_no_links_a_file_is_made_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    RowFile(tmp_path / "m.npy", RowLayout.matrix(3, 2, HALF)).close()
    assert np.load(tmp_path / "m.npy").shape == (3, 2)
    assert len(list(tmp_path.iterdir())) == 1
