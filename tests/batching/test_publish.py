"""Where a plan can be published."""

from __future__ import annotations

from pathlib import Path

import pytest

from zephon_core.batching.publish import MANIFEST_NAME, check_output
from zephon_core.errors import SpecError


@pytest.mark.parametrize("output", ["/proc/x", "/proc/x/y"])
def test_a_place_that_holds_no_folder_is_refused(output: str) -> None:
    """Of /proc the system says that it can be written to."""
    with pytest.raises(SpecError, match=r"^/proc: (holds no new folder|can't be written to)"):
        check_output(output)


def test_trying_a_place_leaves_nothing_behind(tmp_path: Path) -> None:
    for output in (tmp_path / "new", tmp_path / "deep" / "new", tmp_path):
        check_output(str(output))
    assert list(tmp_path.iterdir()) == []


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SpecError, match="holds files that are no planned batches"):
        check_output(str(tmp_path))
    (tmp_path / MANIFEST_NAME).write_text("{}")
    check_output(str(tmp_path))
    with pytest.raises(SpecError, match="is no folder"):
        check_output(str(tmp_path / "notes.txt"))
    with pytest.raises(SpecError, match="is a URL"):
        check_output("s3://bucket/plan")
