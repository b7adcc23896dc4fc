"""A usage error is one line, whoever reads the arguments; help stays help."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from zephon_core.cli import app
from zephon_core.usage import CommandParser

_BUILD = "See `zephon-flows bank build --help`."


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("bank build --clip five", f"--clip: is no option of this command. {_BUILD}"),
        ("bank build --mode folder", f"--mode: is no option of this command, expected --model or --name or --no-index. {_BUILD}"),
        ("bank build -q", f"-q: is no option of this command. {_BUILD}"),
        ("bank build --token-budget five", f"--token-budget: is 'five', expected a whole number. {_BUILD}"),
        ("bank build --model", f"--model: requires an argument. {_BUILD}"),
        ("bank build --refresh=3", f"--refresh: does not take a value. {_BUILD}"),
        ("bank build more", f"zephon-flows bank build: got unexpected extra argument(s) (more). {_BUILD}"),
        ("bank extend folder", "--source: is missing. See `zephon-flows bank extend --help`."),
        ("bank verify --json", "DIR: is missing. See `zephon-flows bank verify --help`."),
        ("bank nearest folder text -k 0", "--count: is '0', expected a number from 1 on. See `zephon-flows bank nearest --help`."),
        ("store push artifact", "URL: is missing. See `zephon-flows store push --help`."),
        ("xtoken attach --clip five", "--clip: is 'five', expected a number. See `zephon-flows xtoken attach --help`."),
        ("bank buld", "zephon-flows bank: no such command 'buld'. Did you mean 'build'? See `zephon-flows bank --help`."),
        ("bank --nope", "--nope: is no option of this command. See `zephon-flows bank --help`."),
        ("nope", "zephon-flows: no such command 'nope'. See `zephon-flows --help`."),
        ("--nope", "--nope: is no option of this command. See `zephon-flows --help`."),
    ],
)
def test_usage_errors_are_one_line(arguments, line):
    result = CliRunner().invoke(app, arguments.split(), prog_name="zephon-flows")
    assert (result.exit_code, result.stderr, result.stdout) == (2, f"error: {line}\n", "")


def test_an_option_of_two_lines_is_told_in_one():
    result = CliRunner().invoke(app, ["bank", "build", "--no\nsuch"], prog_name="zephon-flows")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("error: --no such: is no option of this command")


def test_every_group_of_commands_says_its_usage_errors_in_one_line():
    groups = [["--nope"], *([group.name or group.typer_instance.info.name, "--nope"] for group in app.registered_groups)]
    assert len(groups) == 6
    for arguments in groups:
        result = CliRunner().invoke(app, arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), arguments


@pytest.mark.parametrize("arguments", [[], ["bank"], ["bank", "--help"], ["bank", "build", "-h"]])
def test_help_is_help(arguments):
    result = CliRunner().invoke(app, arguments)
    assert "error:" not in result.output
    assert "--help" in result.output
    assert result.output.count("\n") > 10


def test_usage_errors_of_python_programs_are_one_line(capsys):
    parser = CommandParser(prog="python -m program")
    parser.add_argument("--config", required=True)
    with pytest.raises(SystemExit) as caught:
        parser.parse_args([])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "error: python -m program: the following arguments are required: --config. See `python -m program --help`.\n"
    )
