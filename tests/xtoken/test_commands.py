"""`zephon-flows xtoken …` as scripts and people use it: JSON on standard output, words on standard error, exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_pair import BARE, CHATML, LINES, datum_rows, logprob_rows_of, write_model, write_rows, write_side
from typer.testing import CliRunner

from zephon_core.cli import app

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("scores_here")

Cli = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command with a store of the test's own; returns (exit code, JSON or text, standard error)."""
    monkeypatch.setenv("ZEPHON_STORE", str(tmp_path / "store"))

    def run(*arguments: object, as_json: bool = True) -> tuple[int, Any, str]:
        result = CliRunner().invoke(app, ["xtoken", *map(str, arguments), *(["--json"] if as_json else [])])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        shown = json.loads(result.stdout) if as_json and result.stdout else result.stdout
        return result.exit_code, shown, result.stderr

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """student/, teacher/ with a model, datums.parquet (tokens), chats.parquet (messages), logprobs.parquet, texts.jsonl."""
    folder = tmp_path_factory.mktemp("inputs")
    student = write_side(folder / "student", 400, CHATML)
    teacher = write_side(folder / "teacher", 330, BARE, *LINES[1:])
    write_model(folder / "teacher", teacher.vocab_size)
    rows = datum_rows(student, teacher, 20, messages=False)
    chats = datum_rows(student, teacher, 6, messages=True)
    write_rows(folder / "datums.parquet", rows)
    write_rows(folder / "chats.parquet", chats)
    logprobs = logprob_rows_of([len(row["teacher_tokens"]) for row in rows])
    write_rows(folder / "logprobs.parquet", [{"teacher_logprobs": row} for row in logprobs])
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": row["messages"]}) + "\n" for row in chats))
    return folder


@pytest.fixture
def pair(folder: Path) -> list[object]:
    return ["--student", folder / "student", "--teacher", folder / "teacher"]


@pytest.fixture
def given(folder: Path, pair: list[object]) -> list[object]:
    """Datums, and logprobs that are given."""
    return ["--datums", folder / "datums.parquet", *pair, "--teacher-logprobs", folder / "logprobs.parquet"]


def test_attach_has_the_shape_that_scripts_rely_on(cli: Cli, given: list[object], tmp_path: Path) -> None:
    output = tmp_path / "out"
    code, result, _ = cli("attach", *given, "--clip", 0.5, "--center", "--output", output)
    assert code == 0 and result.keys() == {"output", "fingerprint", "stats", "drops", "doubt", "cached", "seconds"}
    assert result["output"] == str(output) and re.fullmatch("[0-9a-f]{64}", result["fingerprint"])
    assert (
        result["cached"] == {"align": False, "attach": False, "report": False}
        and result["seconds"].keys() == result["cached"].keys()
    )
    stats = result["stats"]
    assert stats["datums"] + stats["mismatch_drops"] + stats["empty_coverage_drops"] == 20
    assert stats["clipped_chunks"] > 0 and abs(stats["advantage_mean"]) < 1e-9
    assert result["drops"] == {"empty_coverage": stats["empty_coverage_drops"]}
    assert len(pq.read_table(output / "advantages.parquet")) == stats["datums"]
    code, again, _ = cli("attach", *given, "--clip", 0.5, "--center")
    assert code == 0 and set(again["cached"].values()) == {True} and again["fingerprint"] == result["fingerprint"]


def test_people_read_sentences(cli: Cli, given: list[object], tmp_path: Path) -> None:
    code, text, _ = cli("attach", *given, "--output", tmp_path / "out", as_json=False)
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert code == 0 and list(lines)[-4:] == ["steps", "fingerprint", "output", "report"]
    assert "of 20 datums got advantages" in lines["datums"] and "of" in lines["coverage"] and "empty_coverage" in lines["dropped"]
    assert lines["report"] == str(tmp_path / "out" / "report.html") and Path(lines["report"]).is_file()
    assert "attach cached" in cli("attach", *given, as_json=False)[1]


