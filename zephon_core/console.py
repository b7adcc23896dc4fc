"""What every command shares: configuration files with flags on top, one-line errors, exit codes, JSON on standard output.

Exit codes: 0 done, 1 failed, 2 usage, 3 found wanting (verify, check, drift, count, prime --strict), 130 interrupted, 141 nobody
reads the output.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from zephon_core.atomic import is_temporary
from zephon_core.errors import SpecError, ZephonError
from zephon_core.usage import USAGE, say_error, wanted_value

if TYPE_CHECKING:
    from pydantic import BaseModel

    from zephon_core.progress import Progress

__all__ = [
    "FAILED",
    "FOUND_WANTING",
    "ConfigOption",
    "Flag",
    "JsonOption",
    "StoreOption",
    "VerboseOption",
    "choose_progress",
    "command_errors",
    "emit",
    "plain",
    "read_config",
    "spec_and_run",
    "unread_output",
    "validated",
    "with_flags",
    "with_parameters",
]

T = TypeVar("T")
_Spec = TypeVar("_Spec", bound="BaseModel")
_Run = TypeVar("_Run", bound="BaseModel")

FAILED = 1
FOUND_WANTING = 3
INTERRUPTED = 130
UNREAD = 141

_KEPT = "what is finished is kept"
_DISK_ERRORS = {
    errno.ENOSPC: ("can't be written: no space is left there", f"Free some space and run it again: {_KEPT}."),
    errno.EDQUOT: ("can't be written: the quota is used up", f"Free some space or raise the quota, and run it again: {_KEPT}."),
    errno.EFBIG: (
        "can't be written: the file grows larger than is allowed",
        f"Raise the limit (`ulimit -f`) or use another file system, and run it again: {_KEPT}.",
    ),
    errno.EROFS: ("can't be written: the file system is read-only", "Name a folder that can be written to."),
    errno.ENOTDIR: ("can't be used: something in this path is a file, not a folder", "Name a folder."),
    errno.EEXIST: ("is a file where a folder is needed", "Name a folder."),
    errno.EACCES: ("can't be used: permission is denied", "Change its permissions, or name another path."),
    errno.EPERM: ("can't be used: this is not permitted", "Change its permissions, or name another path."),
}


def plain(text: str) -> str:
    """Return help that reads as written: typer takes words in square brackets for markup, and drops them."""
    return text.replace("[", "\\[")


JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, everything else on standard error.")]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="DIR", help=plain("Where artifacts are kept. [default: $ZEPHON_STORE or the user cache]")),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="YAML or JSON of the flow's parameters; flags override it.")
]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Log what happens, and show tracebacks.")]


@contextlib.contextmanager
def command_errors(*, verbose: bool, places: Sequence[str] = ()) -> Iterator[None]:
    """Turn errors into one line on standard error and the right exit code; with `verbose`, let the traceback through.

    places: where the command writes, for errors of a disk that don't say it themselves. A reader of the output who went away,
    as `head` does, is no error.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("zephon_core").setLevel(logging.INFO)
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        raise SystemExit(UNREAD) from None
    except (ZephonError, OSError) as error:
        if verbose:
            raise
        say_error(str(error) if isinstance(error, ZephonError) else _os_error(error, places))
        raise typer.Exit(USAGE if isinstance(error, SpecError) else FAILED) from None
    except KeyboardInterrupt:
        say_error("interrupted; the same command goes on where it was")
        raise typer.Exit(INTERRUPTED) from None


def _os_error(error: OSError, places: Sequence[str]) -> str:
    found, remedy = _DISK_ERRORS.get(error.errno or 0, (error.strerror or str(error), ""))
    where = str(error.filename or "") or " or ".join(place for place in places if place)
    if is_temporary(Path(where)):  # it is the folder that something is wrong with
        where = str(Path(where).parent)
    if not where:
        where = "the disk" if remedy else type(error).__name__
    return str(ZephonError(str(where), found, remedy=remedy))


@contextlib.contextmanager
def unread_output() -> Iterator[None]:
    """Leave with the exit code for it where rich or click end the program because nobody reads its output any more."""
    try:
        yield
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        _drop_output()
        raise SystemExit(UNREAD) from None


def _drop_output() -> None:
    """Send what is left of the output nowhere, so that Python's own flush at the end has nothing to complain about."""
    with contextlib.suppress(OSError, ValueError):  # a standard output that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def emit(result: Mapping[str, Any], *, as_json: bool, render: Callable[[], None]) -> None:
    """Write a command's result to standard output: as one JSON object, or as `render` shows it to a person."""
    if as_json:
        sys.stdout.write(json.dumps(result, ensure_ascii=False, default=str) + "\n")
    else:
        render()
    sys.stdout.flush()


def choose_progress(*, as_json: bool, verbose: bool) -> Progress:
    """Pick the progress sink: bars on a terminal, log lines otherwise."""
    from zephon_core.progress import LoggingProgress, TerminalProgress

    if sys.stderr.isatty() and not verbose and not as_json:
        return TerminalProgress()
    return LoggingProgress()


