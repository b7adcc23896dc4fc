"""Functions that users bring: equal identity only where they compute the same."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zephon_core.errors import SpecError
from zephon_core.fingerprint import canonical_json
from zephon_core.ratios.callables import callable_identity, is_function_path, resolve_function


def half(text: str) -> int:
    return len(text) // 2


def third(text: str) -> int:
    return len(text) // 3


def times(factor: Any) -> Any:
    return lambda text: len(text) * factor


class Weighted:
    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def __call__(self, text: str) -> int:
        return int(len(text) * self.weight)

    def method(self, text: str) -> int:
        return int(len(text) * self.weight)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (half, third),
        (times(2), times(3)),
        (times(half), times(third)),
        (functools.partial(half), functools.partial(third)),
        (functools.partial(int, base=2), functools.partial(int, base=3)),
        (Weighted(1), Weighted(2)),
        (Weighted(1).method, Weighted(2).method),
        (len, abs),
        (lambda text: {"a", "b"} and 1, lambda text: {"a", "c"} and 1),
    ],
)
def test_what_differs_has_another_identity(one: Any, other: Any) -> None:
    assert canonical_json(callable_identity(one)) == canonical_json(callable_identity(one))
    assert canonical_json(callable_identity(one)) != canonical_json(callable_identity(other))


def test_made_anew_it_is_the_same() -> None:
    assert callable_identity(times(2)) == callable_identity(times(2))
    assert callable_identity(Weighted(2)) == callable_identity(Weighted(2))


def test_what_has_no_identity_is_refused() -> None:
    for function in (times(object()), Weighted(object()), functools.partial(half, object())):
        with pytest.raises(SpecError, match="content_sha256"):
            callable_identity(function)


def test_a_stated_identity_is_taken() -> None:
    function = times(object())
    function.content_sha256 = "one"
    assert callable_identity(function) == {"content_sha256": "one"}


def test_the_source_decides_and_the_process_does_not(tmp_path: Path) -> None:
    program = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import counters; "
        "from zephon_core.ratios.callables import callable_identity; print(json.dumps(callable_identity(counters.count)))"
    )

    def identity(source: str) -> str:
        (tmp_path / "counters.py").write_text(source)
        command = [sys.executable, "-B", "-c", program, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    source = "KINDS = frozenset({'a', 'b', 'c'})\ndef count(row):\n    return row in {'x', 'y', 'z'}\n"
    assert identity(source) == identity(source)
    assert identity(source) != identity(source.replace("'c'", "'d'"))  # what it calls or reads may decide


def test_functions_are_found_by_name() -> None:
    assert resolve_function("os.path:basename", where="measure")("a/b") == "b"
    assert resolve_function("pathlib:Path.cwd", where="measure")() == Path.cwd()
    for path, words in (("nowhere.at.all:f", "can't be imported"), ("os.path:nothing", "not there"), ("os:sep", "can be called")):
        with pytest.raises(SpecError, match=words):
            resolve_function(path, where="measure")
    assert is_function_path("a.b:c") and not is_function_path("a.b") and not is_function_path("/a/b:c")
