import os
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from zephon_core.errors import ArtifactError
from zephon_core.fingerprint import FileMemo, canonical_json, file_sha256, fingerprint


class Colour(StrEnum):
    RED = "red"


class Model(BaseModel):
    b: int = 1
    a: Colour = Colour.RED


def test_canonical_json_is_pinned():
    value = {"b": [1, 2.5, None, True, "ü"], "a": Model()}
    assert canonical_json(value) == '{"a":{"a":"red","b":1},"b":[1,2.5,null,true,"ü"]}'.encode()


def test_a_fingerprint_is_pinned():
    """A golden value: what is cached on other machines must still be found after an upgrade."""
    assert (
        fingerprint("scan", 1, sources=["a"], spec={"x": 1}) == "328ecf6c4c5d7c9e7cdb4de8e752ffab22c8dc87c91e9933634bd21099a352d7"
    )


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_key_order_never_matters(value):
    def reversed_keys(item):
        if isinstance(item, dict):
            return {key: reversed_keys(item[key]) for key in reversed(item)}
        return [reversed_keys(part) for part in item] if isinstance(item, list) else item

    assert canonical_json(value) == canonical_json(reversed_keys(value))


@pytest.mark.parametrize("value", [{1: 2}, {"a": b"x"}, {"a": {1, 2}}, {"a": float("nan")}, object()])
def test_what_has_no_canonical_form_is_refused(value):
    with pytest.raises(TypeError):
        canonical_json(value)


def test_version_and_algorithm_are_part_of_the_identity():
    assert len({fingerprint("a", 1, x=1), fingerprint("a", 2, x=1), fingerprint("b", 1, x=1), fingerprint("a", 1, x=2)}) == 4


def old(path):
    os.utime(path, (1_600_000_000, 1_600_000_000))
    return path


def test_memo_reads_a_settled_file_once(tmp_path, monkeypatch):
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    old(path)
    memo = FileMemo(tmp_path / "memo")
    first = memo.sha256(path)
    assert first == file_sha256(path)
    monkeypatch.setattr("zephon_core.fingerprint.file_sha256", lambda path: pytest.fail("read again"))
    assert memo.sha256(path) == first


def test_memo_notices_other_content_of_the_same_size_and_time(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    old(path)
    memo = FileMemo(tmp_path / "memo")
    memo.sha256(path)
    path.write_bytes(b"xyz")
    old(path)
    assert memo.sha256(path) == file_sha256(path)


def test_memo_does_not_trust_a_file_written_just_now(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    FileMemo(tmp_path / "memo").sha256(path)
    assert not (tmp_path / "memo").exists()


def test_memo_survives_a_broken_document(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    old(path)
    memo = FileMemo(tmp_path / "memo")
    memo.sha256(path)
    for document in (tmp_path / "memo").iterdir():
        document.write_bytes(b"{")
    assert memo.sha256(path) == file_sha256(path)


def test_a_memory_that_can_not_be_written_is_named_and_not_the_file(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"content")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    (tmp_path / "store").write_bytes(b"a file where a folder is needed")
    with pytest.raises(ArtifactError, match=r"store/memo: can't be written \(Not a directory\)\. Name a store that is a folder"):
        FileMemo(tmp_path / "store" / "memo").sha256(path)
    with pytest.raises(FileNotFoundError):
        FileMemo(tmp_path / "store" / "memo").sha256(tmp_path / "absent")
