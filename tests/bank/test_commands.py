"""The bank commands as people and scripts use them: output, JSON shapes, exit codes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from zephon_core.bank import FeatureBank
from zephon_core.cli import app


@pytest.fixture
def run(inputs, tmp_path, word_encoder):
    """A function that runs `zephon-flows …` and returns (exit code, standard output, standard error)."""

    def call(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return call


@pytest.fixture
def build(run, inputs, tmp_path, word_encoder):
    """A function that runs `bank build --json` on the small inputs."""

    def call(*more, command="build"):
        return run(
            "bank", command, "--json",
            "--source", f"train={inputs / 'train.jsonl'}", "--source", f"eval={inputs / 'eval.jsonl'}",
            "--model", word_encoder, "--tokenizer", inputs / "tokenizer.json", "--max-batch", 8,
            "--store", tmp_path / "store", "--output", tmp_path / "bank", *more,
        )  # fmt: skip

    return call


def test_build_says_what_it_made_as_one_json_object(build, tmp_path):
    code, out, _ = build()
    result = json.loads(out)
    assert code == 0
    assert set(result) == {"bank", "fingerprint", "text_count", "encoded_rows", "complete", "cached", "seconds", "empty_fields"}
    assert result["empty_fields"] == []
    assert (result["bank"], result["complete"]) == (str(tmp_path / "bank"), True)
    assert set(result["cached"]) == {"scan", "tokenize", "encode", "manifest"}


def test_build_without_json_ends_with_where_the_report_is(run, inputs, tmp_path, word_encoder):
    code, out, _ = run(
        "bank", "build", "--source", inputs / "train.jsonl", "--model", word_encoder, "--tokenizer", inputs / "tokenizer.json",
        "--store", tmp_path / "store", "--output", tmp_path / "bank",
    )  # fmt: skip
    assert code == 0
    assert str(tmp_path / "bank" / "report.html") in out.replace("\n", "")


@pytest.mark.parametrize(
    ("flags", "code", "line"),
    [
        (["--max-batch", "0"], 2, "--max-batch or spec.encode.max_batch"),
        (["--fields", "a..b"], 2, "is 'a..b', expected this: Names joined by dots"),
        (["--rows", "5"], 2, "--rows or run.rows"),
        (["--parts", "2", "--part", "2"], 2, "part is 2 of 2 parts"),
        (["--source", "absent.jsonl"], 1, "absent.jsonl: does not exist"),
        (["--model", "no_such_module:factory"], 1, "no_such_module"),
        (["--tokenizer", "absent"], 1, "absent: is not there"),
        (["--fields", "nothing"], 1, "no text at 'nothing'"),
        (["--rows", "3:2"], 2, "is 3:2"),
        (["--fields", "a..b"], 2, "after the name of a list to go into"),
        (["--quantization", "4bit"], 2, "--quantization or spec.encode.model.quantization: is 4bit, which does nothing"),
        (["--dtype", "bfloat16"], 2, "--dtype or spec.encode.model.dtype: is bfloat16, which does nothing"),
        (["--engine", "openvino"], 2, "--engine or spec.encode.model.engine: is openvino, which does nothing"),
        (["--backbone", "outer"], 2, "--backbone or spec.encode.model.backbone: is outer, which does nothing"),
        (["--pooling", "cls"], 2, "--pooling or spec.encode.pooling: is cls, which word_encoder:words can't do"),
        (["--grouping", "padded"], 2, "--grouping or spec.encode.grouping: is padded, which word_encoder:words can't do"),
        (["--tokenizer", ""], 2, "the model word_encoder:words brings no tokenizer; name one with --tokenizer"),
        (["--device", "cuda:99"], 2, "device: is cuda:99, expected a GPU of this machine. Set device: auto or cpu."),
        (["--source", ""], 1, "source: is empty"),
        (["--source", "foo://x"], 1, "fsspec doesn't know (foo://)"),
    ],
)
def test_wrong_settings_end_in_one_line(build, flags, code, line):
    found, out, err = build(*flags)
    assert (found, out) == (code, "")
    errors = [text for text in err.splitlines() if text.startswith("error: ")]
    assert len(errors) == 1
    assert line in errors[0]
    assert "Traceback" not in err


def test_plan_predicts_without_a_bank(build, tmp_path):
    code, out, _ = build(command="plan")
    plan = json.loads(out)
    assert code == 0
    assert plan["rows"] > 0
    assert plan["tokens"] >= plan["rows"]
    assert not (tmp_path / "bank").exists()


def test_verify_is_content_with_a_good_bank_and_says_what_is_wrong_with_a_bad_one(build, run, tmp_path):
    build()
    for level in ("sizes", "checksums", "reencode"):
        code, out, _ = run("bank", "verify", tmp_path / "bank", "--level", level, "--json")
        assert (code, json.loads(out)["ok"]) == (0, True), out
    path = tmp_path / "bank" / "features.f16.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    assert run("bank", "verify", tmp_path / "bank", "--level", "sizes")[0] == 0
    code, out, _ = run("bank", "verify", tmp_path / "bank", "--json")
    assert code == 3
    assert [check["seen"] for check in json.loads(out)["checks"] if not check["ok"]] == ["another SHA-256 in features.f16.npy"]
    path.write_bytes(content[:-1])
    code, out, _ = run("bank", "verify", tmp_path / "bank")
    assert code == 3
    assert "features.f16.npy: has" in out


@pytest.mark.parametrize("level", ["sizes", "reencode"])
@pytest.mark.parametrize("sample", ["0", "-5"])
def test_verify_refuses_a_sample_of_no_rows_in_one_line(build, run, tmp_path, level, sample):
    build()
    code, out, err = run("bank", "verify", tmp_path / "bank", "--level", level, "--sample", sample)
    assert (code, out) == (2, "")
    assert err == f"error: --sample: is {sample}, expected how many rows to encode again, at least 1.\n"


@pytest.mark.parametrize(
    "arguments", [["--older-than-days", "-1"], ["--older-than-days", "nan"], ["--keep-gb", "-1"], ["--keep-gb", "inf"]]
)
def test_gc_refuses_amounts_that_are_none(run, tmp_path, arguments):
    code, out, err = run("store", "gc", "--store", tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert err == f"error: {arguments[0]}: is {float(arguments[1])}, expected a number from 0 on.\n"


def test_a_broken_manifest_is_one_line_from_every_command(build, run, tmp_path):
    build()
    path = tmp_path / "bank" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "text_count": "x"}))
    for command in (["info"], ["lookup", "w1"], ["nearest", "w1"], ["diff", str(tmp_path / "bank")]):
        code, out, err = run("bank", command[0], tmp_path / "bank", *command[1:])
        assert (code, out) == (1, "")
        assert err.startswith(f"error: {path}: 'text_count' is 'x', expected a whole number.")
        assert err.count("\n") == 1


def test_a_spec_in_a_manifest_that_is_none_is_one_line(build, run, tmp_path):
    build()
    path = tmp_path / "bank" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["spec"]["encode"]["max_batch"] = 0
    path.write_text(json.dumps(manifest))
    code, out, err = run("bank", "verify", tmp_path / "bank", "--level", "reencode")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {path}: 'spec.encode.max_batch' is 0, expected ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("inside", [False, True])
def test_a_store_that_is_no_folder_is_named_and_not_the_source(build, inputs, tmp_path, inside):
    import os
    import time

    (tmp_path / "file").write_text("")
    for path in inputs.iterdir():
        os.utime(path, (time.time() - 3600,) * 2)  # long enough ago to be remembered
    store = tmp_path / "file" / "store" if inside else tmp_path / "file"
    code, out, err = build("--store", store)
    assert (code, out) == (1, "")
    [line] = [text for text in err.splitlines() if text.startswith("error: ")]
    assert line.startswith(f"error: {store}")
    assert "jsonl" not in line


def test_a_file_that_may_not_grow_is_named_and_what_to_do(inputs, tmp_path, word_encoder):
    import subprocess
    import sys

    command = [
        sys.executable, "-c",
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600)); "
        "from zephon_core.cli import main; main()",
        "bank", "build", "--source", inputs / "train.jsonl", "--model", word_encoder, "--tokenizer", inputs / "tokenizer.json",
        "--store", tmp_path / "store",
    ]  # fmt: skip
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    line = result.stderr.splitlines()[-1]
    assert line.startswith(f"error: {tmp_path / 'store'}")
    assert "Raise the limit (`ulimit -f`)" in line


def test_a_field_that_holds_nothing_has_a_line_of_its_own(run, inputs, tmp_path, word_encoder):
    code, out, _ = run(
        "bank", "build", "--source", inputs / "train.jsonl", "--model", word_encoder, "--tokenizer", inputs / "tokenizer.json",
        "--store", tmp_path / "store", "--output", tmp_path / "bank", "--fields", "query,candidates[].tex",
    )  # fmt: skip
    assert code == 0
    assert "no text   no row of any source holds one at candidates[].tex: check the path" in out.splitlines()
    assert [line for line in run("bank", "info", tmp_path / "bank")[1].splitlines() if line.split()[-1] == "candidates[].tex"]
    report = (tmp_path / "bank" / "report.html").read_text()
    assert "No row of any source holds a text at candidates[].tex: check the path." in report


def test_a_field_that_holds_nothing_is_told_of_what_is_in_the_store_alone_and_cached_too(build, tmp_path):
    for _ in range(2):
        code, out, _ = build("--fields", "query,candidates[].tex", "--limit-texts", "3", "--output", "")
        assert code == 0
        assert json.loads(out)["empty_fields"] == ["candidates[].tex"]


def test_fields_that_all_hold_texts_have_no_line(build, run, tmp_path):
    build()
    assert "no text" not in run("bank", "info", tmp_path / "bank")[1]


def test_nearest_says_how_much_of_an_incomplete_bank_it_searched(build, run, tmp_path):
    build("--limit-texts", "5")
    bank = FeatureBank.open(tmp_path / "bank", partial=True)
    searched = int(bank.valid.sum())
    found = json.loads(run("bank", "nearest", tmp_path / "bank", "w1 w2", "--json")[1])
    assert (found["searched"], found["rows"]) == (searched, len(bank))
    out = run("bank", "nearest", tmp_path / "bank", "w1 w2")[1]
    assert out.startswith(f"searched {searched} of {len(bank)} rows: ")
    build()
    assert "searched" not in run("bank", "nearest", tmp_path / "bank", "w1 w2")[1]


def test_verify_finds_features_that_the_model_does_not_give(build, run, tmp_path, monkeypatch):
    build()
    monkeypatch.setenv("WORD_ENCODER_SEED", "2")
    code, out, _ = run("bank", "verify", tmp_path / "bank", "--level", "reencode", "--json")
    assert code == 3
    assert [check["name"] for check in json.loads(out)["checks"] if not check["ok"]] == ["model", "reencode"]


def test_an_incomplete_bank_is_found_wanting(build, run, tmp_path):
    build("--limit-texts", "5")
    code, out, _ = run("bank", "verify", tmp_path / "bank", "--json")
    assert code == 3
    assert [check["name"] for check in json.loads(out)["checks"] if not check["ok"]] == ["complete"]


def test_lookup_takes_a_text_a_digest_or_a_row(build, run, tmp_path):
    build()
    bank = FeatureBank.open(tmp_path / "bank")
    text = bank.text(7)
    by_text = json.loads(run("bank", "lookup", tmp_path / "bank", text, "--json")[1])
    assert (by_text["row"], by_text["text"]) == (7, text)
    for name in (by_text["sha1"], "row:7"):
        assert json.loads(run("bank", "lookup", tmp_path / "bank", name, "--json")[1]) == by_text
    for name in ("no such text", "row:999999", "0" * 40):
        assert run("bank", "lookup", tmp_path / "bank", name, "--json")[0] == 3


def test_nearest_finds_the_text_itself_and_takes_unknown_texts(build, run, tmp_path):
    build()
    bank = FeatureBank.open(tmp_path / "bank")
    code, out, _ = run("bank", "nearest", tmp_path / "bank", bank.text(3), "-k", 4, "--json")
    found = json.loads(out)["nearest"]
    assert code == 0
    assert len(found) == 4
    assert found[0]["row"] == 3
    assert found[0]["similarity"] == pytest.approx(1, abs=1e-3)
    vectors = bank.features.astype(np.float32)
    similarities = sorted((vectors @ vectors[3]) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[3]), reverse=True)
    assert [item["similarity"] for item in found] == pytest.approx(similarities[:4], abs=1e-4)
    code, out, _ = run("bank", "nearest", tmp_path / "bank", "w1 w2 w3 w4", "-k", 1)
    assert code == 0
    assert "row " in out


def test_diff_of_a_bank_with_itself_and_with_other_weights(build, run, tmp_path, monkeypatch):
    build()
    same = json.loads(run("bank", "diff", tmp_path / "bank", tmp_path / "bank", "--json")[1])
    assert (same["only_first"], same["only_second"], same["largest_deviation"], same["settings"]) == (0, 0, 0.0, {})
    monkeypatch.setenv("WORD_ENCODER_SEED", "2")
    build("--output", tmp_path / "other", "--limit-texts", "0")
    other = json.loads(run("bank", "diff", tmp_path / "bank", tmp_path / "other", "--json")[1])
    assert other["shared"] == same["shared"]
    assert other["lowest_cosine"] < 0.9
    assert "model" in other["settings"]


def test_info_shows_the_manifest(build, run, tmp_path):
    build()
    assert json.loads(run("bank", "info", tmp_path / "bank", "--json")[1])["format_version"] == 2
    assert "complete" in run("bank", "info", tmp_path / "bank")[1]


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_folder_without_a_bank_is_an_error_of_one_line(run, tmp_path, command):
    code, out, err = run("bank", command, tmp_path)
    assert (code, out) == (1, "")
    assert err == f"error: {tmp_path}: holds no bank, expected a folder with manifest.json.\n"


def test_extend_takes_new_sources_into_the_bank(build, run, inputs, tmp_path):
    from small_inputs import router_rows, write_rows

    build()
    write_rows(inputs / "new.jsonl", router_rows(9, 5))
    code, out, _ = run(
        "bank", "extend", tmp_path / "bank", "--source", f"new={inputs / 'new.jsonl'}", "--store", tmp_path / "store", "--json"
    )
    assert code == 0
    assert json.loads(out)["text_count"] == len(FeatureBank.open(tmp_path / "bank"))
    assert [source["name"] for source in FeatureBank.open(tmp_path / "bank").manifest["sources"]] == ["train", "eval", "new"]


def test_a_file_of_parameters_stands_for_flags(run, inputs, tmp_path, word_encoder):
    config = tmp_path / "bank.yaml"
    config.write_text(
        f"spec:\n  scan: {{sources: ['{inputs / 'train.jsonl'}']}}\n  tokenize: {{tokenizer: {inputs / 'tokenizer.json'}}}\n"
        f"  encode: {{model: '{word_encoder}'}}\nrun: {{store: {tmp_path / 'store'}, output: {tmp_path / 'from-file'}}}\n"
    )
    code, out, _ = run("bank", "build", "--config", config, "--json")
    assert code == 0
    assert json.loads(out)["bank"] == str(tmp_path / "from-file")
