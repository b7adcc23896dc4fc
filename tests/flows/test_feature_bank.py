"""The feature-bank flow against a real server, with a small encoder of our own behind the plug-in interface."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shared_service import processes_with, wait_for
from tiny_inputs import bank_spec, make_inputs

from zephon_core.bank.build import build_bank
from zephon_core.bank.specs import BankSpec, RunOptions
from zephon_core.locks import is_held
from zephon_core.store import ArtifactStore

CHECKOUT = Path(__file__).resolve().parents[2]
STEPS = ("scan", "tokenize", "encode", "manifest")
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture
def run(flows: Any, inputs: Path, tmp_path: Path) -> Run:
    """Run the flow on the small inputs with a store of the test's own; returns what `bank_runs.run_bank` does."""

    def run_flow(spec: dict[str, Any] | None = None, *, state: str = "COMPLETED", **options: Any) -> dict[str, Any]:
        options = {"store": str(tmp_path / "store"), "workers": 1, **options}
        outcome = dict(flows.call("bank_runs:run_bank", spec=spec or bank_spec(inputs), run=options))
        assert outcome["state"] == state, outcome["message"]
        return outcome

    return run_flow


@pytest.fixture(scope="module")
def said(flows: Any, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two runs of one bank, one after the other, and what Prefect says of them."""
    options = {"store": str(tmp_path_factory.mktemp("store")), "output": str(tmp_path_factory.mktemp("out") / "bank"), "workers": 1}
    runs = []
    for _ in range(2):
        outcome = flows.call("bank_runs:run_bank", spec=bank_spec(inputs), run=options)
        runs.append({**outcome, **flows.call("prefect_views:what_prefect_says", flow_run=outcome["flow_run"])})
    return runs


def features_sha256(folder: str | Path) -> str:
    return hashlib.sha256((Path(folder) / "features.f16.npy").read_bytes()).hexdigest()


def test_a_run_builds_and_a_second_one_is_cached(said: list[dict[str, Any]]) -> None:
    first, second = said
    assert [outcome["state"] for outcome in said] == ["COMPLETED", "COMPLETED"]
    assert first["result"]["cached"] == dict.fromkeys(STEPS, False)
    assert second["result"]["cached"] == dict.fromkeys(STEPS, True)
    assert first["result"]["complete"] and first["result"]["text_count"] == first["result"]["encoded_rows"] > 300
    assert first["result"]["fingerprint"] == second["result"]["fingerprint"]
    assert (Path(second["result"]["bank"]) / "manifest.json").is_file()


def test_runs_and_tasks_have_names_that_say_what_they_are(said: list[dict[str, Any]]) -> None:
    first, second = said
    names = [f"{verb}-Small.one" for verb in ("identify", "scan", "tokenize", "encode", "manifest", "publish")]
    names[3] += "-all"
    assert first["name"] == "bank-Small.one"
    assert first["tasks"] == dict.fromkeys(names, "Completed")
    assert second["tasks"] == {name: "Completed" if name.startswith(("identify", "publish")) else "Cached" for name in names}


@pytest.mark.parametrize("which", [0, 1])
def test_every_run_ends_with_a_table_and_a_page(said: list[dict[str, Any]], which: int) -> None:
    result = said[which]["result"]
    artifacts = {artifact["key"]: artifact for artifact in said[which]["artifacts"]}
    rows = artifacts["bank-small-one-steps"]["data"]
    assert [row["step"] for row in rows] == list(STEPS)
    assert {row["state"] for row in rows} == {"cached" if which else "built"}
    assert (rows[-1]["fingerprint"], rows[-1]["url"]) == (result["fingerprint"], result["bank"])
    page = artifacts["bank-small-one-report"]["data"]
    assert f"{result['text_count']:,} distinct texts" in page
    assert f"{result['bank']}/report.html" in page


def test_a_field_that_holds_nothing_is_a_warning_at_the_end_and_on_the_page(flows: Any, run: Run, inputs: Path) -> None:
    spec = bank_spec(inputs)
    fields = [{"path": path} for path in ("query", "candidates[].text", "candidates[].tex")]
    for _ in range(2):  # the second time the scan is cached
        outcome = run({**spec, "scan": {**spec["scan"], "fields": fields}})
        said = flows.call("prefect_views:what_prefect_says", flow_run=outcome["flow_run"])
        assert outcome["result"]["empty_fields"] == ["candidates[].tex"]
        assert "prefect.flow_runs: no row of any source holds a text at candidates[].tex: check the path" in said["logs"]
        [page] = [artifact["data"] for artifact in said["artifacts"] if artifact["key"] == "bank-small-one-report"]
        assert "no row of any source holds a text at `candidates[].tex`: check the path" in page


def test_core_records_reach_the_runs_log(said: list[dict[str, Any]]) -> None:
    assert "zephon_core.tiny: tiny encoder 1 is there" in said[0]["logs"]


def test_the_command_line_and_the_flow_share_their_work(run: Run, inputs: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "tests" / "flows" / "programs"))
    spec = BankSpec.model_validate(bank_spec(inputs))
    built = build_bank(spec, RunOptions(store=str(tmp_path / "store"), workers=1))
    assert run()["result"]["cached"] == dict.fromkeys(STEPS, True)
    flow_first = run(store=str(tmp_path / "other"))["result"]
    assert build_bank(spec, RunOptions(store=str(tmp_path / "other"), workers=1)).cached == dict.fromkeys(STEPS, True)
    assert flow_first["fingerprint"] == built.fingerprint
    assert features_sha256(flow_first["bank"]) == features_sha256(built.bank)


def test_a_changed_model_is_all_that_is_encoded_again(run: Run, inputs: Path) -> None:
    first = run()["result"]
    second = run(bank_spec(inputs, model={"path": "tiny_encoder:two"}))["result"]
    assert second["cached"] == {"scan": True, "tokenize": True, "encode": False, "manifest": False}
    assert second["fingerprint"] != first["fingerprint"]


def test_a_cached_bank_is_published_wherever_it_is_wanted(run: Run, tmp_path: Path) -> None:
    run()
    for output in (tmp_path / "here", tmp_path / "there"):
        outcome = run(output=str(output))["result"]
        assert outcome["cached"] == dict.fromkeys(STEPS, True)
        assert outcome["bank"] == str(output)
        assert json.loads((output / "manifest.json").read_text())["complete"] is True
    shutil.rmtree(tmp_path / "here")
    run(output=str(tmp_path / "here"))
    assert (tmp_path / "here" / "manifest.json").is_file()


@pytest.mark.parametrize("runner", ["thread", "process", "dask", "ray"])
def test_parts_give_the_same_bytes(run: Run, tmp_path: Path, runner: str) -> None:
    whole = run()["result"]
    parts = run(store=str(tmp_path / "parts"), parts=3, task_runner=runner, workers=2)["result"]
    assert parts["complete"] and parts["cached"]["encode"] is False
    assert features_sha256(parts["bank"]) == features_sha256(whole["bank"])
    again = run(store=str(tmp_path / "parts"), parts=3, task_runner=runner, workers=2)["result"]
    assert again["cached"] == dict.fromkeys(STEPS, True)


def test_an_unfinished_bank_says_so_and_is_finished_by_the_next_run(run: Run, tmp_path: Path) -> None:
    some = run(limit_texts=50, output=str(tmp_path / "out"))["result"]
    assert not some["complete"] and 50 <= some["encoded_rows"] < some["text_count"]
    rest = run(output=str(tmp_path / "out"))["result"]
    assert rest["complete"] and rest["encoded_rows"] == rest["text_count"]
    assert rest["cached"] == {"scan": True, "tokenize": True, "encode": False, "manifest": False}


def test_refresh_makes_everything_anew(run: Run) -> None:
    first = run()["result"]
    second = run(refresh=True)["result"]
    assert second["cached"] == dict.fromkeys(STEPS, False)
    assert second["fingerprint"] == first["fingerprint"]
    assert run()["result"]["cached"] == dict.fromkeys(STEPS, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scan": {"sources": ["absent.jsonl"]}}, r"absent\.jsonl"),
        ({"encode": {"model": {"path": "tiny_encoder:three"}}}, "tiny_encoder:three: has no three"),
    ],
)
def test_bad_input_fails_the_run_with_one_line(flows: Any, run: Run, inputs: Path, change: dict[str, Any], message: str) -> None:
    before = flows.log.stat().st_size
    outcome = run({**bank_spec(inputs), **change}, state="FAILED")
    assert re.search(message, outcome["message"]) and "\n" not in outcome["message"]
    assert "Traceback" not in flows.log.read_text()[before:]


def test_a_field_that_no_row_has_fails_the_run_with_one_line(run: Run, inputs: Path) -> None:
    spec = bank_spec(inputs)
    spec["scan"]["fields"] = [{"path": "querry"}]
    outcome = run(spec, state="FAILED")
    assert "querry" in outcome["message"] and "\n" not in outcome["message"]


def test_called_as_a_function_it_raises_the_cores_own_error(flows: Any, inputs: Path, tmp_path: Path) -> None:
    spec = {**bank_spec(inputs), "scan": {"sources": ["absent.jsonl"]}}
    with pytest.raises(Exception, match=r"absent\.jsonl") as caught:
        flows.call("bank_runs:call_bank", spec=spec, run={"store": str(tmp_path)})
    assert caught.value.kind == "InputError"


CHOOSE_RUNNER = """
import sys
sys.modules["prefect_" + sys.argv[1]] = None  # as if it were not installed
from tasks.runners import choose_runner
from zephon_core.bank.specs import RunOptions
from zephon_core.errors import MissingExtraError
try:
    choose_runner(RunOptions(task_runner=sys.argv[1], parts=2), 2)
except MissingExtraError as error:
    print(error)
"""


@pytest.mark.parametrize("runner", ["ray", "dask"])
def test_a_runner_that_is_not_installed_says_how_to_install_it(runner: str) -> None:
    command = [sys.executable, "-c", CHOOSE_RUNNER, runner]
    said = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert (
        said == f"run.task_runner: is {runner}, and prefect-{runner} is not installed. Install it: pip install prefect-{runner}\n"
    )


def flow_process(env: dict[str, str], config: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flows.feature_bank", "--config", str(config)],
        cwd=CHECKOUT,
        env={**env, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_config(path: Path, inputs: Path, **options: Any) -> Path:
    path.write_text(json.dumps({"spec": bank_spec(inputs), "run": {"workers": 1, **options}}))
    return path


POOL = {"parts": 2, "task_runner": "process", "workers": 2}
THREADS = {"parts": 2, "workers": 4}


@pytest.mark.parametrize(
    ("sent", "options"),
    [(signal.SIGKILL, {}), (signal.SIGTERM, {}), (signal.SIGTERM, POOL), (signal.SIGKILL, THREADS)],
    ids=["SIGKILL", "SIGTERM", "SIGTERM with a pool", "SIGKILL with threads"],
)
def test_a_stopped_engine_leaves_nothing_behind_and_the_rerun_completes(
    flow_env: dict[str, str], run: Run, inputs: Path, tmp_path: Path, sent: signal.Signals, options: dict[str, Any]
) -> None:
    undisturbed = run(store=str(tmp_path / "undisturbed"))["result"]
    hold = tmp_path / "hold"
    hold.touch()
    config = write_config(tmp_path / "config.json", inputs, store=str(tmp_path / "store"), **options)
    engine = flow_process(flow_env, config, TINY_ENCODER_HOLD=str(hold))
    wait_for(hold.with_suffix(".reached").exists, "the encode")
    engine.send_signal(sent)
    assert engine.wait(60) != 0
    wait_for(lambda: not processes_with(f"TINY_ENCODER_HOLD={hold}"), "the end of what the engine started", 15)
    engine.communicate()
    assert not [path for path in (tmp_path / "store" / "leases").glob("*.lease") if is_held(path)]
    again = run(**options)["result"]
    assert again["complete"] and again["cached"] == {"scan": True, "tokenize": True, "encode": False, "manifest": False}
    assert features_sha256(again["bank"]) == features_sha256(undisturbed["bank"])


def test_as_a_module_it_prints_the_result(flow_env: dict[str, str], inputs: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.json", inputs, store=str(tmp_path / "store"))
    engine = flow_process(flow_env, config)
    output, _ = engine.communicate()
    result = json.loads(output)
    assert engine.returncode == 0
    assert ArtifactStore(tmp_path / "store").find("bank", result["fingerprint"]) is not None


def test_as_a_module_it_refuses_bad_parameters_before_it_runs(flow_env: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"spec": {"scan": {"sources": []}}}')
    engine = flow_process(flow_env, config)
    output, errors = engine.communicate()
    assert (engine.returncode, output) == (2, "")
    assert errors.count("\n") == 1 and "spec.scan.sources" in errors and "spec.encode: is missing" in errors


def test_as_a_module_it_fails_with_the_reason(flow_env: dict[str, str], inputs: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"spec": {**bank_spec(inputs), "scan": {"sources": ["absent.jsonl"]}}}))
    engine = flow_process(flow_env, config, ZEPHON_STORE=str(tmp_path / "store"))
    output, errors = engine.communicate()
    assert (engine.returncode, output) == (1, "")
    assert "absent.jsonl" in errors.strip().splitlines()[-1] and "Traceback" not in errors


def test_the_form_of_the_parameters_is_complete_and_flat() -> None:
    from prefect.utilities.callables import parameter_schema

    from flows.feature_bank import feature_bank

    schema = parameter_schema(feature_bank).model_dump_for_openapi()
    assert schema["required"] == ["spec"]
    for name, model in schema["definitions"].items():
        for field, described in model.get("properties", {}).items():
            where = f"{name}.{field}"
            kind = schema["definitions"][described["$ref"].rsplit("/", 1)[1]] if "$ref" in described else described
            assert described.get("title") or kind.get("title"), where
            assert described.get("description") or kind.get("description"), where
            assert not {"oneOf", "allOf"} & described.keys(), where
    definitions = schema["definitions"]
    assert definitions["Grouping"]["enum"] == ["exact_token_length", "packed", "padded"]
    assert definitions["EncodeSpec"]["properties"]["max_batch"]["minimum"] == 1
    assert definitions["FieldSpec"]["type"] == "object"
    assert BankSpec.model_validate(
        BankSpec.model_validate({"scan": {"sources": ["a"]}, "encode": {"model": "m"}}).model_dump(mode="json")
    )
