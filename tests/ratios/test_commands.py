"""`zephon-flows ratios …` as scripts use it: JSON on standard output, words on standard error, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ratio_inputs import make_dataset
from typer.testing import CliRunner

from zephon_core.cli import app


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any, str]]:
    """Run a command with a store of the test's own; returns (exit code, JSON or None, standard error)."""
    monkeypatch.setenv("ZEPHON_STORE", str(tmp_path / "store"))

    def run(*arguments: str, as_json: bool = True) -> tuple[int, Any, str]:
        result = CliRunner().invoke(app, ["ratios", *arguments, *(["--json"] if as_json else [])])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        shown = json.loads(result.stdout) if as_json and result.stdout else result.stdout if result.stdout else None
        return result.exit_code, shown, result.stderr

    return run


@pytest.fixture
def sets(tmp_path: Path, word_tokenizer: Path) -> list[str]:
    """Flags of two data sets and their tokenizer."""
    urls = [f"{name}={make_dataset(tmp_path / 'data', name, rows=200)}" for name in ("a", "b")]
    return [*(word for url in urls for word in ("--dataset", url)), "--tokenizer", str(word_tokenizer)]


def test_prime_has_the_shape_that_scripts_rely_on(cli: Any, sets: list[str]) -> None:
    code, result, _ = cli("prime", *sets, "--exact-below-bytes", "0", "--pin", "b=0.3")
    assert code == 0 and result.keys() == {"ratios", "seconds"}
    ratio = result["ratios"]["a"]
    assert ratio.keys() >= {"tokens_per_byte", "source", "interval", "draws", "units", "bytes_read", "key"}
    low, high = ratio["interval"]
    assert low <= ratio["tokens_per_byte"] <= high and ratio["source"] == "measured"
    assert ratio["draws"] > 0 and ratio["units"] > 0 and ratio["bytes_read"] > 0 and len(ratio["key"]) == 64
    assert (result["ratios"]["b"]["tokens_per_byte"], result["ratios"]["b"]["source"]) == (0.3, "pinned")
    again = cli("prime", *sets, "--exact-below-bytes", "0", "--pin", "b=0.3")[1]
    assert again["ratios"] == result["ratios"]


def test_count_holds_the_estimate_against_the_truth(cli: Any, sets: list[str]) -> None:
    flags = [*sets, "--exact-below-bytes", "0"]
    primed = cli("prime", *flags)[1]["ratios"]
    code, result, _ = cli("count", *flags)
    assert code == 0 and result.keys() == {"ratios", "seconds"}
    for name, counted in result["ratios"].items():
        assert counted["key"] == primed[name]["key"]
        assert counted["interval"] == [counted["tokens_per_byte"]] * 2
        assert counted["tokens_per_byte"] == pytest.approx(counted["tokens"] / counted["raw_bytes"])
        assert counted["rows"] == 600 and counted["bad_rows"] == {}
        assert abs(counted["estimate"]["error"]) < 0.05 and isinstance(counted["estimate"]["holds"], bool)


def test_show_lists_what_is_known(cli: Any, sets: list[str]) -> None:
    primed = cli("prime", *sets)[1]["ratios"]
    listed = cli("show")[1]["documents"]
    assert {each["name"]: each["tokens_per_byte"] for each in listed} == {n: r["tokens_per_byte"] for n, r in primed.items()}
    code, document, _ = cli("show", primed["a"]["key"][:12])
    assert (
        code == 0
        and document["key"] == primed["a"]["key"]
        and document["ratios"] == {"a": [primed["a"]["tokens_per_byte"], "measured", ""]}
    )
    code, _, errors = cli("show", "zzz")
    assert code == 2 and errors.startswith("error: zzz: ")


def test_mixture_and_export(cli: Any, sets: list[str], tmp_path: Path) -> None:
    code, result, _ = cli("mixture", *sets, "--share", "a=3", "--share", "b=1", "--budget-tokens", "1e6")
    assert code == 0
    assert sum(weight["probability"] for weight in result["mixture"].values()) == pytest.approx(1)
    assert result["mixture"]["a"]["share"] == 0.75 and result["mixture"]["a"]["epochs"] > 1
    file = tmp_path / "blend.yaml"
    code, exported, _ = cli("export", *sets, "--share", "a=3", "--share", "b=1", "--to", "energon", "--output", str(file))
    assert code == 0 and exported["content"] == file.read_text() and "MetadatasetV2" in file.read_text()
    code, text, _ = cli("export", *sets, "--to", "zephon", as_json=False)
    assert json.loads(text)["primer"].keys() == {"a", "b"}
    for arguments in (("mixture", *sets), ("export", *sets, "--to", "energon"), ("export", *sets, "--to", "other")):
        code, _, errors = cli(*arguments)
        assert code == 2 and errors.splitlines()[-1].startswith("error: ")


