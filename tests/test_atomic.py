import json

import pytest

from zephon_core.atomic import atomic_file, publish_directory, remove_tree, write_bytes, write_json


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path):
    target = tmp_path / "a.bin"
    write_bytes(target, b"old")
    write_bytes(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_while_writing_keeps_the_old_file(tmp_path):
    target = tmp_path / "a.bin"
    write_bytes(target, b"old")
    with pytest.raises(RuntimeError, match="stop"), atomic_file(target) as handle:
        handle.write(b"half")
        raise RuntimeError("stop")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_json_is_readable_and_refuses_nan(tmp_path):
    target = tmp_path / "a.json"
    write_json(target, {"name": "Ünïcode", "n": 1})
    assert json.loads(target.read_text()) == {"name": "Ünïcode", "n": 1}
    assert "Ünïcode" in target.read_text()
    with pytest.raises(ValueError, match="JSON"):
        write_json(target, {"x": float("nan")})
    assert json.loads(target.read_text())["n"] == 1


def test_publishing_a_directory_replaces_what_was_there(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    publish_directory(tmp_path / "one", tmp_path / "bank")
    publish_directory(tmp_path / "two", tmp_path / "bank")
    assert (tmp_path / "bank" / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["bank"]


def test_removing_an_absent_tree_is_fine(tmp_path):
    remove_tree(tmp_path / "nothing")
