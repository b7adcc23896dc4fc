"""`zephon-flows batches …` as scripts and people use it: JSON on standard output, words on standard error, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from zephon_core.batching import GlobalBatchPlan
from zephon_core.cli import app

Cli = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command with a store of the test's own; returns (exit code, JSON or text, standard error)."""
    monkeypatch.setenv("ZEPHON_STORE", str(tmp_path / "store"))

    def run(*arguments: object, as_json: bool = True) -> tuple[int, Any, str]:
        result = CliRunner().invoke(app, ["batches", *map(str, arguments), *(["--json"] if as_json else [])])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        shown = json.loads(result.stdout) if as_json and result.stdout else result.stdout
        return result.exit_code, shown, result.stderr

    return run


@pytest.fixture
def flags(tmp_path: Path) -> list[object]:
    """A table of 300 lengths and a budget."""
    path = tmp_path / "lengths.npy"
    np.save(path, np.random.default_rng(0).integers(1, 60, 300))
    return ["--lengths", path, "--maximum-tokens", 256]


def test_plan_has_the_shape_that_scripts_rely_on(cli: Cli, flags: list[object], tmp_path: Path) -> None:
    output = tmp_path / "out"
    code, result, _ = cli("plan", *flags, "--world", 4, "--output", output)
    assert code == 0 and result.keys() == {"plan", "fingerprint", "statistics", "cached", "seconds"}
    assert result["plan"] == str(output) and len(result["fingerprint"]) == 64
    assert (
        result["cached"] == {"lengths": False, "plan": False, "report": False}
        and result["seconds"].keys() == result["cached"].keys()
    )
    statistics = result["statistics"]
    assert (statistics["examples"], statistics["world_size"]) == (300, 4)
    assert statistics["batches"] == statistics["steps"] * 4 == sum(statistics["batches_per_rank"])
    code, again, _ = cli("plan", *flags, "--world", 4)
    assert code == 0 and set(again["cached"].values()) == {True} and again["fingerprint"] == result["fingerprint"]


def test_every_flag_reaches_the_plan(cli: Cli, flags: list[object], tmp_path: Path) -> None:
    more = ["--layout", "padded", "--maximum-examples", 20, "--seed", 3, "--epoch", 2, "--bucket-width", 5, "--window-steps", 7]
    assert cli("plan", *flags, "--world", 2, *more, "--output", tmp_path / "out")[0] == 0
    recipe = GlobalBatchPlan.open(tmp_path / "out").recipe
    assert (recipe.world_size, recipe.seed, recipe.epoch, recipe.bucket_width, recipe.window_steps) == (2, 3, 2, 5, 7)
    assert recipe.options.model_dump() == {"maximum_tokens": 256, "maximum_examples": 20, "layout": "padded"}


def test_a_configuration_file_and_flags_over_it(cli: Cli, flags: list[object], tmp_path: Path) -> None:
    config = tmp_path / "plan.yaml"
    config.write_text(f"spec: {{lengths: {{table: {flags[1]}}}, plan: {{maximum_tokens: 100, world_size: 3}}}}\n")
    code, result, _ = cli("plan", "--config", config, "--maximum-tokens", 128)
    assert code == 0 and result["statistics"]["world_size"] == 3
    assert result["statistics"]["batch_slots"]["largest"] in range(101, 129)


def test_stats_are_those_of_the_plan(cli: Cli, flags: list[object], tmp_path: Path) -> None:
    result = cli("plan", *flags, "--output", tmp_path / "out")[1]
    code, statistics, _ = cli("stats", tmp_path / "out")
    assert code == 0 and statistics == result["statistics"]
    (artifact,) = (tmp_path / "store" / "batch_plan").iterdir()
    assert cli("stats", artifact)[1] == statistics


def test_people_read_sentences(cli: Cli, flags: list[object], tmp_path: Path) -> None:
    code, text, _ = cli("plan", *flags, "--world", 2, "--output", tmp_path / "out", as_json=False)
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert code == 0 and list(lines) == ["batches", "tokens", "imbalance", "sizes", "shuffled", "fingerprint", "plan", "report"]
    assert "of 300 examples" in lines["batches"] and lines["report"] == str(tmp_path / "out" / "report.html")
    code, shown, _ = cli("stats", tmp_path / "out", as_json=False)
    assert code == 0 and shown.splitlines() == text.splitlines()[:5]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["plan", "--maximum-tokens", 9], 2, "spec.lengths: names neither a table nor texts"),
        (["plan", "--lengths", "x.npy"], 2, "--maximum-tokens or spec.plan.maximum_tokens: is missing"),
        (["plan", "--lengths", "x.npy", "--maximum-tokens", 0], 2, "--maximum-tokens or spec.plan.maximum_tokens"),
        (["plan", "--lengths", "x.npy", "--maximum-tokens", 9, "--layout", "loose"], 2, "'packed' or 'padded'"),
        (["plan", "--lengths", "x.npy", "--maximum-tokens", 9, "--world", 0], 2, "--world or spec.plan.world_size"),
        (["plan", "--lengths", "x.npy", "--maximum-tokens", 9], 1, "x.npy: is not there"),
        (["stats", "nowhere"], 1, "plan.json: is not there"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(cli: Cli, arguments: list[object], code: int, message: str) -> None:
    found, shown, errors = cli(*arguments)
    assert (found, shown) == (code, "")
    assert errors.splitlines()[-1].startswith("error: ") and message in errors


def test_a_damaged_plan_is_found_out(cli: Cli, flags: list[object], tmp_path: Path) -> None:
    cli("plan", *flags, "--output", tmp_path / "out")
    content = bytearray((tmp_path / "out" / "plan.arrow").read_bytes())
    content[-40] ^= 1
    (tmp_path / "out" / "plan.arrow").unlink()
    (tmp_path / "out" / "plan.arrow").write_bytes(content)
    code, _, errors = cli("stats", tmp_path / "out")
    assert code == 1 and "has another SHA-256" in errors


def test_an_example_that_fits_no_batch_is_named(cli: Cli, flags: list[object]) -> None:
    code, _, errors = cli("plan", *flags[:2], "--maximum-tokens", 20)
    assert code == 1 and "alone exceeds the budget" in errors and "example " in errors
