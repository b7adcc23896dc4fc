"""Nothing that isn't a number, isn't finite or overflows is stored as if it were a feature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from zephon_core.bank.encode.features import finish_features
from zephon_core.blocks import Flaw

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("value", "flaw"), [(np.nan, Flaw.NAN), (np.inf, Flaw.INFINITE), (-np.inf, Flaw.INFINITE)])
def test_a_value_that_is_no_number_spoils_its_row_alone(value: float, flaw: Flaw, normalize: bool) -> None:
    features = np.ones((3, 4), np.float32)
    features[1, 2] = value
    finished = finish_features(features, normalize=normalize, dtype=HALF)
    assert finished.flaws.tolist() == [0, flaw, 0]
    assert np.isnan(finished.stored[1]).all()
    assert np.isfinite(finished.stored[[0, 2]]).all()


def test_what_float16_cannot_hold_is_poison_and_float32_can_hold_it() -> None:
    features = np.array([[1.0, 65504.0], [1.0, 65520.0], [-70000.0, 0.0]], np.float32)
    assert finish_features(features, normalize=False, dtype=HALF).flaws.tolist() == [0, Flaw.OUT_OF_RANGE, Flaw.OUT_OF_RANGE]
    assert finish_features(features, normalize=False, dtype=SINGLE).flaws.tolist() == [0, 0, 0]
    assert finish_features(features, normalize=False, dtype=HALF).largest == 65504.0


def test_normalising_survives_values_whose_square_overflows_float32() -> None:
    finished = finish_features(np.array([[3e30, 4e30], [0.0, 0.0]], np.float32), normalize=True, dtype=HALF)
    assert finished.stored.tolist() == [[np.float16(0.6), np.float16(0.8)], [0.0, 0.0]]
    assert not finished.flaws.any()


@given(features=arrays(np.float32, (4, 3), elements=st.floats(width=32)), normalize=st.booleans())
def test_a_row_is_poison_exactly_if_it_cannot_be_stored(features: np.ndarray, normalize: bool) -> None:
    finished = finish_features(features, normalize=normalize, dtype=HALF)
    good = finished.flaws == 0
    assert np.isfinite(finished.stored[good]).all()
    assert np.isnan(finished.stored[~good]).all()
    assert np.isfinite(features[good]).all()
    if normalize:
        assert good.tolist() == np.isfinite(features).all(1).tolist()
        norms = np.linalg.norm(finished.stored[good].astype(np.float64), axis=1)
        assert ((np.abs(norms - 1) < 2e-3) | (norms == 0) | (np.abs(features[good]).max(1, initial=0) < 1e-11)).all()
