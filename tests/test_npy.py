"""Files of arrays that grow: what numpy writes, to the byte."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from zephon_core.npy import HEADER_BYTES, NpyWriter, npy_header


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["<u4", "<i8", "<f4", "|b1"])
@pytest.mark.parametrize("shape", [(0,), (7,), (3, 2)])
def test_a_header_is_numpys(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    header = npy_header(array.dtype, *shape)
    assert len(header) == HEADER_BYTES and header + array.tobytes() == saved(array)


def test_what_is_appended_is_one_array(tmp_path: Path) -> None:
    parts = [np.arange(3), np.arange(0), np.arange(5)]
    with closing(NpyWriter(tmp_path / "a.npy", np.uint32)) as writer:
        for part in parts:
            writer.append(part)
        assert writer.rows == 8
        with pytest.raises((ValueError, EOFError)):
            np.load(tmp_path / "a.npy")  # unreadable until it is whole
    assert (tmp_path / "a.npy").read_bytes() == saved(np.concatenate(parts).astype(np.uint32))
    with closing(NpyWriter(tmp_path / "b.npy", np.uint8, 2)) as writer:
        writer.append(np.array([[1, 2]]))
        writer.append(np.array([[3, 4], [5, 6]]))
    assert np.load(tmp_path / "b.npy").tolist() == [[1, 2], [3, 4], [5, 6]]
