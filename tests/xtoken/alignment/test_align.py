"""The rules of the partition that no particular text shows."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer as HuggingFace
from tokenizers import decoders, models, pre_tokenizers

from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken.alignment.align import Chunks, align_pairs
from zephon_core.xtoken.vocabulary import tabulate


def toy(*tokens: str) -> Tokenizer:
    """A byte-level vocabulary of these tokens; ids are their numbers."""
    made = HuggingFace(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return Tokenizer(made.to_str().encode(), origin="toy")


STUDENT = toy("<", "a", "b", "c", "ab", "bc", "abc", "cab")
TEACHER = toy("{", "a", "b", "c", "ab", "ca", "<")


def cut(student: list[list[str]], teacher: list[list[str]], loss: str = "") -> Chunks:
    """Align sequences given by their tokens' texts."""
    flat = []
    for made, rows in ((STUDENT, student), (TEACHER, teacher)):
        ids = [made.huggingface.token_to_id(token) for row in rows for token in row]
        flat += [tabulate(made), np.array(ids, dtype=np.int64), np.cumsum([0, *map(len, rows)])]
    return align_pairs(*flat, loss=np.array([value == "1" for value in loss]) if loss else None)


def test_cuts_where_both_end_a_token():
    chunks = cut([["<", "ab", "c", "abc"]], [["<", "a", "b", "c", "ab", "c"]])
    assert chunks.ranges.tolist() == [[1, 2, 1, 3], [2, 3, 3, 4], [3, 4, 4, 6]]
    assert chunks.exact.all()


def test_position_0_is_on_neither_side():
    assert cut([["a", "b"]], [["a", "b"]]).ranges.tolist() == [[1, 2, 1, 2]]
    assert cut([["ab", "c"]], [["a", "b", "c"]]).ranges.tolist() == [[1, 2, 2, 3]]
    assert cut([["a", "b", "c"]], [["ab", "c"]]).ranges.tolist() == [[2, 3, 1, 2]]


def test_a_chunk_across_the_masks_edge_is_split_where_both_sides_can_be_or_left_out():
    assert cut([["<", "a", "b", "c"]], [["<", "a", "b", "c"]], "0011").ranges.tolist() == [[2, 3, 2, 3], [3, 4, 3, 4]]
    assert cut([["<", "a", "b", "c"]], [["<", "ab", "c"]], "0011").ranges.tolist() == [[3, 4, 2, 3]]
    assert cut([["<", "a", "b", "c"]], [["<", "ab", "c"]], "0110").ranges.tolist() == [[1, 3, 1, 2]]
    assert cut([["<", "a", "b", "c"]], [["<", "ab", "c"]], "0100").ranges.tolist() == []


def test_many_pairs_stay_apart():
    chunks = cut([["<", "a"], [], ["<", "cab"], ["<", "b"]], [["<", "a"], ["<"], ["<", "ca", "b"], ["{", "b"]])
    assert chunks.offsets.tolist() == [0, 1, 1, 2, 3]
    assert chunks.ranges.tolist() == [[1, 2, 1, 2], [1, 2, 1, 3], [1, 2, 1, 2]]
    assert chunks.exact.tolist() == [True, True, True]


def test_no_pairs_and_nothing_in_common():
    assert cut([], []).offsets.tolist() == [0]
    assert cut([["<", "a"]], [["{", "b"]]).ranges.tolist() == []
    assert cut([["<", "abc"]], [["{", "c"]]).ranges.tolist() == []


def test_tokens_that_reach_past_what_is_shared_are_left_out():
    chunks = cut([["<", "abc", "ab", "c"]], [["{", "b", "c", "a", "b", "c"]])
    assert chunks.ranges.tolist() == [[2, 3, 3, 5], [3, 4, 5, 6]]
