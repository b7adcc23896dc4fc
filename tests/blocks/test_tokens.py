"""Rows of token ids, and which of them are looked at more closely."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.blocks import probe_rows


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=200), left_out=st.sets(st.integers(0, 199)))
def test_a_probe_spreads_over_the_lengths_and_leaves_out_what_it_is_told_to(lengths: list[int], left_out: set[int]) -> None:
    left_out = {row for row in left_out if row < len(lengths)}
    rows = probe_rows(np.array(lengths, np.int32), np.array(sorted(left_out), np.int64), most_rows=64, most_tokens=4096).tolist()
    allowed = sorted(set(range(len(lengths))) - left_out, key=lambda row: (lengths[row], row))
    assert len(rows) == len(set(rows)) <= 64
    assert set(rows) <= set(allowed)
    assert bool(rows) == bool(allowed)
    if len(rows) > 1:
        assert lengths[rows[0]] == lengths[allowed[0]]
        assert lengths[rows[-1]] == lengths[allowed[-1]]


def test_a_probe_of_long_texts_has_fewer_of_them() -> None:
    rows = probe_rows(np.full(1000, 512, np.int32), np.zeros(0, np.int64), most_rows=64, most_tokens=4096)
    assert len(rows) == 4096 // 512
