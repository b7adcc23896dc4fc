"""Usage errors of commands in one line, as all other errors are: where, what was found, what was wanted, which help to see."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from zephon_core.errors import SpecError

__all__ = ["USAGE", "CommandGroup", "CommandParser", "say_error", "wanted_value"]

USAGE = 2
"""The exit code."""

_UsageError: Any = typer.BadParameter.__mro__[1]  # what all usage errors are; typer gives a public name to this kind alone
_MEANT = ". Did you mean "
_INPUT = "Input should be "
_WANTED_VALUES = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "string_type": "text",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number from {ge} on",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number up to {le}",
}


def wanted_value(item: Mapping[str, Any]) -> str:
    """Say what one of pydantic's complaints wants of a single value, "" where it is about something else."""
    if item["type"] in _WANTED_VALUES:
        return _WANTED_VALUES[item["type"]].format(**item.get("ctx", {}))
    message = str(item["msg"])
    return message.removeprefix(_INPUT) if message.startswith(_INPUT) else ""


def say_error(message: str) -> None:
    """Write one line to standard error, as all errors of commands are written."""
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)


class CommandGroup(TyperGroup):
    """A group of commands whose usage errors are one line on standard error, as all other errors are; exit code 2."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Parse the group's own options."""
        with _usage_errors(lambda: f"{parent.command_path} {info_name}" if parent else str(info_name)):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse what follows the group's name, and run the command."""
        with _usage_errors(lambda: f"{ctx.command_path} {ctx.invoked_subcommand}"):
            return super().invoke(ctx)


class CommandParser(argparse.ArgumentParser):
    """A parser for `python -m` whose usage errors are one line on standard error, as those of the commands are; exit code 2."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`."""
        say_error(str(_refused(self.prog, message, command=self.prog)))
        raise SystemExit(USAGE)


@contextlib.contextmanager
def _usage_errors(command: Callable[[], str]) -> Iterator[None]:
    """Turn a usage error into its one line. command: names the one at fault where the error doesn't say it."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help, for want of arguments
            raise
        say_error(str(_usage_error(error, error.ctx.command_path if error.ctx else command())))
        raise typer.Exit(USAGE) from None


def _usage_error(error: Any, command: str) -> SpecError:
    """Say in the house's words what typer refuses: an option, a value, or what there is too much or too little of."""
    option, message = getattr(error, "option_name", ""), str(error.message)
    if option and hasattr(error, "possibilities"):
        like = sorted(set(error.possibilities or ()) - {"--help"})
        return _refused(option, "is no option of this command", wanted=" or ".join(like), command=command)
    if option:
        return _refused(option, message.removeprefix(f"Option {option!r} "), command=command)
    if (parameter := getattr(error, "param", None)) is None:
        found, meant, what = message.partition(_MEANT)
        return _refused(command, found, meant=meant.removeprefix(". ") + what, command=command)
    name = max(parameter.opts, key=len)
    where = name if name.startswith("-") else parameter.metavar or name.upper()
    if hasattr(error, "param_type"):
        return _refused(where, "is missing", command=command)
    items: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()  # of pydantic, which reads the values
    if not items:
        return _refused(where, message, command=command)
    item = items[0]
    return _refused(where, f"is {item['input']!r}", wanted=wanted_value(item) or str(item["msg"]), command=command)


def _refused(where: str, found: str, *, command: str, wanted: str = "", meant: str = "") -> SpecError:
    where, found = " ".join(where.split()), " ".join(found.split())
    remedy = f"{meant} See `{command} --help`.".lstrip()
    return SpecError(where, f"{found[:1].lower()}{found[1:]}".rstrip("."), wanted=wanted, remedy=remedy)
