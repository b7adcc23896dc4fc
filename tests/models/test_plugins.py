"""Encoders from elsewhere: what they must return, and how a memory they carry is kept out of an encode."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zephon_core.errors import ModelError, SpecError
from zephon_core.models.plugins import PluginEncoder, is_plugin, load_plugin, memory_switched_off


@pytest.mark.parametrize("path", ["module:factory", "package.module:Factory", "_a.b1:c_2"])
def test_a_factory_is_told_from_a_folder(path: str) -> None:
    assert is_plugin(path)


@pytest.mark.parametrize("path", ["models/bert", "/models/bert:old", "bert", "module:", ":factory", "a..b:c", "m:call()", "1a:b"])
def test_a_folder_is_told_from_a_factory(path: str) -> None:
    assert not is_plugin(path)


def encoder_that_returns(value: Any) -> PluginEncoder:
    return PluginEncoder("x:y", SimpleNamespace(hidden_size=2, encode=lambda ids: value))


IDS = [np.ones((3, 4), np.int64)]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.ones((3, 2)), "float64"),
        (np.ones((3, 2), np.float16), "float16"),
        (np.ones((2, 2), np.float32), r"float32 \[2, 2\]"),
        (np.ones((3, 3), np.float32), r"float32 \[3, 3\]"),
        (np.ones((3, 2, 1), np.float32), r"float32 \[3, 2, 1\]"),
        ([[1.0, 2.0]] * 3, "a list"),
        (None, "a NoneType"),
    ],
)
def test_a_broken_contract_is_named(value: Any, found: str) -> None:
    with pytest.raises(ModelError, match=rf"returned {found}.*expected float32 \[3, 2\]"):
        encoder_that_returns(value).encode(IDS)


def test_arrays_and_tensors_are_taken() -> None:
    import torch

    wanted = np.arange(6, dtype=np.float32).reshape(3, 2)
    for value in (wanted, torch.from_numpy(wanted).requires_grad_()):
        assert (encoder_that_returns(value).encode(IDS) == wanted).all()


def test_padded_blocks_are_refused() -> None:
    with pytest.raises(SpecError, match="exact_token_length"):
        encoder_that_returns(None).encode_padded(IDS[0], np.array([4, 4, 4]))


@pytest.mark.parametrize("width", [0, None, "2", -1])
def test_a_width_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, width: Any) -> None:
    monkeypatch.setattr(
        "zephon_core.models.plugins.resolve_factory", lambda path: lambda: SimpleNamespace(hidden_size=width, encode=len)
    )
    with pytest.raises(ModelError, match="hidden_size"):
        load_plugin("x:y")


class TestMemory:
    def runtime(self) -> SimpleNamespace:
        return SimpleNamespace(read_enabled=True, update_enabled="twice")

    @pytest.mark.parametrize("nested", [True, False])
    def test_both_switches_are_off_inside_and_as_before_afterwards(self, nested: bool) -> None:
        runtime = self.runtime()
        holder = SimpleNamespace(runtime=runtime)
        with memory_switched_off(SimpleNamespace(model=holder) if nested else holder, "x"):
            assert (runtime.read_enabled, runtime.update_enabled) == (False, False)
        assert (runtime.read_enabled, runtime.update_enabled) == (True, "twice")

    def test_they_are_set_back_when_the_encode_raises(self) -> None:
        runtime = self.runtime()
        with pytest.raises(KeyError), memory_switched_off(SimpleNamespace(runtime=runtime), "x"):
            raise KeyError
        assert (runtime.read_enabled, runtime.update_enabled) == (True, "twice")

    def test_a_context_manager_of_the_encoders_own_is_used(self) -> None:
        seen: list[str] = []

        class Encoder:
            @contextmanager
            def frozen(self) -> Any:
                seen.append("off")
                try:
                    yield
                finally:
                    seen.append("on")

        with pytest.raises(KeyError), memory_switched_off(Encoder(), "x"):
            seen.append("encode")
            raise KeyError
        assert seen == ["off", "encode", "on"]

    def test_a_memory_that_cannot_be_switched_off_is_refused(self) -> None:
        runtime = SimpleNamespace(read_enabled=True)
        with pytest.raises(ModelError, match="update_enabled"), memory_switched_off(SimpleNamespace(runtime=runtime), "x"):
            pass
        assert runtime.read_enabled is True

    def test_an_encoder_without_one_is_left_alone(self) -> None:
        with memory_switched_off(SimpleNamespace(), "x"):
            pass
