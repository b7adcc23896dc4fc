"""What the package offers by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from zephon_core import xtoken


def test_exports_are_sorted_and_there():
    assert xtoken.__all__ == sorted(xtoken.__all__)
    for name in xtoken.__all__:
        assert getattr(xtoken, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = xtoken.nothing


def test_importing_it_imports_nothing_heavy():
    code = "import sys, zephon_core.xtoken; print([m for m in ('numba', 'torch', 'pyarrow', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
