"""What every command shares: configuration files with flags on top, one-line errors, exit codes, JSON on standard output.

Exit codes: 0 done, 1 failed, 2 usage, 3 found wanting (verify, check, drift), 130 interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from zephon_core.errors import SpecError, ZephonError

if TYPE_CHECKING:
    from zephon_core.progress import Progress

__all__ = [
    "FOUND_WANTING",
    "ConfigOption",
    "Flag",
    "JsonOption",
    "StoreOption",
    "VerboseOption",
    "choose_progress",
    "command_errors",
    "emit",
    "read_config",
    "validated",
    "with_flags",
    "with_parameters",
]

T = TypeVar("T")

FAILED = 1
USAGE = 2
FOUND_WANTING = 3
INTERRUPTED = 130

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, everything else on standard error.")]
StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="DIR", help="Where artifacts are kept. [default: $ZEPHON_STORE or the user cache]")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="YAML or JSON of the flow's parameters; flags override it.")
]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Log what happens, and show tracebacks.")]


@contextlib.contextmanager
def command_errors(*, verbose: bool) -> Iterator[None]:
    """Turn errors into one line on standard error and the right exit code; with `verbose`, let the traceback through."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("zephon_core").setLevel(logging.INFO)
    try:
        yield
    except (ZephonError, OSError) as error:
        if verbose:
            raise
        _say(str(error) if isinstance(error, ZephonError) else _os_error(error))
        raise typer.Exit(USAGE if isinstance(error, SpecError) else FAILED) from None
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on where it was")
        raise typer.Exit(INTERRUPTED) from None


def _os_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _say(message: str) -> None:
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)


def emit(result: Mapping[str, Any], *, as_json: bool, render: Callable[[], None]) -> None:
    """Write a command's result to standard output: as one JSON object, or as `render` shows it to a person."""
    if as_json:
        sys.stdout.write(json.dumps(result, ensure_ascii=False, default=str) + "\n")
    else:
        render()


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
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(str(path), f"is no YAML or JSON ({' '.join(str(error).split())})") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SpecError(str(path), f"holds a {type(value).__name__}", wanted="a mapping with spec and run")
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
    """A flag that sets one value of the configuration: its name, the dotted path it sets, its type and what it says of itself."""

    name: str
    path: str
    type: Any
    help: str
    metavar: str | None = None
    off: str = ""

    @property
    def key(self) -> str:
        """The flag's name as an identifier."""
        return self.name.removeprefix("--").replace("-", "_")

    def parameter(self) -> inspect.Parameter:
        """Return the flag as a parameter of a typer command, None where it isn't given."""
        names = f"{self.name}/{self.off}" if self.off else self.name
        option = typer.Option(names, help=self.help, metavar=self.metavar)
        return _keyword(self.key, Annotated[self.type | None, option])


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
            with command_errors(verbose=bool(given.get("verbose"))):
                values = with_flags(read_config(given["config"]), {flag.path: given[flag.key] for flag in flags})
                command(values=values, **{parameter.name: given[parameter.name] for parameter in own})

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def validated(model: Callable[[Any], T], value: Any, *, where: str, prefix: str = "", flags: Sequence[Flag] = ()) -> T:
    """Make a parameter model of plain values. Raises SpecError with every complaint in one line.

    prefix, flags: the dotted path of `value` in the configuration, and the flags, so that a complaint can name the one.
    """
    from pydantic import ValidationError

    try:
        return model(value)
    except ValidationError as error:
        complaints = []
        for item in error.errors():
            path = ".".join([prefix, *map(str, item["loc"])]).strip(".")
            flag = next((f"{flag.name} or " for flag in flags if f"{flag.path}.".startswith(f"{path}.")), "")
            message = "is missing" if item["type"] == "missing" else item["msg"].removeprefix("Value error, ")
            complaints.append(f"{flag}{path}: {message[0].lower()}{message[1:]}")
        raise SpecError(where, f"can't be used: {'; '.join(complaints)}") from None
