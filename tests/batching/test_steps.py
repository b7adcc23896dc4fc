"""From lengths to a published plan: identities, artifacts, kills, and lengths from wherever they come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_core.atomic import write_json
from zephon_core.batching import GlobalBatchPlan, LengthTable, TokenBatchOptions
from zephon_core.batching.publish import MANIFEST_NAME, publish_plan
from zephon_core.batching.report import describe
from zephon_core.batching.specs import BatchesRun, BatchesSpec
from zephon_core.batching.steps import batches_recipes, identify, plan_batches
from zephon_core.errors import (
    BadRowError,
    CorruptArtifactError,
    InputError,
    LengthError,
    SpecError,
    TokenizerError,
)
from zephon_core.fingerprint import file_sha256
from zephon_core.store import ArtifactStore
from zephon_core.upkeep import list_entries, sweep

PROGRAMS = Path(__file__).parent / "programs"
STEPS = ("lengths", "plan", "report")
LENGTHS = np.random.default_rng(1).integers(1, 50, 200)

Plan = Callable[..., Any]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.npy"
    np.save(path, LENGTHS)
    return path


def spec_of(lengths: dict[str, Any] | str, **plan: Any) -> BatchesSpec:
    return BatchesSpec.model_validate({"lengths": lengths, "plan": {"maximum_tokens": 200, "world_size": 2, **plan}})


@pytest.fixture
def planned(tmp_path: Path, table: Path) -> Plan:
    """A function that plans with a store of the test's own, by default the table."""

    def plan(lengths: dict[str, Any] | str = "", *, output: str = "", refresh: bool = False, **settings: Any) -> Any:
        run = BatchesRun(store=str(tmp_path / "store"), output=output, refresh=refresh)
        return plan_batches(spec_of(lengths or str(table), **settings), run)

    return plan


def artifact_lengths(tmp_path: Path) -> list[int]:
    """The lengths in the only artifact of them."""
    (folder,) = (tmp_path / "store" / "lengths").iterdir()
    lengths: list[int] = np.load(folder / "lengths.npy").tolist()
    return lengths


def test_the_plan_is_the_one_that_a_program_makes(planned: Plan) -> None:
    result = planned(layout="padded", bucket_width=3, seed=5, epoch=2, maximum_examples=9)
    options = TokenBatchOptions(maximum_tokens=200, maximum_examples=9, layout="padded")
    made = GlobalBatchPlan.build(LENGTHS, options, world_size=2, seed=5, epoch=2, bucket_width=3)
    opened = GlobalBatchPlan.open(result.plan)
    assert opened.digest == made.digest
    assert all(opened.batch(step, rank) == made.batch(step, rank) for step in range(made.steps) for rank in range(2))
    assert result.statistics == json.loads(json.dumps(made.statistics.to_json()))


def test_a_second_run_does_nothing_and_a_change_only_what_it_touches(planned: Plan, tmp_path: Path) -> None:
    assert planned().cached == dict.fromkeys(STEPS, False)
    again = planned()
    assert again.cached == dict.fromkeys(STEPS, True)
    assert again.to_json().keys() == {"plan", "fingerprint", "statistics", "cached", "seconds"}
    assert planned(seed=1).cached == {"lengths": True, "plan": False, "report": False}
    assert planned({"table": str(tmp_path / "lengths.npy"), "extra_tokens": 2}).cached == dict.fromkeys(STEPS, False)
    assert planned(refresh=True).cached == dict.fromkeys(STEPS, False)
    assert planned().fingerprint == again.fingerprint