def test_every_flag_reaches_the_run(cli: Cli, folder: Path, pair: list[object], tmp_path: Path) -> None:
    chats = ["--datums", folder / "chats.parquet", *pair, "--model", folder / "teacher", "--dtype", "bfloat16"]
    more = ["--max-batch", 3, "--token-budget", 512, "--name", "mine", "--workers", 1, "--device", "cpu", "--gpu-memory-gb", 2]
    templates = ["--teacher-template", folder / "teacher" / "chat_template.jinja", "--student-template", "none"]
    code, _, errors = cli("attach", *chats, *more, *templates, "--output", tmp_path / "out")
    assert code == 0, errors
    assert json.loads((tmp_path / "out" / "chunk_advantages.json").read_bytes())["name"] == "mine"
    (scores,) = (tmp_path / "store" / "chunk_scores").iterdir()
    settings = json.loads((scores / "artifact.json").read_bytes())["spec"]
    assert (settings["max_batch"], settings["token_budget"], settings["model"]["dtype"]) == (3, 512, "bfloat16")
    (plan,) = (tmp_path / "store" / "chunk_plan").iterdir()
    assert json.loads((plan / "artifact.json").read_bytes())["inputs"]["student_template"] == ""


def test_a_configuration_file_and_flags_over_it(cli: Cli, folder: Path, given: list[object], tmp_path: Path) -> None:
    config = tmp_path / "advantages.yaml"
    spec = {
        "datums": [str(given[1])],
        "student": str(folder / "student"),
        "teacher": str(folder / "teacher"),
        "teacher_logprobs": str(folder / "logprobs.parquet"),
        "clip": 0.5,
    }
    config.write_text(json.dumps({"spec": spec, "run": {"output": str(tmp_path / "out")}}))
    code, result, _ = cli("attach", "--config", config)
    assert code == 0 and result["output"] == str(tmp_path / "out") and result["stats"]["clipped_chunks"] > 0
    code, result, _ = cli("attach", "--config", config, "--clip", 1000)
    assert code == 0 and result["stats"]["clipped_chunks"] == 0
    code, report, _ = cli("check", "--config", config, "--texts", folder / "texts.jsonl")  # of it, the pair
    assert code == 0 and report["coverage_rate"] > 0.99


def test_score_makes_what_attach_takes(cli: Cli, folder: Path, given: list[object], tmp_path: Path) -> None:
    model = ["--model", folder / "teacher", "--workers", 1]
    code, result, _ = cli("score", "--sequences", folder / "datums.parquet", *model, "--output", tmp_path / "scores")
    assert code == 0 and result.keys() == {
        *("output", "fingerprint", "sequences", "tokens", "poison", "forward", "receipt", "cached", "seconds"),
    }
    assert result["output"] == str(tmp_path / "scores") and result["sequences"] == 20
    code, attached, _ = cli("attach", *given[:-1], tmp_path / "scores" / "logprobs.parquet")
    assert code == 0 and attached["stats"]["datums"] > 0
    code, text, _ = cli("score", "--sequences", folder / "datums.parquet", *model, as_json=False)
    assert code == 0 and "20 of" in text and "score cached" in text


def test_check_says_what_is_in_the_way(cli: Cli, folder: Path, pair: list[object], tmp_path: Path) -> None:
    code, report, _ = cli(
        "check", *pair, "--texts", folder / "texts.jsonl", "--texts", folder / "chats.jsonl", "--html", tmp_path / "a" / "c.html"
    )
    assert code == 0 and report["coverage_rate"] > 0.9
    page = (tmp_path / "a" / "c.html").read_text()
    assert page.startswith("<!doctype html>")
    code, text, _ = cli("check", *pair, "--texts", folder / "texts.jsonl", as_json=False)
    assert code == 0 and "coverage" in text
    definition = json.loads((folder / "teacher" / "tokenizer.json").read_text())
    lossy = tmp_path / "lossy.json"
    lossy.write_text(json.dumps({**definition, "normalizer": {"type": "Replace", "pattern": {"Regex": "[a-z]"}, "content": "z"}}))
    code, report, _ = cli("check", "--student", folder / "student", "--teacher", lossy, "--texts", folder / "texts.jsonl")
    assert code == 3 and report["coverage_rate"] < 0.95


