"""Draws: each byte of a long row is worth its share of the row's tokens, and little of the row is read."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ratio_inputs import WORDS

from zephon_core.errors import FatalCountError
from zephon_core.ratios.calibrate import Measurement, calibrate
from zephon_core.ratios.count import count_tokens
from zephon_core.ratios.counting import TextTokenCountingSpec
from zephon_core.ratios.datasets import Dataset, long_rows
from zephon_core.ratios.estimation import TokenEstimation
from zephon_core.ratios.looks import WHOLE_TEXT_BYTES
from zephon_core.ratios.sampling import Draws, Sampler
from zephon_core.ratios.specs import RatioRun
from zephon_core.store import ArtifactStore


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def short_is_long() -> Iterator[None]:
    """Let rows be either counted whole or looked into by windows that the survey knows of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_rows, "LONG_ROW_BYTES", WHOLE_TEXT_BYTES)
        patch.setattr(long_rows, "LONG_STRING_BYTES", 1000)
        patch.setattr(long_rows, "CELL_BYTES", 200)
        yield


def measure_all(dataset: Dataset, counting: TextTokenCountingSpec) -> Draws:
    """Draw every byte of a data set once."""
    with ExitStack() as stack:
        sampler = Sampler(dataset, threads=1, stack=stack)
        positions = np.arange(int(dataset.units.size.sum()))
        plan = counting.build_counter().plan(sampler.look(positions[:: len(positions) // 8], 8, whole=False))
        return sampler.measure(plan, positions, np.random.default_rng(1))


def text(rng: random.Random, count: int) -> str:
    """Words and what JSON writes as escapes or several bytes, backslashes before quotes among it."""
    marks = ["\n", "\t", '"', "\\", '\\"', "\\\\", "é", "中文", "😀", "\U0010ffff", "/", "\x1f", "."]
    return " ".join(rng.choice(WORDS) if rng.random() < 0.6 else "".join(rng.choices(marks, k=3)) for _ in range(count))


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("field", [None, "meta.body"])
def test_the_bytes_of_rows_add_up_to_their_tokens(
    field: str | None, ascii_only: bool, short_is_long: None, store: ArtifactStore, word_tokenizer: Path, tmp_path: Path
) -> None:
    rng = random.Random(f"{field} {ascii_only}")
    if field:
        rows: list[Any] = [
            {"meta": {"body": text(rng, 250), "title": "t"}, "html": "<p>" * 800},
            {"html": "<p>" * 800, "meta": {"body": text(rng, 20)}},
            {"meta": {"body": None}, "html": text(rng, 250)},
            {"meta": {"body": ""}, "tags": [text(rng, 90), text(rng, 90)]},
        ]
        lines = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
        again = json.dumps({"body": text(rng, 250)}, ensure_ascii=ascii_only)
        lines.append('{"meta": ' + json.dumps({"body": text(rng, 250)}) + ', "meta": ' + again + "}")  # the second one counts
    else:
        rows = [
            {"id": 1, "text": text(rng, 250)},
            {"text": text(rng, 20), "id": 2},
            text(rng, 250),
            {"text": text(rng, 250), "id": 3},
        ]
        lines = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
    content = "\n".join(lines) + "\r\n\n"
    (tmp_path / "a.jsonl").write_bytes(content.encode())
    dataset = Dataset.from_path("data", str(tmp_path / "a.jsonl"), store=store)
    counting = TextTokenCountingSpec(word_tokenizer, field=field)
    values = measure_all(dataset, counting).values[:, 0]
    exact = count_tokens(dataset, counting, run=RatioRun(workers=1, store=str(store.root)))
    assert exact.tokens > 500
    start = 0
    counted = counting.build_counter().plan([json.loads(line) for line in lines])
    for line in [*(line.encode() + b"\n" for line in lines[:-1]), lines[-1].encode() + b"\r\n", b"\n"]:
        (tokens,) = counted.count([json.loads(line)])[0] or (0,) if line.strip() else (0,)
        assert values[start : start + len(line)].sum() == pytest.approx(tokens, rel=1e-9)
        start += len(line)
    assert values.sum() == pytest.approx(exact.tokens, rel=1e-9)


def write_huge(path: Path, rows: int, words: int) -> Path:
    """Write rows of some megabytes."""
    rng = random.Random(5)
    with path.open("w") as file:
        for number in range(rows):
            kind = WORDS[number * 20 : number * 20 + 40]
            few = " ".join(rng.choice(kind) + "x" * rng.choice([0, 0, number]) for _ in range(words // 50))
            file.write(json.dumps({"id": number, "text": " ".join([few] * 50), "html": "<p>" * 100_000}) + "\n")
    return path


def measured(path: Path, store: ArtifactStore, tokenizer: Path, **settings: Any) -> Measurement:
    dataset = Dataset.from_path("data", str(path), store=store)
    estimation = TokenEstimation(**{"exact_below_bytes": 0, **settings})
    return calibrate(dataset, TextTokenCountingSpec(tokenizer), estimation, seed=3, workers=1)


def test_huge_rows_cost_no_more_than_small_ones(store: ArtifactStore, word_tokenizer: Path, tmp_path: Path) -> None:
    path = write_huge(tmp_path / "a.jsonl", rows=8, words=100_000)
    assert path.stat().st_size > 5_000_000
    dataset = Dataset.from_path("data", str(path), store=store)
    exact = count_tokens(dataset, TextTokenCountingSpec(word_tokenizer), run=RatioRun(workers=1, store=str(store.root)))
    found = measured(path, store, word_tokenizer, target_rel_error=0.05)
    assert (found.source, found.design) == ("measured", "stratified")
    assert found.ratio == pytest.approx(exact.tokens_per_byte, rel=0.1)
    assert found.draws >= 256
    assert found.bytes_read < 4096 * found.draws
    for budget in (400_000, 1_000_000):
        found = measured(path, store, word_tokenizer, target_rel_error=0.0001, byte_budget=budget)
        assert found.source == "measured"
        assert budget / 2 < found.bytes_read < budget + 8192


def test_a_row_without_its_field_is_refused_unread(store: ArtifactStore, word_tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n' + json.dumps({"html": "<p>" * 100_000, "id": 1}) + "\n")
    dataset = Dataset.from_path("data", str(path), store=store)
    plan = TextTokenCountingSpec(word_tokenizer).build_counter().plan([{"text": "one"}])
    with ExitStack() as stack:
        sampler = Sampler(dataset, threads=1, stack=stack)
        with pytest.raises(FatalCountError, match=r"a\.jsonl \(byte 16\): has no 'text', but html, id"):
            sampler.measure(plan, np.array([100_000]), np.random.default_rng(1))
        assert sampler.bytes_read < 100
