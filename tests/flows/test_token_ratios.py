"""The token-ratios flow against a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shared_service import wait_for

from zephon_core.locks import is_held
from zephon_core.ratios.run import prime_mixture
from zephon_core.ratios.specs import RatioRun, RatioSpec

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "tests" / "ratios" / "programs"))

from ratio_inputs import make_dataset, make_tokenizer  # noqa: E402

Run = Callable[..., dict[str, Any]]


class Inputs:
    """Data sets by name, made when they are first asked for, and the log of what was counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = make_tokenizer(folder)
        self.log = folder / "log.txt"

    def url(self, name: str) -> str:
        place = self.folder / "data" / name
        return f"{name}={place if place.exists() else make_dataset(self.folder / 'data', name)}"

    def spec(self, *names: str, **change: Any) -> dict[str, Any]:
        return {
            "name": "Small.mix",
            "datasets": [self.url(name) for name in names],
            "measure": "ratio_inputs:count_words",
            **change,
        }

    def counted(self) -> set[str]:
        names = set(self.log.read_text().split()) if self.log.exists() else set()
        self.log.unlink(missing_ok=True)
        return names


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return Inputs(tmp_path)


@pytest.fixture
def run(flows: Any, inputs: Inputs, tmp_path: Path) -> Run:
    """Run the flow with a store of the test's own; returns its outcome and what Prefect says of it."""

    def run_flow(spec: dict[str, Any], *, state: str = "COMPLETED", **options: Any) -> dict[str, Any]:
        options = {"store": str(tmp_path / "store"), "workers": 2, **options}
        outcome = dict(flows.call("ratio_runs:run_ratios", spec=spec, run=options, log=str(inputs.log)))
        assert outcome["state"] == state, outcome["message"]
        return {**outcome, **flows.call("prefect_views:what_prefect_says", flow_run=outcome["flow_run"])}

    return run_flow


def calibrated(outcome: dict[str, Any]) -> dict[str, str]:
    """The states of the calibrate tasks, by data set."""
    return {
        name.removeprefix("calibrate-Small.mix-"): state
        for name, state in outcome["tasks"].items()
        if name.startswith("calibrate-")
    }


def once_cached(ratios: dict[str, Any]) -> dict[str, Any]:
    """What a later run says of the same ratios: nothing is read for them any more."""
    return {name: {**ratio, "cached": True, "bytes_read": 0} for name, ratio in ratios.items()}


def documents(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "store" / "token_ratios").glob("*.json"))


def test_a_second_run_is_cached_and_a_data_set_added_is_measured_alone(run: Run, inputs: Inputs, tmp_path: Path) -> None:
    first = run(inputs.spec("a", "b"))
    assert first["name"] == "ratios-Small.mix"
    assert first["tasks"].keys() == {"identify-Small.mix", "prime-Small.mix", "calibrate-Small.mix-a", "calibrate-Small.mix-b"}
    assert calibrated(first) == {"a": "Completed", "b": "Completed"} and inputs.counted() == {"a", "b"}
    second = run(inputs.spec("a", "b"))
    assert calibrated(second) == {"a": "Cached", "b": "Cached"} and inputs.counted() == set()
    assert second["result"]["ratios"] == once_cached(first["result"]["ratios"])
    third = run(inputs.spec("c", "b", "a"))
    assert calibrated(third) == {"a": "Cached", "b": "Cached", "c": "Completed"} and inputs.counted() == {"c"}
    assert list(third["result"]["ratios"]) == ["c", "b", "a"] and len(documents(tmp_path)) == 3


def test_the_document_is_the_truth_and_prefect_its_shadow(run: Run, inputs: Inputs, tmp_path: Path) -> None:
    first = run(inputs.spec("a", "b"))
    keys = {name: ratio["key"] for name, ratio in first["result"]["ratios"].items()}
    inputs.counted()
    (tmp_path / "store" / "token_ratios" / f"{keys['a']}.json").unlink()
    second = run(inputs.spec("a", "b"))
    assert calibrated(second) == {"a": "Completed", "b": "Cached"} and inputs.counted() == {"a"}
    path = tmp_path / "store" / "token_ratios" / f"{keys['b']}.json"
    path.write_text(path.read_text().replace('"measured"', '"pinned"'))  # a document that was altered is none
    third = run(inputs.spec("a", "b"))
    assert calibrated(third) == {"a": "Cached", "b": "Completed"} and inputs.counted() == {"b"}
    for record in (tmp_path / "store" / "prefect").iterdir():
        record.unlink()
    assert calibrated(run(inputs.spec("a", "b"))) == {"a": "Cached", "b": "Cached"}
    assert run(inputs.spec("a", "b"), refresh=True)["result"]["ratios"] == first["result"]["ratios"]
    assert inputs.counted() == {"a", "b"}


def test_what_the_command_line_has_measured_is_cached(run: Run, inputs: Inputs, tmp_path: Path) -> None:
    """The server has never seen these: its records are no part of the truth."""
    spec = inputs.spec("a", "b", measure="", tokenizer=str(inputs.tokenizer), field="text")
    made = prime_mixture(RatioSpec.model_validate(spec), RatioRun(store=str(tmp_path / "store")))
    outcome = run(spec)
    assert calibrated(outcome) == {"a": "Cached", "b": "Cached"}
    assert outcome["result"]["ratios"] == once_cached(made.to_json()["ratios"])


@pytest.mark.parametrize("runner", ["thread", "process"])
def test_whatever_runs_it_the_numbers_are_the_same(run: Run, inputs: Inputs, tmp_path: Path, runner: str) -> None:
    spec = inputs.spec("a", "b", measure="", tokenizer=str(inputs.tokenizer), exact_below_bytes=0, target_rel_error=0.1)
    here = prime_mixture(RatioSpec.model_validate(spec), RatioRun(store=str(tmp_path / "other"))).to_json()["ratios"]
    assert run(spec, task_runner=runner)["result"]["ratios"] == here
    assert here["a"]["draws"] > 0


