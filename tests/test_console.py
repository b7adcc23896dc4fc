import errno
import json
import os
import subprocess
import sys

import pytest
import typer
from pydantic import BaseModel, ConfigDict, Field
from typer.testing import CliRunner

from zephon_core.bank.commands import _FLAGS as BANK_FLAGS
from zephon_core.bank.specs import BankSpec, RunOptions
from zephon_core.console import (
    Flag,
    JsonOption,
    VerboseOption,
    command_errors,
    emit,
    read_config,
    validated,
    with_flags,
    with_parameters,
)
from zephon_core.errors import InputError, SpecError

FLAGS = (
    Flag("--model", "spec.encode.model.path", str, "The model."),
    Flag("--max-batch", "spec.max_batch", int, "Rows."),
    Flag("--refresh", "run.refresh", bool, "Anew.", off="--no-refresh"),
    Flag("--source", "spec.sources", list[str], "Files."),
)


@pytest.fixture
def app():
    app = typer.Typer()

    @app.command()
    @with_parameters(FLAGS)
    def show(place: str, *, values: dict, as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
        """Show what was given."""
        if place == "nowhere":
            raise InputError("nowhere", "is not there", remedy="Go elsewhere.")
        if place == "bad":
            raise SpecError("bad", "is bad")
        if place == "full":
            raise OSError(28, "No space left on device", "/some/file")
        emit({"place": place, "values": values}, as_json=as_json, render=lambda: None)

    @app.command()
    def other() -> None:
        """Do nothing."""

    return app


def run(app, *arguments):
    return CliRunner().invoke(app, ["show", *arguments])


def test_flags_override_the_file_and_only_those_given(app, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("spec: {max_batch: 3, encode: {model: folder}}\nrun: {refresh: true}\n")
    result = run(app, "here", "--config", str(config), "--max-batch", "7", "--source", "a", "--source", "b", "--json")
    assert json.loads(result.stdout)["values"] == {
        "spec": {"max_batch": 7, "encode": {"model": "folder"}, "sources": ["a", "b"]},
        "run": {"refresh": True},
    }


def test_a_model_named_by_text_can_be_overridden(app, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"spec": {"encode": {"model": "folder"}}}')
    result = run(app, "here", "--config", str(config), "--model", "other", "--no-refresh", "--json")
    assert json.loads(result.stdout)["values"] == {"spec": {"encode": {"model": {"path": "other"}}}, "run": {"refresh": False}}


@pytest.mark.parametrize(
    ("place", "code", "line"),
    [
        ("nowhere", 1, "error: nowhere: is not there. Go elsewhere.\n"),
        ("bad", 2, "error: bad: is bad.\n"),
        (
            "full",
            1,
            "error: /some/file: can't be written: no space is left there. "
            "Free some space and run it again: what is finished is kept.\n",
        ),
    ],
)
def test_errors_are_one_line_and_have_their_exit_codes(app, place, code, line):
    result = run(app, place)
    assert (result.exit_code, result.stderr, result.stdout) == (code, line, "")


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM]
)
def test_a_disk_that_says_no_is_named_with_what_to_do(capsys, number):
    for error, places, where in (
        (OSError(number, "why", "/a/file"), ["store"], "/a/file: "),
        (OSError(number, "why"), ["store", "", "output"], "store or output: "),
        (OSError(number, "why"), [], "the disk: "),
    ):
        with pytest.raises(typer.Exit) as caught, command_errors(verbose=False, places=places):
            raise error
        line = capsys.readouterr().err
        assert caught.value.exit_code == 1
        assert line.startswith(f"error: {where}")
        assert line.count("\n") == 1
        assert line.count(". ") == 1  # found. What to do.


def test_other_errors_of_the_system_keep_their_words(capsys):
    with pytest.raises(typer.Exit), command_errors(verbose=False, places=["store"]):
        raise OSError(errno.EIO, "Input/output error", "/a/file")
    assert capsys.readouterr().err == "error: /a/file: Input/output error.\n"