def test_the_fingerprint_is_of_the_content_alone(tmp_path: Path, table: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    elsewhere = tmp_path / "elsewhere.npy"
    elsewhere.write_bytes(table.read_bytes())

    def fingerprint(spec: BatchesSpec) -> str:
        return batches_recipes(spec, identify(spec, store=store)).plan.fingerprint

    first = fingerprint(spec_of(str(table)))
    assert fingerprint(spec_of(str(elsewhere))) == first
    assert fingerprint(spec_of(str(table)).model_copy(update={"name": "other"})) == first
    assert fingerprint(spec_of(str(table), epoch=1)) != first
    np.save(elsewhere, LENGTHS[::-1])
    assert fingerprint(spec_of(str(elsewhere))) != first


@pytest.mark.parametrize(("phase", "number"), [("lengths", 1), ("seal", 1), ("plan", 1), ("seal", 2), ("seal", 3)])
def test_a_killed_run_is_taken_up_by_the_next(tmp_path: Path, table: Path, phase: str, number: int) -> None:
    spec = spec_of(str(table))
    document = tmp_path / "spec.json"
    document.write_text(spec.model_dump_json())
    program = [sys.executable, str(PROGRAMS / "killed_planning.py"), str(document), str(tmp_path / "store"), phase, str(number)]
    done = subprocess.run(program, cwd=Path(__file__).parents[2], env={"PYTHONPATH": "."}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / "store").glob("*/*.partial"))
    result = plan_batches(spec, BatchesRun(store=str(tmp_path / "store")))
    clean = plan_batches(spec, BatchesRun(store=str(tmp_path / "clean")))
    assert result.fingerprint == clean.fingerprint and not list((tmp_path / "store").glob("*/*.partial"))
    for name in ("plan.arrow", "plan.json"):
        assert (Path(result.plan) / name).read_bytes() == (Path(clean.plan) / name).read_bytes()


def test_what_the_training_adds_and_cuts_is_in_the_lengths(planned: Plan, table: Path, tmp_path: Path) -> None:
    planned({"table": str(table), "extra_tokens": 2, "cut_at_tokens": 40})
    assert artifact_lengths(tmp_path) == np.minimum(LENGTHS + 2, 40).tolist()


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.uint64])
def test_any_whole_numbers_are_lengths(planned: Plan, table: Path, tmp_path: Path, kind: Any) -> None:
    np.save(table, LENGTHS.astype(kind))
    planned()
    assert artifact_lengths(tmp_path) == LENGTHS.tolist()


def test_lengths_beyond_31_bits_stay_whole(planned: Plan, table: Path, tmp_path: Path) -> None:
    np.save(table, np.array([1 << 33, 5]))
    planned(maximum_tokens=1 << 34)
    assert artifact_lengths(tmp_path) == [1 << 33, 5]


def make_bank(folder: Path, *, sha256: str = "") -> Path:
    """As much of a bank as planning looks at."""
    folder.mkdir()
    np.save(folder / "lengths.npy", LENGTHS.astype(np.int32))
    write_json(folder / "manifest.json", {"files": {"lengths.npy": {"sha256": sha256 or file_sha256(folder / "lengths.npy")}}})
    return folder


