"""What draws cost is known before they are made: what a sampler reads is no more, and of small files just that."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from ratio_inputs import WORDS

from zephon_core.ratios.counting import TextTokenCountingSpec
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.estimate import draw_positions
from zephon_core.ratios.reading_cost import ROW_READ_BYTES, ReadingCost
from zephon_core.ratios.sampling import Sampler
from zephon_core.store import ArtifactStore


def texts(rng: random.Random, rows: int, longest: int) -> list[str]:
    return ["".join(rng.choice("abcdefgh ") for _ in range(rng.randint(1, longest))) + rng.choice(WORDS) for _ in range(rows)]


def write_parquet(path: Path, rows: Sequence[str], group_rows: int) -> None:
    table = pa.table({"id": range(len(rows)), "text": rows})
    pq.write_table(table, path, row_group_size=group_rows, data_page_size=16 << 10, write_page_index=True, write_batch_size=16)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def made(tmp_path: Path, kind: str, store: ArtifactStore) -> Dataset:
    folder = tmp_path / "data"
    folder.mkdir()
    rng = random.Random(2)
    for number in range(12):
        if kind == "small":
            write_parquet(folder / f"{number}.parquet", texts(rng, 60, 50 * (number + 1)), group_rows=20)
        elif kind == "large":
            write_parquet(folder / f"{number}.parquet", texts(rng, 600, 2000 * (1 + number % 4)), group_rows=200 * (1 + number % 3))
        elif kind == "compressed":
            lines = "".join(json.dumps({"text": text}) + "\n" for text in texts(rng, 40, 900))
            (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
        else:
            lines = "".join(json.dumps({"text": text}) + "\n" for text in texts(rng, 40, 900))
            (folder / f"{number}.jsonl").write_text(lines)
    return Dataset.from_path("data", str(folder), store=store)


def cost_of(dataset: Dataset, drawn: NDArray[np.int64], sampler: Sampler) -> int:
    alone = dataset.units.addressable[drawn]
    return ReadingCost(dataset).of_units(np.unique(drawn[~alone]), sampler.kept) + int(alone.sum()) * ROW_READ_BYTES


@pytest.mark.parametrize("kind", ["small", "large", "compressed", "plain"])
@pytest.mark.parametrize("workers", [1, 6])
def test_draws_read_what_they_cost(kind: str, workers: int, tmp_path: Path, store: ArtifactStore, word_tokenizer: Path) -> None:
    dataset = made(tmp_path, kind, store)
    rng = np.random.default_rng(4)
    counter = TextTokenCountingSpec(word_tokenizer, field="text").build_counter()
    with ExitStack() as stack:
        sampler = Sampler(dataset, threads=workers, stack=stack)
        spent = 0
        plan = None
        for draws in (4, 6, 20):
            positions = draw_positions(int(dataset.units.size.sum()), draws, rng)
            drawn = sampler.units_at(positions)
            spent += cost_of(dataset, drawn, sampler)
            plan = plan or counter.plan(sampler.look(positions[:2], 8, whole=False))
            sampler.measure(plan, positions, rng, visits=4)
            before = sampler.bytes_read
            if kind in ("small", "compressed"):
                touched = np.unique(dataset.units.shard[sampler.kept])
                assert before == spent == sum(dataset.shards[shard].stored_bytes for shard in touched)
            else:
                assert 0 < before <= spent
            if kind != "plain":  # what was read whole is kept
                sampler.measure(plan, positions, rng, visits=8)
                assert sampler.bytes_read == before
    assert dataset.units.addressable.all() == (kind == "plain")
    assert kind != "large" or min(shard.stored_bytes for shard in dataset.shards) > 1 << 18


def test_all_of_a_data_set_costs_its_files(tmp_path: Path, store: ArtifactStore) -> None:
    dataset = made(tmp_path, "small", store)
    assert len(dataset.units) == 3 * len(dataset.shards)
    assert ReadingCost(dataset).of_rest(np.zeros(len(dataset.units), np.bool_)) == sum(
        shard.stored_bytes for shard in dataset.shards
    )


def test_how_likely_two_draws_fit(tmp_path: Path, store: ArtifactStore) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    rng = random.Random(2)
    for number in range(9):
        write_parquet(folder / f"{number}.parquet", texts(rng, 30, 40 * 2**number), group_rows=30)
    dataset = Dataset.from_path("data", str(folder), store=store)
    size, costs = dataset.units.size, dataset.units.stored_bytes
    assert len(size) == 9
    for budget in [1, *(int(cost * factor) for cost in costs for factor in (0.9, 1.0, 1.5, 2.0, 2.5))]:
        pairs = [
            float(size[a] * size[b])
            for a, b in itertools.product(range(9), repeat=2)
            if (costs[a] if a == b else costs[a] + costs[b]) <= budget
        ]
        found = ReadingCost(dataset).fitting(budget)
        assert found == pytest.approx(sum(pairs) / float(size.sum()) ** 2, abs=1e-12)
    assert ReadingCost(dataset).fitting(2 * int(costs.max())) == 1.0


def test_rows_that_are_read_alone_are_read_for_each_draw(tmp_path: Path, store: ArtifactStore) -> None:
    cost = ReadingCost(made(tmp_path, "plain", store))
    assert [cost.fitting(draws * ROW_READ_BYTES) for draws in (1, 2)] == [0.0, 1.0]