@pytest.mark.parametrize(
    "arguments", [["store", "list", "--json"], ["store", "list"], ["store", "gc"], ["bank", "--help"], ["--version"]]
)
def test_a_reader_who_goes_away_is_no_error(tmp_path, arguments):
    """As in `zephon-flows … | head -1`: the pipe is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "zephon_core.cli", *arguments]
    environment = {**os.environ, "ZEPHON_STORE": str(tmp_path)}
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, env=environment)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")


def test_a_traceback_only_when_asked_for(app):
    assert isinstance(run(app, "nowhere", "-v").exception, InputError)


@pytest.mark.parametrize(
    ("content", "complaint"), [("- a\n", "holds a list"), ("a: [", "is no YAML or JSON"), ("\x00", "is no YAML or JSON")]
)
def test_a_broken_file_of_parameters_is_refused(tmp_path, content, complaint):
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(SpecError, match=complaint):
        read_config(path)


def test_an_absent_file_of_parameters_is_refused(tmp_path):
    with pytest.raises(SpecError, match="No such file"):
        read_config(tmp_path / "absent.yaml")


def test_an_empty_file_of_parameters_is_no_parameters(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("# nothing\n")
    assert read_config(path) == {}


def test_a_flag_never_overwrites_something_of_another_shape():
    with pytest.raises(SpecError, match="expected a mapping"):
        with_flags({"spec": [1]}, {"spec.max_batch": 3})


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_batch: int = Field(ge=1)
    name: str


def test_complaints_name_the_flag_and_come_all_at_once():
    with pytest.raises(SpecError) as caught:
        validated(Settings.model_validate, {"max_batch": 0, "extra": 1}, where="flags", prefix="spec", flags=FLAGS)
    message = str(caught.value)
    assert "--max-batch or spec.max_batch: is 0, expected a number from 1 on" in message
    assert "spec.name: is missing" in message
    assert "spec.extra: extra inputs are not permitted" in message
    assert "\n" not in message


def complaint(model, value, **more):
    with pytest.raises(SpecError) as caught:
        validated(model.model_validate, value, where="flags", flags=BANK_FLAGS, **more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("run", "flag", "wanted"),
    [
        ({"rows": "5"}, "--rows or run.rows: is '5'", "START:END"),
        ({"device": "tpu"}, "--device or run.device: is 'tpu'", "auto, cpu, cuda or cuda:N"),
    ],
)
def test_a_pattern_is_told_in_words(run, flag, wanted):
    message = complaint(RunOptions, run, prefix="run")
    assert f"{flag}, expected this: " in message
    assert wanted in message
    assert "pattern" not in message


SPEC = {"scan": {"sources": ["a"]}, "encode": {"model": "folder"}}


@pytest.mark.parametrize(
    ("change", "place", "wanted"),
    [
        ({"name": "a b"}, "--name or spec.name: is 'a b'", "letters, digits, dots, - and _"),
        (
            {"encode": {"model": {"path": "m", "backbone": "half"}}},
            "--backbone or spec.encode.model.backbone: is 'half'",
            "inner: ",
        ),
        (
            {"scan": {"sources": ["a"], "fields": [{"path": "a", "kind": "?"}]}},
            "--fields or spec.scan.fields.0.kind: is '?'",
            "Letters, digits, - and _",
        ),
    ],
)
def test_patterns_in_inner_models_are_told_in_words_too(change, place, wanted):
    message = complaint(BankSpec, {**SPEC, **change}, prefix="spec")
    assert place in message
    assert wanted in message
    assert "pattern" not in message


def test_every_pattern_of_a_field_has_words_that_can_stand_for_it():
    def fields(model):
        for name, field in model.model_fields.items():
            yield model.__name__, name, field
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from fields(field.annotation)

    patterned = [
        (model, name, field.description)
        for parameters in (BankSpec, RunOptions)
        for model, name, field in fields(parameters)
        if any(getattr(item, "pattern", None) for item in field.metadata)
    ]
    assert len(patterned) >= 4
    assert [name for name in patterned if not name[2]] == []


def test_a_list_of_which_all_are_wrong_is_not_called_too_short():
    message = complaint(BankSpec, {**SPEC, "scan": {"sources": ["a"], "fields": "a..b"}}, prefix="spec")
    assert message == (
        "flags: can't be used: --fields or spec.scan.fields.0.path: is 'a..b', expected this: "
        "Names joined by dots, with [] after the name of a list to go into its elements: query, candidates[].text."
    )


def test_a_list_that_is_empty_is_called_too_short():
    assert "at least 1 item" in complaint(BankSpec, {**SPEC, "scan": {"sources": []}}, prefix="spec")


def test_what_concerns_several_settings_names_no_flag_that_has_nothing_to_do_with_it():
    message = complaint(RunOptions, {"parts": 2, "part": 2}, prefix="run")
    assert message.startswith("flags: can't be used: run: part is 2 of 2 parts")
    assert "--model or spec.encode.model: is missing" in complaint(BankSpec, {**SPEC, "encode": {}}, prefix="spec")


def test_help_says_the_defaults_that_the_settings_have():
    """All of them, in words that reach the terminal: square brackets would be taken for markup."""
    from zephon_core.cli import app

    text = " ".join(CliRunner().invoke(app, ["bank", "build", "--help"], env={"COLUMNS": "400"}).stdout.split())
    claimed = 0
    for flag in BANK_FLAGS:
        root, *path = flag.path.split(".")
        model = {"spec": BankSpec, "run": RunOptions}[root]
        for name in path[:-1]:
            model = model.model_fields[name].annotation
        field = model.model_fields[path[-1]]
        if field.is_required():
            continue
        if flag.name != "--base":
            assert "[default: " in flag.help, flag.name
            assert flag.help in text, flag.name
        if isinstance(field.default, int | str) and not isinstance(field.default, bool) and field.default not in (0, ""):
            assert f"[default: {field.default}]" in flag.help, flag.name
            claimed += 1
    assert claimed >= 10
