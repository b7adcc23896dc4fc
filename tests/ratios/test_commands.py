"""`zephon-flows ratios …` as scripts use it: JSON on standard output, words on standard error, exit codes."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ratio_inputs import make_dataset
from typer.testing import CliRunner

from zephon_core.cli import app
from zephon_core.ratios.documents import RatioDocuments
from zephon_core.ratios.measuring import Measuring
from zephon_core.ratios.specs import RatioSpec
from zephon_core.store import ArtifactStore


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
    flags = [*sets, "--exact-below-bytes", "0", "--target-rel-error", "0.05", "--pin", "b=0.3"]
    code, result, _ = cli("prime", *flags)
    assert code == 0 and result.keys() == {"ratios", "seconds"}
    ratio = result["ratios"]["a"]
    assert ratio.keys() >= {"tokens_per_byte", "source", "interval", "draws", "units", "bytes_read", "key"}
    low, high = ratio["interval"]
    assert low <= ratio["tokens_per_byte"] <= high and ratio["source"] == "measured"
    assert ratio["draws"] > 0 and ratio["units"] > 0 and ratio["bytes_read"] > 0 and len(ratio["key"]) == 64
    assert (result["ratios"]["b"]["tokens_per_byte"], result["ratios"]["b"]["source"]) == (0.3, "pinned")
    assert not ratio["cached"]
    again = cli("prime", *flags)[1]
    assert again["ratios"] == {"a": {**ratio, "cached": True, "bytes_read": 0}, "b": result["ratios"]["b"]}
    assert re.search(r"^a .* cached +512 *$", cli("prime", *flags, as_json=False)[1], re.MULTILINE)


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


@pytest.fixture
def lossy(tmp_path: Path, word_tokenizer: Path) -> Callable[[str], list[str]]:
    """Flags of a data set of three whole shards, spoilt in some way."""

    def make(how: str) -> list[str]:
        folder = make_dataset(tmp_path / "lossy", how.replace(" ", "-"), rows=200)
        row = b'{"text": "' + b"word1 " * 500
        if how == "cut gzip":
            packed = gzip.compress((folder / "shard-00000.jsonl").read_bytes(), mtime=0)
            (folder / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
        elif how == "bad rows":
            (folder / "bad.jsonl").write_bytes((row + b"\n") * 20)
        elif how == "link":
            (folder / "gone.jsonl").symlink_to("nowhere")
        elif how != "whole":
            for file in folder.iterdir():
                file.unlink()
            (folder / "a.jsonl").write_bytes({"empty": b"", "all bad": (row + b"\n") * 20}[how])
        return ["--dataset", f"s={folder}", "--tokenizer", str(word_tokenizer)]

    return make


@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [
        ("whole", 0, "^$"),
        ("cut gzip", 3, r"^\d+\.\d\d% of the bytes could not be counted: is cut short"),
        ("bad rows", 3, r"^\d+\.\d\d% of the bytes could not be counted: broken JSON \(20\)$"),
        ("link", 3, "^what has no size could not be counted: is a link to nowhere"),
        ("empty", 1, "^it has no rows$"),
        ("all bad", 1, r"^nothing of it could be counted as text, none found in the first rows: broken JSON \(20\)$"),
    ],
)
def test_a_count_is_exact_where_it_is_of_everything(cli: Any, lossy: Any, how: str, code: int, reason: str) -> None:
    found, result, _ = cli("count", *lossy(how))
    counted = result["ratios"]["s"]
    assert found == code and re.search(reason, counted["reason"])
    assert (counted["design"] == "exact", counted["interval"] is not None) == (code == 0, code == 0)
    assert (counted["tokens_per_byte"] is None) == (code == 1)
    assert counted["counted_share"] == 1 if how in ("whole", "link") else 0 <= counted["counted_share"] < 1
    assert bool(counted["problems"]) == (how not in ("whole", "empty"))


def test_what_is_left_out_of_a_count_is_said_on_standard_error_and_in_the_table(
    cli: Any, lossy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    code, text, _ = cli("count", *lossy("cut gzip"), as_json=False)
    assert code == 3 and "could not be" in text and "all" not in text.split()
    assert re.search(r"s: .*cut\.jsonl\.gz is left out: is cut short", caplog.text)


def test_one_data_set_that_cannot_be_counted_does_not_cost_the_others(cli: Any, lossy: Any, sets: list[str]) -> None:
    code, result, _ = cli("count", *lossy("empty"), *sets[:2])
    assert code == 1 and result["ratios"]["a"]["design"] == "exact"
    assert cli("count", *sets, "--dataset", "c=/nowhere/at/all")[:2] == (1, None)


def test_the_table_of_a_count_holds_the_estimate_against_it(cli: Any, sets: list[str]) -> None:
    flags = [*sets, "--exact-below-bytes", "0"]
    cli("prime", *flags)
    text = cli("count", *flags, as_json=False)[1]
    assert re.search(r"^a .* [+-]\d\.\d\d%, (holds|misses) ", text, re.MULTILINE)
    assert cli("count", *sets)[1]["ratios"]["a"].keys().isdisjoint({"estimate"})
    cli("prime", *sets)
    assert cli("count", *sets)[1]["ratios"]["a"]["estimate"]["holds"] is True


def test_a_mixture_that_cannot_be_worked_out_costs_no_ratio(cli: Any, lossy: Any, sets: list[str], tmp_path: Path) -> None:
    flags = [*lossy("empty"), *sets[:2], "--share", "s=1", "--share", "a=1", "--output", str(tmp_path / "out")]
    code, result, errors = cli("prime", *flags)
    assert code == 1 and errors.splitlines()[-1].startswith("error: no mixture can be worked out: data set s: has no rows")
    assert result["ratios"]["a"]["source"] == "measured" and result["mixture"] is None and "has no rows" in result["refused"]
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"ratios.json", "zephon.json", "report.html"}
    assert "None could be worked out: data set s: has no rows" in (tmp_path / "out" / "report.html").read_text()
    assert result["left_out"]["streaming"] == "there is no mixture"
    assert cli("prime", *flags, "--pin", "s=0.3", "--pin", "a=0.3")[0] == 1
    code, result, _ = cli("prime", *flags, "--sample-bytes", "s=1000")
    assert code == 0 and result["mixture"]["s"]["probability"] > 0


def test_a_data_set_that_cannot_be_reached_costs_the_mixture_alone(cli: Any, sets: list[str], tmp_path: Path) -> None:
    flags = [*sets[:2], "--dataset", "far=unreachable://x", *sets[4:], "--share", "a=1", "--share", "far=1"]
    known = {"place": "\nunreachable://x"}
    spec = RatioSpec(datasets=("a=x", "far=unreachable://x"))
    measuring = Measuring(spec.estimation(), None)
    RatioDocuments(ArtifactStore()).keep(measuring.unreachable("far", known["place"], "no credentials"))
    code, result, errors = cli("prime", *flags, "--output", str(tmp_path / "out"))
    assert code == 1 and result["ratios"]["far"]["source"] == "fallback" and (tmp_path / "out" / "ratios.json").exists()
    assert "can't be opened (no credentials). Make it readable" in result["refused"] and "--sample-bytes far=" in errors
    assert cli("prime", *flags, "--sample-bytes", "far=1000")[0] == 0
    assert cli("export", *flags, "--to", "energon")[:2] == (1, None)


def test_guesses_are_exit_code_3_where_none_is_wanted(cli: Any, sets: list[str]) -> None:
    flags = [*sets[:4], "--measure", "ratio_inputs:fail"]
    assert [cli("prime", *flags, *strict)[0] for strict in ([], ["--strict"])] == [0, 3]
    assert cli("prime", *sets, "--strict")[0] == 0


def test_an_export_is_whole_or_absent(cli: Any, sets: list[str], tmp_path: Path) -> None:
    code, _, errors = cli("export", *sets, "--output", str(tmp_path / "absent" / "blend.json"))
    assert code == 1 and f"error: {tmp_path / 'absent'}: " in errors and ".tmp" not in errors
    program = (
        "import resource, sys; from zephon_core.cli import app\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY)); app(sys.argv[1:])"
    )
    flags = ["ratios", "export", *sets[:2], "--ratio", "0.3", "--output", str(tmp_path / "blend.json")]
    done = subprocess.run([sys.executable, "-c", program, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"error: {tmp_path / 'blend.json'}: can't be written" in done.stderr.splitlines()[-1]
    assert list(tmp_path.glob("*blend*")) == []


def test_a_streaming_export_of_what_is_no_mds_says_so(cli: Any, sets: list[str], tmp_path: Path) -> None:
    shares = ["--share", "a=1", "--share", "b=1"]
    code, _, errors = cli("export", *sets, *shares, "--to", "streaming")
    assert code == 0 and "warning: streaming: MosaicML Streaming reads folders of MDS: convert a, b first" in errors
    text = cli("prime", *sets, *shares, "--output", str(tmp_path), as_json=False)[1]
    assert "MosaicML Streaming reads folders of MDS" in text and "probability" in text
    text = cli("prime", *sets, "--output", str(tmp_path), as_json=False)[1]
    assert "no export for streaming, energon, megatron, huggingface: no shares are named (--share)" in text


def test_chat_rows_show_both_ratios(cli: Any, tmp_path: Path, word_tokenizer: Path) -> None:
    pytest.importorskip("transformers")
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
        "{% else %}{{ m['content'] }} {% endif %}{% endfor %}"
    )
    row = {"messages": [{"role": "user", "content": "word1 word2"}, {"role": "assistant", "content": "word3"}]}
    (tmp_path / "chat.jsonl").write_text(f"{json.dumps(row)}\n" * 50)
    flags = ["--dataset", f"c={tmp_path / 'chat.jsonl'}", "--tokenizer", str(word_tokenizer), "--kind", "chat"]
    flags += ["--chat-template", str(template)]
    for command in ("prime", "count"):
        ratio = cli(command, *flags)[1]["ratios"]["c"]
        assert ratio["loss_tokens_per_byte"] == pytest.approx(ratio["tokens_per_byte"] / 3)
        text = cli(command, *flags, as_json=False)[1]
        assert "loss/byte" in text and f"{ratio['loss_tokens_per_byte']:.6f}" in text


def test_special_tokens_that_the_tokenizer_has_not_are_warned_of(
    cli: Any, sets: list[str], tmp_path: Path, word_tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(word_tokenizer.read_bytes())
    flags = [*sets[:4], "--tokenizer", str(folder)]
    (folder / "tokenizer_config.json").write_text('{"eos_token": "[UNK]"}')
    for command in ("prime", "count"):
        cli(command, *flags)
        assert "special_tokens bos_eos counts BOS for each row, and" in caplog.text
        caplog.clear()
        cli(command, *flags, "--special-tokens", "eos")
        assert "special_tokens" not in caplog.text


def test_numbers_may_be_written_as_powers_of_ten(cli: Any, sets: list[str]) -> None:
    plain = cli("prime", *sets, "--byte-budget", "1000000", "--exact-below-bytes", "1000")[1]["ratios"]
    assert cli("prime", *sets, "--byte-budget", "1e6", "--exact-below-bytes", "1e3")[1]["ratios"]["a"]["key"] == plain["a"]["key"]
    code, _, errors = cli("prime", *sets, "--byte-budget", "1.5e0")
    assert code == 2 and "--byte-budget" in errors


@pytest.mark.parametrize("command", ["prime", "count"])
def test_a_file_that_lacks_the_column_is_named_with_those_it_has(
    cli: Any, tmp_path: Path, word_tokenizer: Path, command: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["word1"] * 5000}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"content": ["word1"] * 50, "id": range(50)}), tmp_path / "b.parquet")
    flags = ["--dataset", f"s={tmp_path}/*.parquet", "--tokenizer", str(word_tokenizer), "--field", "text"]
    for size in ("1e9", "0"):
        code, _, errors = cli(command, *flags, "--exact-below-bytes", size)
        assert code == 1 and re.search(r"b\.parquet.*: has no 'text', but content, id\. Fix the row", errors)


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


def test_a_loader_that_cannot_take_a_place_costs_its_own_export(
    cli: Any, tmp_path: Path, word_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    make_dataset(Path("our data"), "a", rows=200)
    sets = ["--dataset", "a=our data/a", "--tokenizer", str(word_tokenizer)]
    with caplog.at_level("INFO", "zephon_core"):
        code, _, _ = cli("mixture", *sets, "--share", "a=1", "--output", "out")
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert code == 0 and written >= {"ratios.json", "zephon.json", "huggingface.json", "streaming.yaml", "energon.yaml"}
    assert "megatron.txt" not in written and "expected a path without white space for Megatron-LM" in caplog.text
    assert f"path: {tmp_path}/our data/a" in (tmp_path / "out" / "energon.yaml").read_text()


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
    log.write_text(f"{json.dumps({**row, 'dataset': 'a'})}\n")
    for arguments, words in (
        (("--delivered", "a=1", "--delivered", "a=2", "--scheduled", "a=3"), "--delivered: can't be used: a stands there twice"),
        (("--delivered", "a=nan", "--scheduled", "a=3"), "no number from zero up"),
        (("--delivered", "a=1", "--scheduled", "a=1", "--log", str(log)), "and has totals"),
        (("--delivered", "a=1", "--scheduled", "a=1", "--tolerance", "nan"), "tolerance: is nan"),
        (("--delivered", "a=1", "--scheduled", "a=1", "--tolerance", "-1"), "tolerance: is -1"),
    ):
        code, _, errors = cli("drift", "--ratios", str(file), *arguments)
        assert code == 2 and words in errors


@pytest.mark.parametrize(
    "ratios",
    [
        '{"ratios":{"a":[0.3]}}',
        '{"ratios":{"a":[0.3,"guessed",""]}}',
        '{"ratios":{"a":5}}',
        '{"ratios":[1]}',
        "[]",
        '{"ratios":{"a":{"tokens_per_byte":0.3,"source":"measured","interval":[1]}}}',
        '{"ratios":{"a":{"tokens_per_byte":0.3,"source":["x"],"interval":["a","b"]}}}',
        "[" * 5000,
    ],
)
def test_a_file_that_holds_no_ratios_is_said_to(cli: Any, tmp_path: Path, ratios: str) -> None:
    file = tmp_path / "ratios.json"
    file.write_text(ratios)
    code, _, errors = cli("drift", "--ratios", str(file), "--delivered", "a=1", "--scheduled", "a=3")
    assert code == 1 and f"{file}: holds no ratios (" in errors


@pytest.mark.parametrize(
    "line",
    [
        "[1]",
        '"x"',
        '{"dataset":["a"],"delivered_tokens":1,"scheduled_bytes":1}',
        '{"dataset":"a","delivered_tokens":true,"scheduled_bytes":1}',
    ],
)
def test_a_line_that_is_no_delivery_is_named(cli: Any, tmp_path: Path, line: str) -> None:
    file, log = tmp_path / "ratios.json", tmp_path / "log.jsonl"
    file.write_text('{"ratios":{"a":[0.3,"pinned",""]}}')
    log.write_text(f"{line}\n")
    code, _, errors = cli("drift", "--ratios", str(file), "--log", str(log))
    assert code == 1 and "log.jsonl:1: can't be used (" in errors


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("spec: {datasets: {a: null}}", "a is null"),
        ("spec: {datasets: {a: []}}", "a is []"),
        ("spec: {datasets: {a: x}, ratio_for_all: true}", "--ratio or spec.ratio_for_all: is true"),
        ("spec: {datasets: {a: x}, seed: true}", "--seed or spec.seed: is true"),
        ("spec: {datasets: {a: x}, pins: {a: true}}", "a is true"),
        ("run: {workers: false}", "--workers or run.workers: is false"),
        ("spec: {2024-01-01: x}", "can't be used ("),
        ("spec: &x [*x]", "can't be used ("),
        ("spec: 2024-13-45", "is no YAML or JSON"),
        ("spec: " + "[" * 5000, "is no YAML or JSON"),
    ],
)
def test_a_configuration_that_can_not_be_is_said_in_one_line(
    cli: Any, sets: list[str], tmp_path: Path, config: str, words: str
) -> None:
    file = tmp_path / "ratios.yaml"
    file.write_text(config)
    code, _, errors = cli("prime", *(sets if config.startswith("run") else []), "--config", str(file))
    assert code == 2 and words in errors.splitlines()[-1]


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
        (["--tokenizer", ""], "--tokenizer or spec.tokenizer: is missing"),
        (["--budget-tokens", "1e9"], "--budget-tokens or spec.budget_tokens"),
        (["--sample-bytes", "c=5"], "--sample-bytes or spec.sample_bytes"),
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