def test_drift_found_is_exit_code_3(cli: Any, sets: list[str], tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"
    file.write_text(json.dumps(cli("prime", *sets)[1]))
    ratio = json.loads(file.read_text())["ratios"]["a"]["tokens_per_byte"]

    def drift(tokens: float) -> tuple[int, Any, str]:
        return cli("drift", "--ratios", str(file), "--delivered", f"a={tokens}", "--scheduled", "a=1000000")  # type: ignore[no-any-return]

    code, result, _ = drift(1e6 * ratio)
    assert (code, result["ok"], result["drifts"][0]["alarm"]) == (0, True, False)
    code, result, _ = drift(1.1e6 * ratio)
    assert (code, result["ok"], result["drifts"][0]["dataset"]) == (3, False, "a")
    log = tmp_path / "log.jsonl"
    row = {"dataset": "b", "delivered_tokens": 100, "scheduled_bytes": 100}
    log.write_text(f"{json.dumps(row)}\n" * 20)
    assert cli("drift", "--ratios", str(file), "--log", str(log))[0] == 3
    log.write_text('{"dataset": "b"}\n')
    code, _, errors = cli("drift", "--ratios", str(file), "--log", str(log))
    assert code == 1 and "log.jsonl:1" in errors
    assert cli("drift", "--ratios", str(log), "--delivered", "a=1", "--scheduled", "a=1")[0] == 1
    assert cli("drift", "--ratios", str(file), "--delivered", "a=1")[0] == 2
    assert cli("drift", "--ratios", str(file), "--delivered", "x=1", "--scheduled", "x=1")[0] == 2


def test_guesses_are_a_warning_in_words(cli: Any, sets: list[str]) -> None:
    code, result, errors = cli("prime", *sets[:4], "--measure", "ratio_inputs:fail")
    assert code == 0 and result["ratios"]["a"]["source"] == "fallback"
    (warning,) = [line for line in errors.splitlines() if line.startswith("warning: ")]
    assert "2 of 2 ratios are guesses: a: " in warning


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "x"], "NAME=URL"),
        (["--dataset", "c=/nowhere/at/all"], "/nowhere/at/all"),
        (["--pin", "c=1"], "--pin"),
        (["--target-rel-error", "2"], "--target-rel-error"),
        (["--special-tokens", "both"], "--special-tokens"),
        (["--tokenizer", "/nowhere/tokenizer.json"], "/nowhere/tokenizer.json"),
    ],
)
def test_bad_arguments_are_said_in_one_line(cli: Any, sets: list[str], arguments: list[str], words: str) -> None:
    code, result, errors = cli("prime", *sets, *arguments)
    assert code in (1, 2) and result is None
    assert errors.splitlines()[-1].startswith("error: ") and words in errors


def test_a_configuration_file_is_the_flows_parameters(cli: Any, sets: list[str], tmp_path: Path) -> None:
    config = tmp_path / "ratios.yaml"
    config.write_text(
        f"spec:\n  datasets: {{a: {sets[1].removeprefix('a=')}}}\n  tokenizer: {sets[-1]}\n  pins: {{a: 0.25}}\n"
        f"run: {{output: {tmp_path / 'out'}}}\n"
    )
    code, result, _ = cli("prime", "--config", str(config))
    assert code == 0 and result["ratios"]["a"]["tokens_per_byte"] == 0.25
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["ratios.json", "report.html", "zephon.json"]


@pytest.mark.parametrize("command", ["prime", "count", "mixture"])
def test_people_get_tables(cli: Any, sets: list[str], command: str) -> None:
    shares = ["--share", "a=1", "--share", "b=1", "--budget-tokens", "1e6"] if command == "mixture" else []
    code, text, _ = cli(command, *sets, *shares, as_json=False)
    assert code == 0 and all(word in text for word in ("data set", "a", "b"))
