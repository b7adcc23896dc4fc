"""Ids that are another tokenizer's are told from a tokenizer's own."""

from __future__ import annotations

import numpy as np
import pytest
from small_pair import LINES, encoded, write_side

from zephon_core.xtoken.datums import offsets_of
from zephon_core.xtoken.files.doubts import own_share, whose_ids


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sides")
    return write_side(folder / "student", 400, ""), write_side(folder / "teacher", 330, "", *LINES[1:])


def flat(rows):
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    return offsets_of(lengths), np.array([token for row in rows for token in row], dtype=np.int64)


def test_own_ids_come_out_again_and_others_do_not(sides):
    ours, theirs = sides
    rows = [encoded(ours, line * 4) for line in LINES]
    low = min(ours.vocab_size, theirs.vocab_size)
    assert own_share(ours, *flat([[], *rows, []])) == 1.0
    assert own_share(theirs, *flat([[token for token in row if token < low] for row in rows])) < 0.9
    assert own_share(ours, *flat([])) == 0.0


def test_some_thousand_tokens_are_enough(sides, monkeypatch):
    monkeypatch.setattr("zephon_core.xtoken.files.doubts._MOST_TOKENS", 3)
    ours, _ = sides
    good = encoded(ours, LINES[0])
    assert len(good) > 3 and own_share(ours, *flat([good, [0] * 500])) == 1.0


def test_words_for_it():
    assert whose_ids({"student": 1.0, "teacher": 0.386}) == (
        "Of the ids, 100% of the student's and 38.60% of the teacher's come out again when what they spell is tokenized anew: "
        "the teacher's tokenizer is probably another than the one that gave them."
    )
    assert "the student's tokenizer and the teacher's tokenizer are probably others" in whose_ids({"student": 0.5, "teacher": 0.4})
    assert whose_ids({"student": 0.99}).endswith("they are ids of these tokenizers, so look at the texts.")