def test_show_draws_texts_rows_and_what_was_attached(
    cli: Cli, folder: Path, pair: list[object], given: list[object], tmp_path: Path
) -> None:
    html = tmp_path / "pictures" / "p.html"
    code, result, _ = cli("show", *pair, "--text", "Größe 你好", "--text", "two", "--html", html)
    assert code == 0 and result == {"html": str(html), "drawn": ["text 1", "text 2"]}
    assert html.read_text().startswith("<!doctype html>") and "text 2" in html.read_text()
    code, result, _ = cli("show", *pair, "--texts", folder / "texts.jsonl", "--row", 2, "--html", html)
    assert code == 0 and result["drawn"] == [f"{folder}/texts.jsonl:3"]
    code, result, _ = cli("show", *pair, "--texts", folder / "chats.jsonl", "--html", html)
    assert code == 0 and len(result["drawn"]) == 3
    code, _, errors = cli("show", *given, "--html", html)
    assert code == 1 and "holds no advantages of these datums with these settings. Run `zephon-flows xtoken attach`" in errors
    assert cli("attach", *given)[0] == 0
    code, result, _ = cli("show", *given, "--row", 19, "--row", 0, "--row", 5, "--html", html)
    assert code == 0 and result["drawn"] == ["trial 0, fragment 0", "trial 1, fragment 2", "trial 6, fragment 1"]
    assert "Dropped: no chunk covers any of its loss tokens." in html.read_text()
    code, text, _ = cli("show", *given, "--html", html, as_json=False)
    assert code == 0 and text.split() == ["drawn", str(html)]


