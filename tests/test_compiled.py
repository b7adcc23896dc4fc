"""Compiled functions: kept on disk, and compiled anew when anything in their package changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CALLER = """
from callee import number
from zephon_core.compiled import compiled

@compiled
def doubled(value):
    return 2 * number(value)

if __name__ == "__main__":
    print(doubled(3), sum(doubled.stats.cache_hits.values()))
"""
CALLEE = """
from zephon_core.compiled import compiled

@compiled
def number(value):
    return value + {}
"""


def run(folder: Path, cache: str = "") -> str:
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    if cache:
        environment["NUMBA_CACHE_DIR"] = cache
    program = [sys.executable, "caller.py"]
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def test_machine_code_is_kept_until_a_source_beside_it_changes(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "callee.py").write_text(CALLEE.format(1))
    assert run(tmp_path) == "8 0\n"
    assert run(tmp_path) == "8 1\n"
    (tmp_path / "callee.py").write_text(CALLEE.format(2))
    assert run(tmp_path) == "10 0\n"  # numba alone would not have seen that
    assert len(list((tmp_path / "__pycache__").glob("compiled-*"))) == 2


def test_a_cache_folder_of_the_users_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "caller.py").write_text(CALLER)
    (folder / "callee.py").write_text(CALLEE.format(1))
    assert run(folder, str(tmp_path / "cache")) == "8 0\n"
    assert list((tmp_path / "cache").rglob("*.nbi"))
    assert not list(folder.glob("__pycache__/compiled-*"))
