"""Functions that a fresh interpreter can get hold of, and others."""

from __future__ import annotations

import functools

import replayed_steps as steps

from zephon_core.ratios.counting.portable import function_name, why_not_portable


def test_portable_functions(monkeypatch):
    for function in (steps.shout, steps.Lookup({"a": "b"}), functools.partial(steps.prefixed, prefix="a"), len):
        assert why_not_portable(function) == ""
    assert why_not_portable(lambda row: row).startswith("workers can't get it")
    assert why_not_portable(steps.Lookup({"a": lambda: 1})).startswith("workers can't get it")
    monkeypatch.setattr(steps.shout, "__module__", "__main__")
    assert "script" in why_not_portable(steps.shout)


def test_names():
    assert function_name("a.b:c") == "a.b:c"
    assert function_name(steps.shout) == "replayed_steps:shout"
    assert function_name(steps.Lookup({})) == "replayed_steps:Lookup"