def test_not_one_datum_with_advantages_is_found_wanting(cli: Cli, folder: Path, given: list[object], tmp_path: Path) -> None:
    rows = pq.read_table(folder / "logprobs.parquet").to_pylist()
    longer = [{"teacher_logprobs": [*row["teacher_logprobs"], -1.0]} for row in rows]
    code, result, _ = cli("attach", *given[:-1], write_rows(tmp_path / "longer.parquet", longer))
    assert code == 3 and result["stats"]["datums"] == 0 and result["drops"] == {"row_length": 20}
    assert len(pq.read_table(Path(result["output"]) / "advantages.parquet")) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["attach"], 2, "--datums or spec.datums: is missing; --student or spec.student: is missing"),
        (["attach", "{datums}", "{pair}"], 2, "spec: names neither teacher_logprobs nor score; name one: a file of the teacher's"),
        (["attach", "{given}", "--model", "m"], 2, "spec: names both teacher_logprobs and score"),
        (
            ["attach", "{given}", "--clip", "-1"],
            2,
            "--clip or spec.clip: is -1.0; write a positive number, or leave it out for no bound",
        ),
        (["attach", "{given}", "--device", "tpu"], 2, "--device or run.device: is 'tpu', expected this: auto, cpu, cuda"),
        (["attach", "{given}", "--device", "cuda:99"], 2, "device: is cuda:99, expected a GPU of this machine"),
        (["attach", "{given}", "--output", "s3://b/o"], 2, "s3://b/o: is a URL, expected a folder"),
        (["attach", "--datums", "nowhere.parquet", "{pair}", "--model", "m"], 1, "nowhere.parquet: does not exist"),
        (["attach", "{given}", "--teacher", "nowhere"], 1, "nowhere: is not there, expected a Hugging Face folder"),
        (["attach", "{datums}", "{pair}", "--model", "nowhere"], 1, "nowhere: does not exist"),
        (["attach", "{given}", "--teacher-template", "x"], 2, "teacher_template: is given, and the datums carry teacher_tokens"),
        (["score"], 2, "--sequences or spec.sequences: is missing; --model or spec.score.model: is missing"),
        (["score", "--sequences", "nowhere.parquet", "--model", "m"], 1, "nowhere.parquet: does not exist"),
        (["check", "{pair}"], 2, "--texts: is missing, expected a file of texts or messages"),
        (["check", "--texts", "x"], 2, "--student or spec.student: is missing; --teacher or spec.teacher: is missing"),
        (["check", "{pair}", "--texts", "nowhere.jsonl"], 1, "nowhere.jsonl: does not exist"),
        (["show", "{pair}"], 2, "--datums or spec.datums: is missing"),
        (["show", "{pair}", "--text", "a\udcffb"], 2, "--text: is no valid UTF-8 at character 2, expected text as UTF-8"),
        (["show", "{pair}", "--text", "a", "--text", "\ud83d"], 2, "--text: is no valid UTF-8 at character 1"),
        (["attach", "{given}", "--name", "a\udcffb"], 2, r"--name or spec.name: is 'a\udcffb', expected"),
        (["show", "{pair}", "--text", "a", "--html", "{folder}"], 2, "student: is a folder, expected a file, for --html"),
        (["show", "{given}", "--html", "{folder}"], 2, "student: is a folder, expected a file, for --html"),
        (["check", "{pair}", "--texts", "{texts}", "--html", "{folder}"], 2, "student: is a folder, expected a file, for --html"),
        (["check", "{pair}", "--texts", "{texts}", "--html", "{texts}/a/b.html"], 2, "is a file, not a folder, expected a file in"),
        (["check", "{pair}", "--texts", "{texts}", "--texts", "nowhere.jsonl"], 1, "nowhere.jsonl: does not exist"),
        (["check", "{pair}", "--texts", "{texts}", "--student-template", "{% if %}"], 2, "student_template: is no Jinja template"),
        (["attach", "{chats}", "--student-template", "{% if %}"], 2, "student_template: is no Jinja template (line 1: Temp"),
        (["show", "{pair}", "--text", "a", "--teacher-template", "{{ a"], 2, "teacher_template: is no Jinja template (line 1: "),
        (["show", "{pair}", "--texts", "{texts}", "--row", "99"], 1, "has no row 99, expected a row that is there, counted from 0"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(
    cli: Cli, folder: Path, pair: list[object], given: list[object], arguments: list[str], code: int, message: str
) -> None:
    known = {"{pair}": pair, "{given}": given, "{datums}": given[:2], "{texts}": [folder / "texts.jsonl"]}
    known["{folder}"] = [folder / "student"]
    known["{chats}"] = ["--datums", folder / "chats.parquet", *pair, "--model", folder / "teacher"]
    arguments = [argument.replace("{texts}/", f"{folder / 'texts.jsonl'}/") for argument in arguments]
    found, shown, errors = cli(*(part for argument in arguments for part in known.get(argument, [argument])))
    assert (found, shown) == (code, "")
    assert errors.splitlines()[-1].startswith("error: ") and message in errors


def test_a_pair_without_templates_is_told_which_to_set(cli: Cli, folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "tokenizer.json").write_bytes((folder / "student" / "tokenizer.json").read_bytes())
    arguments = ["check", "--student", bare, "--teacher", folder / "teacher", "--texts"]
    assert cli(*arguments, folder / "texts.jsonl")[0] == 0  # texts need none
    code, _, errors = cli(*arguments, folder / "chats.jsonl")
    assert code == 2 and "bare: has no chat template" in errors and "Set student_template." in errors
    code, _, errors = cli(*arguments, folder / "chats.jsonl", "--student-template", "none")
    assert code == 2 and "student_template: is none, expected a template" in errors


def test_numbers_are_numbers(cli: Cli, given: list[object]) -> None:
    code, result, _ = cli("attach", *given)
    advantages = np.concatenate(
        [np.array(row) for row in pq.read_table(Path(result["output"]) / "advantages.parquet").column("advantages").to_pylist()]
    )
    scored = advantages[advantages != 0.0]
    assert code == 0 and np.isfinite(advantages).all() and abs(scored.mean() - result["stats"]["advantage_mean"]) < 1e-6
