from __future__ import annotations

import pytest

from zephon_core.bank.scan.fields import LEAF, LIST, OBJECT, compile_fields
from zephon_core.bank.specs import FieldSpec
from zephon_core.errors import SpecError


def compiled(*paths: str):
    return compile_fields([FieldSpec.model_validate(path) for path in paths])


def test_paths_with_a_common_beginning_share_it():
    table = compiled("query", "candidates[].text", "candidates[].title:heading")
    assert table.nodes.tolist() == [[OBJECT, 0, 2], [LEAF, 0, 0], [LIST, 3, 0], [OBJECT, 2, 2], [LEAF, 1, 0], [LEAF, 2, 0]]
    assert [table.names[start : start + size].tobytes().decode() for _, start, size in table.children] == [
        "query",
        "candidates",
        "text",
        "title",
    ]
    assert table.children[:, 0].tolist() == [1, 2, 4, 5]
    assert table.depth == 3
    assert table.kind_names == ("query", "candidate", "heading")
    assert table.kinds.tolist() == [0, 1, 2]


def test_fields_may_share_a_kind():
    table = compiled("a:text", "b:text", "c:other")
    assert table.kind_names == ("text", "other")
    assert table.kinds.tolist() == [0, 0, 1]


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a.b"), ("a.b", "a"), ("a[]", "a"), ("a[].b", "a.b"), ("a[]", "a[].b")])
def test_contradicting_paths_are_refused(paths):
    with pytest.raises(SpecError, match="contradicts or repeats"):
        compiled(*paths)


def test_a_path_too_deep_is_refused():
    with pytest.raises(SpecError, match="70 levels deep"):
        compiled(".".join("a" * 70))