def read_config(path: Path | None) -> dict[str, Any]:
    """Read a YAML or JSON file of parameters; no path is an empty one. Raises SpecError."""
    if path is None:
        return {}
    import yaml

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(str(path), f"can't be read ({error.strerror})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # bytes that are no text, dates that aren't any
        raise SpecError(str(path), f"is no YAML or JSON ({' '.join(str(error).split())})") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SpecError(str(path), f"holds a {type(value).__name__}", wanted="a mapping with spec and run")
    try:  # what JSON can't hold is no parameter: keys that are dates, something within itself
        json.dumps(value, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(str(path), f"can't be used ({' '.join(str(error).split())})") from None
    return value


def with_flags(config: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with each flag that was given (is not None) set at its dotted path; pure. Raises SpecError."""
    result: dict[str, Any] = json.loads(json.dumps(config, default=str))
    for path, value in flags.items():
        if value is None:
            continue
        *parents, last = path.split(".")
        place = result
        for depth, parent in enumerate(parents):
            inner = place.setdefault(parent, {})
            if isinstance(inner, str) and parent == "model":
                inner = {"path": inner}
            if not isinstance(inner, dict):
                raise SpecError(".".join(parents[: depth + 1]), f"is {inner!r}", wanted="a mapping")
            place[parent] = inner
            place = inner
        place[last] = value
    return result


@dataclass(frozen=True)
class Flag:
    """A flag that sets one value of the configuration: its name, the dotted path it sets, its type and what it says of itself.

    off: the name that unsets it. panel: the heading that it stands under in the help.
    """

    name: str
    path: str
    type: Any
    help: str
    metavar: str | None = None
    off: str = ""
    panel: str | None = None

    @property
    def key(self) -> str:
        """The flag's name as an identifier."""
        return self.name.removeprefix("--").replace("-", "_")

    def parameter(self) -> inspect.Parameter:
        """Return the flag as a parameter of a typer command, None where it isn't given."""
        names = f"{self.name}/{self.off}" if self.off else self.name
        option = typer.Option(names, help=plain(self.help), metavar=self.metavar, rich_help_panel=self.panel)
        return _keyword(self.key, Annotated[self.type | None, option])


_PLACES = ("store", "output", "publish")


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_parameters(flags: Sequence[Flag]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a typer command all of `flags`; it receives the configuration that they and --config make as `values`.

    The command's own parameters stay. Errors come out as `command_errors` says.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "values"]
        first = [p for p in own if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        last = [p for p in own if p.kind is inspect.Parameter.KEYWORD_ONLY]
        parameters = [*first, *(flag.parameter() for flag in flags), _keyword("config", ConfigOption), *last]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            with command_errors(verbose=bool(given.get("verbose")), places=[str(given.get(name) or "") for name in _PLACES]):
                values = with_flags(read_config(given["config"]), {flag.path: given[flag.key] for flag in flags})
                command(values=values, **{parameter.name: given[parameter.name] for parameter in own})

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def spec_and_run(
    values: Mapping[str, Any],
    spec_model: type[_Spec],
    run_model: type[_Run],
    *,
    flags: Sequence[Flag],
    sections: Sequence[str] = (),
) -> tuple[_Spec, _Run]:
    """Check a command's configuration once and whole: spec and run options. sections: parts of the spec that may be absent."""
    if unknown := sorted(set(values) - {"spec", "run"}):
        raise SpecError("configuration", f"has {', '.join(unknown)}", wanted="only spec and run")
    spec = values.get("spec", {})
    if sections:
        spec = {**{section: {} for section in sections}, **spec}
    return (
        validated(spec_model.model_validate, spec, where="configuration", prefix="spec", flags=flags),
        validated(run_model.model_validate, values.get("run", {}), where="configuration", prefix="run", flags=flags),
    )


def validated(model: Callable[[Any], T], value: Any, *, where: str, prefix: str = "", flags: Sequence[Flag] = ()) -> T:
    """Make a parameter model of plain values. Raises SpecError with every complaint in one line.

    prefix, flags: the dotted path of `value` in the configuration, and the flags, so that a complaint can name the one.
    """
    from pydantic import ValidationError

    try:
        return model(value)
    except ValidationError as error:
        items = error.errors()
        complaints = []
        for item in items:
            if item["type"] == "too_short" and any(len(other["loc"]) > len(item["loc"]) for other in items if _below(other, item)):
                continue  # of a list whose items are wrong, the number of those left says nothing
            path = ".".join([prefix, *map(str, item["loc"])]).strip(".")
            flag = next((f"{flag.name} or " for flag in flags if _names(flag, path, missing=item["type"] == "missing")), "")
            complaints.append(f"{flag}{path}: {_complaint(item, getattr(model, '__self__', None))}")
        raise SpecError(where, f"can't be used: {'; '.join(complaints)}") from None


def _below(item: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(item["loc"][: len(other["loc"])] == other["loc"])


def _names(flag: Flag, path: str, *, missing: bool) -> bool:
    """Tell whether a flag sets what is at a path; of what is missing altogether, whether it sets a part of it."""
    return f"{path}.".startswith(f"{flag.path}.") or (missing and flag.path.startswith(f"{path}."))


_LONGEST_FOUND = 80


def _complaint(item: Mapping[str, Any], model: Any) -> str:
    """Word one of pydantic's complaints; where a pattern isn't met, the field's description says what is wanted."""
    if item["type"] == "missing":
        return "is missing"
    if item["type"] == "string_pattern_mismatch" and (wanted := _description(model, item["loc"])):
        return f"is {item['input']!r}, expected this: {wanted.rstrip('.')}"
    found = item["input"]
    if isinstance(found, str | int | float | None) and len(repr(found)) <= _LONGEST_FOUND and (wanted := wanted_value(item)):
        return f"is {found!r}, expected {wanted}"
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}"


def _description(model: Any, loc: Sequence[str | int]) -> str:
    """Return the description of the field at `loc` under a pydantic model, "" if there is none."""
    description = ""
    for part in loc:
        if isinstance(part, int):
            continue
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            return ""
        description = field.description or ""
        model = _inner_model(field.annotation)
    return description


def _inner_model(annotation: Any) -> Any:
    """Find the model in an annotation: itself, or what a tuple or a union holds."""
    if hasattr(annotation, "model_fields"):
        return annotation
    return next((found for part in get_args(annotation) if (found := _inner_model(part))), None)
