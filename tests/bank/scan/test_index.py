from __future__ import annotations

import json

import numpy as np
import pytest

from zephon_core.bank.scan import index, write_index


@pytest.mark.parametrize("texts_at_once", [1 << 22, 1000, 7])
def test_rows_come_in_order_however_many_passes_it_takes(tmp_path, monkeypatch, texts_at_once):
    monkeypatch.setattr(index, "_TEXTS_AT_ONCE", texts_at_once)
    monkeypatch.setattr(index, "_CHUNK", 300)
    rng = np.random.default_rng(0)
    digests = rng.integers(0, 256, (1234, 20), np.uint8)
    order = np.lexsort(digests.T[::-1])
    np.save(tmp_path / "digests.npy", digests[order])
    np.save(tmp_path / "rows.npy", order.astype(np.uint32))
    write_index(tmp_path, tmp_path / "index.json")
    expected = {digest.tobytes().hex(): row for row, digest in enumerate(digests)}
    assert (tmp_path / "index.json").read_text() == json.dumps(expected)
