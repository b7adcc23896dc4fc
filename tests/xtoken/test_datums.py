"""Training examples, alone and as columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from zephon_core.errors import SpecError
from zephon_core.xtoken import TrainDatum
from zephon_core.xtoken.datums import DatumColumns, ragged_floats

FIELDS = {
    "trial_name": "t",
    "fragment_index": 0,
    "model_input_tokens": [7, 8, 9],
    "loss_mask": [0.0, 1.0, 1.0],
    "sampled_logprobs": [0.0, -0.5, -1.5],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_mask": [1.0]}, "loss_mask has 1 values for 3 tokens"),
        ({"sampled_logprobs": []}, "sampled_logprobs has 0 values for 3 tokens"),
        ({"advantages": [0.0]}, "advantages has 1 values for 3 tokens"),
        ({"loss_mask": [0.0, 0.5, 1.0]}, "loss_mask is 0.5 at position 1, expected exactly 0.0 or 1.0"),
        ({"trial_name": ""}, "at least 1 character"),
        ({"fragment_index": -1}, "greater than or equal to 0"),
        ({"weights": []}, "Extra inputs"),
    ],
)
def test_datums_that_cannot_be(change, message):
    with pytest.raises(ValidationError, match=message):
        TrainDatum(**{**FIELDS, **change})


def test_a_datum():
    datum = TrainDatum(**FIELDS)
    assert datum.advantages is None
    assert datum.loss_token_count == 2
    assert TrainDatum(**{**FIELDS, "model_input_tokens": [], "loss_mask": [], "sampled_logprobs": []}).loss_token_count == 0


def test_columns_from_models_and_from_a_table_are_the_same():
    rows = [FIELDS, {**FIELDS, "model_input_tokens": [], "loss_mask": [], "sampled_logprobs": []}, {**FIELDS, "fragment_index": 1}]
    table = pa.table({name: [row[name] for row in rows] for name in FIELDS})
    first, second = DatumColumns.of([TrainDatum(**row) for row in rows]), DatumColumns.from_arrow(table)
    assert list(first.trial_name) == list(second.trial_name)
    for name in ("fragment_index", "offsets", "tokens", "loss", "logprobs"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        assert getattr(first, name).dtype == getattr(second, name).dtype
    np.testing.assert_array_equal(DatumColumns.from_arrow(table.slice(2)).tokens, [7, 8, 9])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_mask": [[0.0, 1.0]]}, "datum 0: has 2 values in loss_mask for 3 tokens"),
        ({"loss_mask": [[0.0, 1.0, 2.0]]}, "datum 0: has a loss_mask of 2.0 at position 2"),
        ({"sampled_logprobs": [[0.0, None, 1.0]]}, "datum 0: has a null in sampled_logprobs at position 1"),
        ({"sampled_logprobs": [["a", "b", "c"]]}, "column sampled_logprobs: is list<.*string>, expected lists of numbers"),
        ({"model_input_tokens": ["abc"]}, "column model_input_tokens: is string, expected lists of whole numbers"),
        (
            {"model_input_tokens": [[1.0, 2.0, 3.0]]},
            "column model_input_tokens: is list<.*double>, expected lists of whole numbers",
        ),
        ({"trial_name": [7]}, "column trial_name: is int64, expected text"),
        ({"trial_name": [""]}, "datum 0: has an empty trial_name"),
        ({"fragment_index": [1.0]}, "column fragment_index: is double, expected whole numbers"),
        ({"fragment_index": [-1]}, "datum 0: has fragment_index -1, expected a number from 0 on"),
        ({"sampled_logprobs": None}, "datums: have no column sampled_logprobs"),
    ],
)
def test_tables_that_cannot_be(change, message):
    columns = {name: [value] for name, value in FIELDS.items()} | change
    with pytest.raises(SpecError, match=message):
        DatumColumns.from_arrow(pa.table({name: value for name, value in columns.items() if value is not None}))


@pytest.mark.parametrize(
    "row",
    [
        [],
        [None],
        [-0.5],
        (None, -1.0, -2),
        [None, -1.0, None, -3.0],
        [-1.0, True, np.float32(-0.1), -np.inf],
        [None, 2**1000],
        np.array([-1.0, -0.1], dtype=np.float32),
    ],
)
def test_rows_of_numbers_are_what_numpy_makes_of_them(row):
    offsets, values = ragged_floats([[None, -4.0], row, [], [-5.0]])
    assert offsets.tolist() == [0, 2, 2 + len(row), 2 + len(row), 3 + len(row)]
    np.testing.assert_array_equal(values, [np.nan, -4.0, *np.array(row, dtype=np.float64), -5.0])


@pytest.mark.parametrize("row", [["x", -1.0], [None, "x"], [[-1.0], [-2.0]], [-1.0, [-2.0]]])
def test_rows_that_are_no_numbers_are_refused(row):
    with pytest.raises((ValueError, TypeError)):
        ragged_floats([[None, -1.0], row])


def test_a_copy_with_other_fields_has_their_arrays():
    datum = TrainDatum(**FIELDS)
    assert datum.model_copy().arrays is datum.arrays
    changed = datum.model_copy(update={"loss_mask": [0.0, 0.0, 1.0], "sampled_logprobs": [0.0, 0.0, -7.0]})
    assert changed.loss_token_count == 1 and DatumColumns.of([changed]).logprobs.tolist() == [0.0, 0.0, -7.0]
    assert changed.model_copy(deep=True).loss_token_count == 1 and datum.loss_token_count == 2
