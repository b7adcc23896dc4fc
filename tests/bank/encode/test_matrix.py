"""The matrix is a standard .npy file whatever the order of its writes; checksums notice any change and any swap."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.bank.encode.matrix import FeatureMatrix, block_checksum, matrix_bytes, row_checksums
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
        with FeatureMatrix(path, 13, 5, HALF) as matrix:
            if part:
                matrix.write(np.array(part), values[part])
                matrix.sync()
                assert (matrix.read(np.array(part)) == values[part]).all()
    expected = io.BytesIO()
    np.save(expected, values)
    assert path.read_bytes() == expected.getvalue()
    assert path.stat().st_size == matrix_bytes(13, 5, HALF)


def test_opening_a_matrix_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    FeatureMatrix(path, 3, 2, HALF).close()
    os.utime(path, ns=(1, 1))
    FeatureMatrix(path, 3, 2, HALF).close()
    assert path.stat().st_mtime_ns == 1


@pytest.mark.parametrize("shape", [(4, 2), (3, 3)])
def test_a_matrix_of_another_shape_is_not_overwritten(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = tmp_path / "m.npy"
    FeatureMatrix(path, 3, 2, HALF).close()
    before = path.read_bytes()
    with pytest.raises(CorruptArtifactError, match="is no matrix"):
        FeatureMatrix(path, *shape, HALF)
    assert path.read_bytes() == before


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="GB free, expected"):
        FeatureMatrix(tmp_path / "m.npy", 1 << 40, 1 << 12, HALF)


def test_a_full_disk_is_an_error_that_says_so() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(ArtifactError, match="disk is full"):
        FeatureMatrix(full, 3, 2, HALF)


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


def test_chunks_cover_the_matrix_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon_core.bank.encode.matrix._CHUNK_BYTES", 25)
    values = filled(7, 5)
    with FeatureMatrix(tmp_path / "m.npy", 7, 5, HALF) as matrix:
        matrix.write(np.arange(7), values)
        chunks = list(matrix.chunks())
    assert len(chunks) == 4
    assert np.concatenate([rows for rows, _ in chunks]).tolist() == list(range(7))
    assert (np.concatenate([stored for _, stored in chunks]) == values).all()
