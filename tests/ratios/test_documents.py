"""One document a measurement: what counts as one, what doesn't, and what happens when it can't be written."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_core.ratios.documents import DOCUMENT_VERSION, RatioDocument, RatioDocuments, ratio_key
from zephon_core.store import ArtifactStore

INPUTS: dict[str, Any] = {"seed": 0, "estimation": {"a": 1}, "counting": {"b": 2}, "replay": None, "dataset": "f" * 64}
KEY = ratio_key(INPUTS)
MEASUREMENT: dict[str, Any] = {
    "ratio": 0.25,
    "source": "measured",
    "interval": (0.2475, 0.2525),
    "draws": 2048,
    "units": 17,
    "bytes_read": 1 << 20,
    "design": "stratified",
    "design_effect": 0.75,
    "reasons": (("row is no JSON", 3),),
    "loss_ratio": 0.125,
    "loss_interval": (0.1, 0.15),
}


def make(*, retryable: bool = False, inputs: Any = None, name: str = "web", **measurement: Any) -> RatioDocument:
    return RatioDocument.make(
        name,
        {**MEASUREMENT, **measurement},
        dataset={"fingerprint": "f" * 64, "shards": 3},
        inputs=inputs or INPUTS,
        seconds=1.25,
        retryable=retryable,
    )


@pytest.fixture
def documents(tmp_path: Path) -> RatioDocuments:
    return RatioDocuments(ArtifactStore(tmp_path / "store"))


def once(documents: RatioDocuments, **options: Any) -> tuple[Any, int]:
    """Ask for the measurement; returns the outcome and how often it was made."""
    made = []

    def measure() -> RatioDocument:
        made.append(1)
        return make()

    return documents.once(KEY, measure, **options), len(made)


def test_a_document_has_the_shape_that_others_read(documents: RatioDocuments) -> None:
    outcome, made = once(documents)
    assert (outcome.cached, outcome.stored, made) == (False, True, 1)
    path = documents.path(KEY)
    assert path.parent.name == "token_ratios" and path.name == f"{KEY}.json"
    written = json.loads(path.read_bytes())
    assert written["v"] == DOCUMENT_VERSION and written["key"] == KEY
    assert written["ratios"] == {"web": [0.25, "measured", ""]}
    assert written["measurement"]["design_effect"] == 0.75
    ratio = outcome.document.ratio
    assert (ratio.tokens_per_byte, ratio.interval, ratio.draws, ratio.units) == (0.25, (0.2475, 0.2525), 2048, 17)
    assert (ratio.loss_tokens_per_byte, ratio.loss_interval) == (0.125, (0.1, 0.15))


def test_what_was_measured_is_not_measured_again(documents: RatioDocuments) -> None:
    first, _ = once(documents)
    second, made = once(documents)
    assert (second.cached, made) == (True, 0)
    assert second.document == first.document
    assert documents.all() == [first.document]


@pytest.mark.parametrize("what", sorted(INPUTS))
def test_every_input_is_in_the_key(what: str) -> None:
    assert ratio_key({**INPUTS, what: "other"}) != KEY


def _change(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


SPOILED: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "no JSON": lambda path: path.write_bytes(b"\xff" * 100),
    "a list": lambda path: path.write_text("[]"),
    "another version": lambda path: _change(path, lambda value: value.update(v=DOCUMENT_VERSION + 1)),
    "an old version": lambda path: _change(path, lambda value: value.update(v=0)),
    "another key": lambda path: _change(path, lambda value: value.update(key="0" * 64)),
    "a changed ratio": lambda path: _change(path, lambda value: value["ratios"]["web"].__setitem__(0, 0.3)),
    "a changed interval": lambda path: _change(path, lambda value: value["measurement"].update(interval=[0.2, 0.3])),
    "other inputs": lambda path: _change(path, lambda value: value["inputs"].update(seed=1)),
    "no ratios": lambda path: _change(path, lambda value: value.pop("ratios")),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "zephon's": lambda path: path.write_text(json.dumps({"v": 2, "key": KEY, "ratios": {"web": [0.25, "measured", None]}})),
    "somebody else's": lambda path: path.write_text(json.dumps(make(inputs={**INPUTS, "seed": 9}).to_json())),
}


@pytest.mark.parametrize("how", [how for how in SPOILED if how != "a directory"])
def test_a_spoiled_document_is_measured_again(documents: RatioDocuments, how: str) -> None:
    once(documents)
    SPOILED[how](documents.path(KEY))
    assert documents.read(KEY) is None and documents.all() == []
    outcome, made = once(documents)
    assert (outcome.cached, outcome.stored, made) == (False, True, 1)
    assert documents.read(KEY) == outcome.document


def test_each_byte_of_a_document_counts(documents: RatioDocuments) -> None:
    """A flipped bit makes a miss, or changes nothing that is read."""
    once(documents)
    path = documents.path(KEY)
    good, document = path.read_bytes(), documents.read(KEY)
    for place in np.random.default_rng(0).integers(0, len(good), 200).tolist():
        spoiled = bytearray(good)
        spoiled[place] ^= 1
        path.write_bytes(bytes(spoiled))
        assert documents.read(KEY) in (None, document)


def test_a_refresh_measures_compares_and_keeps_the_new_one(documents: RatioDocuments) -> None:
    notes: list[str] = []

    class Notes:
        def note(self, message: str) -> None:
            notes.append(message)

    once(documents)
    time.sleep(0.01)
    documents.once(KEY, lambda: make(ratio=0.26, interval=(0.25, 0.27)), refresh=True, progress=Notes())  # type: ignore[arg-type]
    documents.once(KEY, lambda: make(ratio=0.26, interval=(0.25, 0.27)), refresh=True, progress=Notes())  # type: ignore[arg-type]
    assert notes == ["web: measured again: 0.26 tokens a byte, before 0.25", "web: measured again, and the same as before"]
    assert documents.read(KEY).ratio.tokens_per_byte == 0.26  # type: ignore[union-attr]


def failing(documents: RatioDocuments, **options: Any) -> tuple[Any, int]:
    made = []

    def measure() -> RatioDocument:
        made.append(1)
        return make(retryable=True, source="fallback", interval=None, reason="the disk is away")

    return documents.once(KEY, measure, **options), len(made)


def test_a_failure_that_may_pass_is_remembered_for_a_while_and_is_no_result(tmp_path: Path) -> None:
    documents = RatioDocuments(ArtifactStore(tmp_path), negative_ttl_s=0.3)
    first, made = failing(documents)
    assert (first.cached, first.stored, made) == (False, False, 1)
    assert not documents.path(KEY).exists() and documents.all() == []
    second, made = failing(documents)
    assert (second.cached, second.stored, made) == (True, False, 0)
    assert second.document == first.document
    time.sleep(0.35)
    assert documents.read_failure(KEY) is None
    assert failing(documents)[1] == 1
    outcome, _ = once(documents, refresh=True)  # which doesn't wait for the time to pass
    assert outcome.stored and documents.read_failure(KEY) is None
    assert [path.name for path in (tmp_path / "token_ratios").iterdir()] == [f"{KEY}.json"]


def test_those_who_waited_for_a_failure_take_it_too(documents: RatioDocuments) -> None:
    made = []

    def fail() -> RatioDocument:
        made.append(1)
        time.sleep(0.2)
        return make(retryable=True, source="fallback", interval=None)

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda _: documents.once(KEY, fail), range(8)))
    assert len(made) == 1
    assert sorted(outcome.cached for outcome in outcomes) == [False] + [True] * 7


def test_no_memory_of_failures_where_none_is_wanted(tmp_path: Path) -> None:
    documents = RatioDocuments(ArtifactStore(tmp_path), negative_ttl_s=0)
    assert [failing(documents)[1] for _ in range(2)] == [1, 1]


def test_a_failure_from_the_future_or_spoiled_is_none(documents: RatioDocuments) -> None:
    failing(documents)
    path = documents.path(KEY).with_suffix(".failed")
    good = json.loads(path.read_bytes())
    for spoiled in ({**good, "failed_at_s": time.time() + 1000}, {**good, "document": {}}, {**good, "failed_at_s": "now"}, [], 7):
        path.write_text(json.dumps(spoiled))
        assert documents.read_failure(KEY) is None


def test_a_store_where_nothing_can_be_made_costs_the_memory_alone(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file stands in the store's place")
    outcome, made = once(RatioDocuments(ArtifactStore(tmp_path / "store")))
    assert (outcome.stored, made) == (False, 1)


def test_numbers_that_json_has_not_become_null() -> None:
    document = make(design_effect=math.nan, interval=(0.2, math.inf), degrees_of_freedom=np.float64(3.5))
    assert document.measurement["design_effect"] is None
    assert document.ratio.interval is None
    assert RatioDocument.from_json(json.loads(json.dumps(document.to_json()))) == document