def test_a_bank_brings_its_lengths(planned: Plan, tmp_path: Path) -> None:
    planned(str(make_bank(tmp_path / "bank")))
    assert artifact_lengths(tmp_path) == LENGTHS.tolist()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    rows = [{"meta": {"body": "red " * number}} for number in range(1, 31)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer that gives an id for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"red": 0, "[UNK]": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_texts_are_counted_by_the_trainings_tokenizer(planned: Plan, texts: Path, tokenizer: Path, tmp_path: Path) -> None:
    lengths = {"texts": [str(texts)], "field": "meta.body", "tokenizer": str(tokenizer), "extra_tokens": 1, "cut_at_tokens": 20}
    assert planned(lengths).cached["lengths"] is False
    assert artifact_lengths(tmp_path) == [min(number + 1, 20) for number in range(1, 31)]
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(texts.read_bytes())
    assert planned({**lengths, "texts": [str(copy)]}).cached == dict.fromkeys(STEPS, True)


def test_what_cannot_be_planned_is_said_in_one_line(
    planned: Plan, texts: Path, tokenizer: Path, table: Path, tmp_path: Path
) -> None:
    of_texts = {"texts": [str(texts)], "field": "meta.body", "tokenizer": str(tokenizer)}
    with pytest.raises(BadRowError, match=r"texts.jsonl:1 .*'meta.title' is not there, expected text"):
        planned({**of_texts, "field": "meta.title"})
    with pytest.raises(TokenizerError, match="is not there"):
        planned({**of_texts, "tokenizer": str(tmp_path / "none")})
    with pytest.raises(InputError, match="nowhere"):
        planned({**of_texts, "texts": [str(tmp_path / "nowhere.jsonl")]})
    with pytest.raises(InputError, match=r"none.npy: is not there, expected an .npy file of lengths"):
        planned(str(tmp_path / "none.npy"))
    with pytest.raises(InputError, match=r"holds no lengths.npy"):
        planned(str(tmp_path / "store"))
    with pytest.raises(CorruptArtifactError, match="has SHA-256"):
        planned(str(make_bank(tmp_path / "bank", sha256="0" * 64)))
    with pytest.raises(LengthError, match="example 0: has length 201, which alone exceeds the budget"):
        planned({"table": str(table), "extra_tokens": 201 - int(LENGTHS[0])}, maximum_tokens=200)
    np.save(table, LENGTHS / 2)
    with pytest.raises(LengthError, match="whole numbers"):
        planned()
    table.write_bytes(b"no array")
    with pytest.raises(InputError, match="can't be read as lengths"):
        planned()


def test_a_published_folder_is_a_plan_with_its_page(planned: Plan, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    result = planned(output=str(output))
    assert result.plan == str(output)
    assert {path.name for path in output.iterdir()} == {"plan.arrow", "plan.json", "report.html", MANIFEST_NAME}
    before = (output / MANIFEST_NAME).stat()
    planned(output=str(output))
    assert (output / MANIFEST_NAME).stat() == before  # left alone
    planned(output=str(output), seed=8)
    assert GlobalBatchPlan.open(output).recipe.seed == 8
    (output / "plan.arrow").unlink()
    planned(output=str(output), seed=8)
    assert GlobalBatchPlan.open(output).recipe.seed == 8
    assert not [path for path in output.parent.iterdir() if path.name.startswith(".")]


def test_what_is_published_and_what_it_was_made_from_is_kept(planned: Plan, tmp_path: Path) -> None:
    planned(output=str(tmp_path / "out"))
    planned(seed=1)
    store = ArtifactStore(tmp_path / "store")
    assert {(entry.kind, bool(entry.published)) for entry in list_entries(store)} == {
        ("lengths", False),
        ("batch_plan", True),
        ("batch_plan", False),
        ("batch_report", True),
        ("batch_report", False),
    }
    gone = sweep(store, older_than_s=0)
    assert sorted((entry.kind, entry.published) for entry in gone) == [("batch_plan", ()), ("batch_report", ())]


def test_a_folder_of_something_else_is_not_touched(planned: Plan, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("words")
    for output, message in (
        (str(tmp_path / "thesis"), "holds files that are no planned batches"),
        (str(tmp_path / "thesis" / "chapter.txt"), "is no folder"),
        ("s3://bucket/plan", "is a URL"),
    ):
        with pytest.raises(SpecError, match=message):
            planned(output=output)
    assert not (tmp_path / "store").exists()  # found out before any work
    result = planned()
    store = ArtifactStore(tmp_path / "store")
    recipe = batches_recipes(spec := spec_of(str(tmp_path / "lengths.npy")), identify(spec, store=store))
    refs = [store.find(each.kind, each.fingerprint) for each in (recipe.plan, recipe.report)]
    with pytest.raises(SpecError, match="holds files that are no planned batches"):
        publish_plan(store, "x", refs[0], refs[1], tmp_path / "thesis")  # type: ignore[arg-type]
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "words" and result.fingerprint == recipe.plan.fingerprint


def test_the_report_shows_what_the_plan_is_like(planned: Plan, tmp_path: Path) -> None:
    output = tmp_path / "out"
    planned(output=str(output), layout="padded", world_size=3)
    page = (output / "report.html").read_text()
    statistics = GlobalBatchPlan.open(output).statistics
    assert f"{statistics.padding_waste:.2%}" in page and f"{statistics.imbalance.idle_share:.2%}" in page
    for heading in ("Waste", "Imbalance", "Batches of each rank", "Sizes of batches", "Lengths", "Shuffling", "Settings"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<svg") == 6 and "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert page.count("rank 0: ") == page.count("rank 2: ") == 1


@pytest.mark.parametrize(("count", "world_size"), [(1, 1), (1, 5), (2, 1), (200, 150)])
def test_a_report_of_hardly_anything_is_one_all_the_same(planned: Plan, table: Path, count: int, world_size: int) -> None:
    np.save(table, LENGTHS[:count])
    result = planned(world_size=world_size)
    store = ArtifactStore(Path(result.plan).parents[1])
    (report,) = [entry for entry in list_entries(store) if entry.kind == "batch_report"]
    page = (report.path / "report.html").read_text()
    assert page.count("<h2>Batches of each rank</h2>") == 1 and f"{count:,}" in page
    assert LengthTable.of(next((store.root / "lengths").iterdir()) / "lengths.npy").count == count


def test_an_empty_table_is_planned_as_nothing(planned: Plan, table: Path) -> None:
    np.save(table, LENGTHS[:0])
    result = planned()
    assert result.statistics["batches"] == 0 and GlobalBatchPlan.open(result.plan).count == 0


@pytest.mark.parametrize("wrong", [0, -1, -(2**33), 2**63 - 2])
def test_impossible_lengths_are_not_made_plausible(planned: Plan, table: Path, wrong: int) -> None:
    lengths = LENGTHS.astype(np.int64)
    lengths[150] = wrong
    np.save(table, lengths)
    with pytest.raises(LengthError, match=f"example 150: has length {wrong}"):
        planned({"table": str(table), "extra_tokens": 2, "cut_at_tokens": 60})


def test_an_empty_text_is_named(planned: Plan, texts: Path, tokenizer: Path) -> None:
    rows = texts.read_text().splitlines()
    texts.write_text("\n".join([*rows[:3], json.dumps({"meta": {"body": ""}}), *rows[3:]]) + "\n")
    with pytest.raises(BadRowError, match=r"texts\.jsonl:4 \(byte \d+\): 'meta\.body' has no token, expected at least one\. Leave"):
        planned({"texts": [str(texts)], "field": "meta.body", "tokenizer": str(tokenizer), "extra_tokens": 2})


def test_a_full_disk_is_said_in_one_line(table: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for it: a mapped file would kill the process in either case."""
    np.save(table, np.ones(1_000_000, np.int32))
    program = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    program += "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
    program += "from zephon_core.cli import main; sys.exit(main())"
    arguments = ["batches", "plan", "--lengths", table, "--maximum-tokens", "8192", "--store", tmp_path / "store"]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode > 0
    assert "can't be written: the file grows larger than is allowed" in done.stderr and "Traceback" not in done.stderr


def test_a_damaged_published_plan_is_repaired(planned: Plan, tmp_path: Path) -> None:
    output = tmp_path / "published"
    planned(output=str(output))
    arrays = output / "plan.arrow"
    whole = arrays.read_bytes()
    arrays.unlink()
    arrays.write_bytes(whole[:-100] + b"x" * 100)  # a copy of its own, as on another file system
    planned(output=str(output))
    assert arrays.read_bytes() == whole
    arrays.unlink()
    arrays.write_bytes(whole)  # whole, though no link
    before = arrays.stat().st_ino
    planned(output=str(output))
    assert arrays.stat().st_ino == before


def test_the_words_on_imbalance_say_which_steps_they_are_of() -> None:
    options = TokenBatchOptions(maximum_tokens=200)
    several = describe(GlobalBatchPlan.build(LENGTHS, options, world_size=2).statistics.to_json())
    assert several["imbalance"].endswith(" at worst, the last step aside")
    one = GlobalBatchPlan.build([3, 1], TokenBatchOptions(maximum_tokens=4), world_size=2)
    words = describe(one.statistics.to_json())["imbalance"]
    assert (
        words == "ranks wait 33.33% of their time, if it goes with slots; the only step's costliest batch is 50.00% above its mean"
    )


def test_an_output_that_holds_no_folder_is_refused_before_any_work(planned: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^/proc: "):
        planned(output="/proc/x")
    assert not (tmp_path / "store").exists()