def test_every_run_ends_with_a_table_a_page_and_files(run: Run, inputs: Inputs, tmp_path: Path) -> None:
    output = tmp_path / "out"
    spec = inputs.spec("a", "b", pins=["b=0.3"], shares=["a=3", "b=1"], budget_tokens=1e6)
    outcome = run(spec, output=str(output), publish=str(tmp_path / "map"))
    artifacts = {artifact["key"]: artifact for artifact in outcome["artifacts"]}
    rows = artifacts["ratios-small-mix-steps"]["data"]
    assert [(row["data set"], row["state"]) for row in rows] == [("a", "measured"), ("b", "pinned"), ("Small.mix", "known")]
    assert len(rows[-1]["fingerprint"]) == 64 and rows[-1]["url"] == str(output)
    assert "| a |" in artifacts["ratios-small-mix-report"]["data"] and "report.html" in artifacts["ratios-small-mix-report"]["data"]
    assert json.loads((output / "ratios.json").read_bytes())["mixture"]["a"]["share"] == 0.75
    assert (output / "report.html").read_text().startswith("<!doctype html>")
    (published,) = (tmp_path / "map").iterdir()
    assert json.loads(published.read_bytes())["ratios"]["b"] == [0.3, "pinned", ""]
    assert outcome["result"]["mixture"]["a"]["epochs"] > 1


def test_a_data_set_that_is_away_is_a_guess_and_the_others_are_measured(run: Run, inputs: Inputs, tmp_path: Path) -> None:
    spec = inputs.spec("a")
    outcome = run({**spec, "datasets": [*spec["datasets"], "b=http://127.0.0.1:9/b.jsonl"]})
    assert outcome["result"]["ratios"]["a"]["source"] == "measured"
    assert outcome["result"]["ratios"]["b"]["source"] == "fallback"
    assert any("1 of 2 ratios are guesses: b: " in line for line in outcome["logs"])
    rows = {artifact["key"]: artifact for artifact in outcome["artifacts"]}["ratios-small-mix-steps"]["data"]
    assert rows[1]["state"] == "fallback" and rows[1]["remark"] and rows[-1]["state"] == "with guesses"


def test_what_would_be_wrong_for_all_fails_the_run_in_one_line(run: Run, inputs: Inputs, tmp_path: Path) -> None:
    outcome = run(inputs.spec("a", measure="ratio_inputs:nothing"), state="FAILED")
    assert "ratio_inputs:nothing" in outcome["message"]
    bad = tmp_path / "data" / "bad"
    bad.mkdir(parents=True)
    (bad / "shard.jsonl").write_text('{"text": 7}\n')
    spec = inputs.spec("a", "bad", measure="", tokenizer=str(inputs.tokenizer), field="text")
    outcome = run(spec, state="FAILED")
    assert "shard.jsonl:1" in outcome["message"]
    assert calibrated(outcome)["a"] == "Completed"  # and is kept


def test_a_killed_run_is_taken_up_by_the_next(run: Run, inputs: Inputs, tmp_path: Path, flow_env: dict[str, str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"spec": inputs.spec("a", "b"), "run": {"store": str(tmp_path / "store"), "workers": 2}}))
    hold = tmp_path / "hold"
    hold.touch()
    programs = CHECKOUT / "tests" / "ratios" / "programs"
    env = {**flow_env, "COUNT_HOLD": str(hold), "PYTHONPATH": f"{flow_env['PYTHONPATH']}:{programs}"}
    command = [sys.executable, "-m", "flows.token_ratios", "--config", str(config)]
    with subprocess.Popen(command, cwd=CHECKOUT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(hold.with_suffix(".reached").exists, "the count")
        process.send_signal(signal.SIGKILL)
    assert documents(tmp_path) == []
    outcome = run(inputs.spec("a", "b"))
    assert calibrated(outcome) == {"a": "Completed", "b": "Completed"} and len(documents(tmp_path)) == 2
    assert not any(is_held(lease) for lease in (tmp_path / "store" / "leases").glob("*.lease"))


def test_the_flow_runs_from_the_checkout(inputs: Inputs, tmp_path: Path, flow_env: dict[str, str]) -> None:
    config = tmp_path / "config.json"
    spec = inputs.spec("a", measure="", tokenizer=str(inputs.tokenizer))
    config.write_text(json.dumps({"spec": spec, "run": {"store": str(tmp_path / "store")}}))
    command = [sys.executable, "-m", "flows.token_ratios", "--config", str(config)]
    done = subprocess.run(command, cwd=CHECKOUT, env=flow_env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ratios"]["a"]["source"] == "measured"
    config.write_text(json.dumps({"spec": {"datasets": []}}))
    done = subprocess.run(command, cwd=CHECKOUT, env=flow_env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "spec.datasets" in done.stderr


def test_a_mixture_that_cannot_be_worked_out_fails_the_run_after_the_ratios(run: Run, inputs: Inputs, tmp_path: Path) -> None:
    (tmp_path / "data" / "empty").mkdir(parents=True)
    (tmp_path / "data" / "empty" / "a.jsonl").touch()
    spec = inputs.spec("a", "empty", shares=["a=1", "empty=1"])
    outcome = run(spec, state="FAILED", output=str(tmp_path / "out"))
    assert "can't be worked out: data set empty: has no rows" in outcome["message"]
    assert json.loads((tmp_path / "out" / "ratios.json").read_bytes())["ratios"]["a"]["source"] == "measured"
