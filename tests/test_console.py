import json

import pytest
import typer
from pydantic import BaseModel, ConfigDict, Field
from typer.testing import CliRunner

from zephon_core.console import Flag, JsonOption, VerboseOption, emit, read_config, validated, with_flags, with_parameters
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
        ("full", 1, "error: /some/file: No space left on device\n"),
    ],
)
def test_errors_are_one_line_and_have_their_exit_codes(app, place, code, line):
    result = run(app, place)
    assert (result.exit_code, result.stderr, result.stdout) == (code, line, "")


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
    assert "--max-batch or spec.max_batch: input should be greater than or equal to 1" in message
    assert "spec.name: is missing" in message
    assert "spec.extra: extra inputs are not permitted" in message
    assert "\n" not in message
