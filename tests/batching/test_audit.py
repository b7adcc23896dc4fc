"""The audit: equal for equal sets, whoever consumed them and in whatever order."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_core.batching import ConsumptionAudit
from zephon_core.errors import SpecError, StateError

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=40)


def audit_of(pairs: list[tuple[int, int]]) -> ConsumptionAudit:
    audit = ConsumptionAudit()
    for epoch, index in pairs:
        audit = audit.add(epoch, [index])
    return audit


@given(pairs=PAIRS, other=PAIRS, seed=st.integers(0, 9))
def test_equal_sets_and_only_those_have_equal_audits(pairs: list[tuple[int, int]], other: list[tuple[int, int]], seed: int) -> None:
    shuffled = [pairs[k] for k in np.random.default_rng(seed).permutation(len(pairs))]
    assert audit_of(pairs) == audit_of(shuffled)
    assert (audit_of(pairs) == audit_of(other)) == (sorted(pairs) == sorted(other))
    assert audit_of(pairs) + audit_of(other) == audit_of(pairs + other)


def test_an_epoch_is_the_sum_of_its_parts() -> None:
    order = np.random.default_rng(0).permutation(5000)
    parts = [ConsumptionAudit().add(7, order[rank::3]) for rank in range(3)]
    assert parts[0] + parts[1] + parts[2] == ConsumptionAudit.of_epoch(7, 5000)
    assert ConsumptionAudit.of_epoch(7, 5000) != ConsumptionAudit.of_epoch(8, 5000)
    assert ConsumptionAudit.of_epoch(0, 1_500_000) == ConsumptionAudit().add(0, np.arange(1_500_000, dtype=np.uint32))


def test_an_example_left_out_or_consumed_twice_shows() -> None:
    whole = np.arange(1000)
    assert ConsumptionAudit().add(0, whole[1:]) != ConsumptionAudit.of_epoch(0, 1000)
    swapped = whole.copy()
    swapped[3] = 4
    audit = ConsumptionAudit().add(0, swapped)
    assert audit.count == 1000
    assert audit.digest != ConsumptionAudit.of_epoch(0, 1000).digest


def test_the_digest_is_what_it_was() -> None:
    assert ConsumptionAudit().digest == "0" * 32
    assert ConsumptionAudit.of_epoch(3, 1000).digest == GOLDEN


GOLDEN = "ba3913f9fa650c692d5a9908cea70c83"


def test_it_comes_back_from_its_document() -> None:
    audit = ConsumptionAudit.of_epoch(2, 77)
    assert ConsumptionAudit.of(json.dumps(audit.to_json())) == audit
    for change in ({"digest": "0"}, {"digest": "G" * 32}, {"count": -1}, {"version": 2}):
        with pytest.raises(StateError):
            ConsumptionAudit.of(audit.to_json() | change)


def test_what_are_no_indices_is_refused() -> None:
    for wrong in ([1.5], [[1, 2]], [[1], [1, 2]], 5, [-1], [2**64], ["1"], [[]]):
        with pytest.raises(SpecError, match="indices"):
            ConsumptionAudit().add(0, wrong)


def test_what_is_no_epoch_is_refused() -> None:
    for wrong in (-1, 1.5, True, "1", None):
        with pytest.raises(SpecError, match="epoch"):
            ConsumptionAudit().add(wrong, [1])
    assert ConsumptionAudit().add(np.int64(3), [1]) == ConsumptionAudit().add(3, [1])


def test_a_changed_document_is_refused() -> None:
    with pytest.raises(StateError, match="another SHA-256"):
        ConsumptionAudit.of(ConsumptionAudit.of_epoch(0, 5).to_json() | {"count": 4})
