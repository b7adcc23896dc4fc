"""Functions that users bring along: named `package.module:function` or given as such, and identified by content."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from zephon_core.errors import SpecError
from zephon_core.fingerprint import canonical_json, file_sha256

__all__ = ["callable_identity", "is_function_path", "resolve_function"]

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_REMEDY = "Give it an attribute content_sha256: a text that changes whenever its results do."


def is_function_path(text: str) -> bool:
    """Tell whether a text has the form `package.module:function`."""
    return _FUNCTION.fullmatch(text) is not None


def resolve_function(path: str, *, where: str) -> Callable[..., Any]:
    """Import what `package.module:function` names. Raises SpecError, headed by `where`, if it isn't there."""
    module_name, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise SpecError(
            where, f"names {path}, whose module can't be imported ({error})", remedy="Install it, or put its folder on PYTHONPATH."
        ) from error
    for name in names.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise SpecError(where, f"names {path}, which is {'not there' if found is None else 'nothing that can be called'}")
    checked: Callable[..., Any] = found
    return checked


def callable_identity(function: Callable[..., Any]) -> dict[str, Any]:
    """Say what a function computes, as canonical JSON values: equal identity, equal results.

    Its attribute `content_sha256`, if it has one, is taken for the whole. Else the source of its module (what it calls there
    may decide), its code, defaults and the values that it closes over; of an object, its class and attributes.
    Raises SpecError where a value has no identity.
    """
    if (stated := getattr(function, "content_sha256", None)) is not None:
        return {"content_sha256": str(stated() if callable(stated) else stated)}
    if isinstance(function, functools.partial):
        return {"partial": callable_identity(function.func), "values": _values([function.args, function.keywords], function)}
    if inspect.ismethod(function):
        owner = function.__self__
        inner: Callable[..., Any] = function.__func__
        return {"method": callable_identity(inner), "owner": _owner(owner, function)}
    if isinstance(function, FunctionType):
        return _function_identity(function)
    if inspect.isclass(function) or inspect.isbuiltin(function):
        return {"name": f"{function.__module__}:{function.__qualname__}", "module": _module_sha256(function)}
    return {"object": _owner(function, function)}


def _function_identity(function: FunctionType) -> dict[str, Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = [function.__defaults__, function.__kwdefaults__]
    return {
        "name": f"{function.__module__}:{function.__qualname__}",
        "module": _module_sha256(function),
        "code": hashlib.sha256(repr(_code(function.__code__)).encode("utf-8", "surrogatepass")).hexdigest(),
        "python": list(sys.version_info[:2]),
        "values": _values([cells, defaults], function),
    }


def _code(code: CodeType) -> list[Any]:
    constants = [_code(value) if isinstance(value, CodeType) else _constant(value) for value in code.co_consts]
    return [code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars]


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):  # whose order differs from process to process
        return f"frozenset {sorted(map(_constant, value))}"
    return f"{type(value).__name__} {value!r}"


def _module_sha256(function: Any) -> str:
    """Return the SHA-256 of the file that a function or class was written in, "" where there is none (built in, typed in)."""
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        return ""
    if file is None or not Path(file).is_file():
        return ""
    return file_sha256(Path(file))


def _owner(owner: Any, function: Callable[..., Any]) -> dict[str, Any]:
    kind = owner if inspect.isclass(owner) else type(owner)
    if kind.__module__ == "builtins":
        raise _without_identity(function, owner)
    attributes = {} if inspect.isclass(owner) else getattr(owner, "__dict__", None)
    if attributes is None:
        raise _without_identity(function, owner)
    return {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "module": _module_sha256(kind),
        "values": _values(attributes, function),
    }


def _values(value: Any, function: Callable[..., Any]) -> Any:
    """Replace functions within a value by their identities. Raises SpecError for what has no canonical form."""
    if isinstance(value, FunctionType | functools.partial) or inspect.ismethod(value):
        return callable_identity(value)
    if isinstance(value, Mapping):
        return {str(key): _values(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_values(item, function) for item in value]
    if isinstance(value, re.Pattern):
        return {"pattern": str(value.pattern), "flags": value.flags}
    try:
        canonical_json(value)
    except TypeError:
        raise _without_identity(function, value) from None
    return value


def _without_identity(function: Callable[..., Any], value: Any) -> SpecError:
    name = getattr(function, "__qualname__", type(function).__name__)
    return SpecError(name, f"depends on a {type(value).__name__}, which has no identity by content", remedy=_REMEDY)
