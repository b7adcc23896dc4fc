"""A budget of bytes: never exceeded, whatever the files are like; and what is measured within it is what it says it is."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ratio_inputs import WORDS

from zephon_core.ratios.calibrate import Measurement, calibrate
from zephon_core.ratios.count import count_tokens
from zephon_core.ratios.counting import TextTokenCountingSpec
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.estimation import TokenEstimation
from zephon_core.ratios.reading_cost import ReadingCost
from zephon_core.ratios.specs import RatioRun
from zephon_core.store import ArtifactStore

FILES = 4


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of_some_kilobytes(path: Path, rng: random.Random) -> None:
    """Rows of which none is long enough to be read in windows: up to 36 KiB are read to find both ends of one."""
    write_lines(path.with_suffix(".jsonl"), [{"text": words(rng, rng.randint(600, 2_400))} for _ in range(40)])


def rows_of_many_short_texts(path: Path, rng: random.Random) -> None:
    """Rows of 100 kB and more, in which no text is long: they are read whole."""
    extra = [[words(rng, 100) for _ in range(rng.randint(100, 200))] for _ in range(12)]
    write_lines(path.with_suffix(".jsonl"), [{"text": words(rng, 300), "notes": notes} for notes in extra])


def dictionary_table(rng: random.Random) -> pa.Table:
    labels = pa.array([words(rng, 100) for _ in range(600)]).dictionary_encode()
    return pa.table({"text": [words(rng, 60) for _ in labels], "label": labels})


def arrow_file_with_dictionaries(path: Path, rng: random.Random) -> None:
    table = dictionary_table(rng)
    with pa.OSFile(str(path.with_suffix(".arrow")), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=20)


def arrow_stream_with_dictionaries(path: Path, rng: random.Random) -> None:
    table = dictionary_table(rng)
    with pa.OSFile(str(path.with_suffix(".arrow")), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=20)


def small_pages(path: Path, rng: random.Random, page_bytes: int, *, index: bool) -> None:
    """Row groups that are cut between pages, where those are found; another column has pages that end elsewhere."""
    texts = [words(rng, rng.randint(20, 300)) for _ in range(2_500)]
    table = pa.table({"id": range(len(texts)), "text": texts, "blob": [rng.randbytes(rng.randint(1, 500)) for _ in texts]})
    settings: dict[str, Any] = {
        "data_page_size": page_bytes,
        "write_batch_size": 16,
        "compression": "none",
        "use_dictionary": False,
    }
    pq.write_table(table, path.with_suffix(".parquet"), write_page_index=index, **settings)


def parquet_of_tiny_pages(path: Path, rng: random.Random) -> None:
    small_pages(path, rng, 4 << 10, index=False)


def parquet_of_pages(path: Path, rng: random.Random) -> None:
    small_pages(path, rng, 64 << 10, index=False)


def parquet_with_an_index(path: Path, rng: random.Random) -> None:
    small_pages(path, rng, 16 << 10, index=True)


def tar(path: Path, rng: random.Random) -> None:
    with tarfile.open(path.with_suffix(".tar"), "w") as file:
        for number in range(120):
            content = words(rng, rng.randint(50, 400)).encode()
            member = tarfile.TarInfo(f"{path.name}-{number}.txt")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))


KINDS: dict[str, Callable[[Path, random.Random], None]] = {
    each.__name__: each
    for each in (
        rows_of_some_kilobytes,
        rows_of_many_short_texts,
        arrow_file_with_dictionaries,
        arrow_stream_with_dictionaries,
        parquet_of_tiny_pages,
        parquet_of_pages,
        parquet_with_an_index,
        tar,
    )
}


def dataset_of(kind: str, folder: Path, store: ArtifactStore) -> Dataset:
    folder.mkdir()
    for number in range(FILES):
        KINDS[kind](folder / str(number), random.Random(number))
    return Dataset.from_path("data", str(folder), store=store)


def counting_of(dataset: Dataset, tokenizer: Path) -> TextTokenCountingSpec:
    return TextTokenCountingSpec(tokenizer, field="txt" if dataset.shards[0].format == "webdataset" else "text")


def exact_ratio(dataset: Dataset, tokenizer: Path, store: ArtifactStore) -> float:
    return count_tokens(dataset, counting_of(dataset, tokenizer), run=RatioRun(workers=1, store=str(store.root))).tokens_per_byte


def measured(
    dataset: Dataset, tokenizer: Path, store: ArtifactStore, budget: int, *, exact: bool = False, **settings: Any
) -> Measurement:
    estimation = TokenEstimation(byte_budget=budget, exact_below_bytes=1 << 40 if exact else 0, target_rel_error=0.001)
    return calibrate(dataset, counting_of(dataset, tokenizer), estimation, store=store, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_is_read_than_may_be(kind: str, tmp_path: Path, store: ArtifactStore, word_tokenizer: Path) -> None:
    dataset = dataset_of(kind, tmp_path / "data", store)
    stored = sum(shard.stored_bytes for shard in dataset.shards)
    said = set()
    for share in (0.02, 0.1, 0.3, 0.6, 0.95):
        budget = int(share * stored)
        found = [measured(dataset, word_tokenizer, store, budget, seed=3, workers=workers) for workers in (1, 8)]
        # Where a read is refused, how much was read of that round until then is a matter of threads; what is found isn't.
        assert replace(found[0], bytes_read=0) == replace(found[1], bytes_read=0)
        assert max(one.bytes_read for one in found) <= budget
        assert found[0].source == "measured" or share < 0.6
        said.add(found[0].source)
    assert "measured" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_of_all_bytes_is_enough_to_count(kind: str, tmp_path: Path, store: ArtifactStore, word_tokenizer: Path) -> None:
    dataset = dataset_of(kind, tmp_path / "data", store)
    stored = sum(shard.stored_bytes for shard in dataset.shards)
    truth = exact_ratio(dataset, word_tokenizer, store)
    for workers in (1, 8):
        found = measured(dataset, word_tokenizer, store, stored, exact=True, workers=workers)
        assert (found.design, found.ratio, found.interval) == ("exact", truth, (truth, truth))
        assert stored / 2 < found.bytes_read <= stored


@pytest.mark.parametrize("kind", ["rows_of_some_kilobytes", "arrow_file_with_dictionaries", "tar"])
def test_what_rounds_leave_is_used(kind: str, tmp_path: Path, store: ArtifactStore, word_tokenizer: Path) -> None:
    """The first round is a cautious one; what is read of the budget in the end is most of it."""
    dataset = dataset_of(kind, tmp_path / "data", store)
    budget = int(0.8 * sum(shard.stored_bytes for shard in dataset.shards))
    found = measured(dataset, word_tokenizer, store, budget)
    assert budget / 2 < found.bytes_read <= budget


def test_what_reads_more_than_its_charge_is_stopped(
    tmp_path: Path, store: ArtifactStore, word_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a unit cost more than is known of it, the budget would hold all the same: what was found before counts, if any was."""
    dataset = dataset_of("parquet_of_pages", tmp_path / "data", store)
    stored = sum(shard.stored_bytes for shard in dataset.shards)
    charged = ReadingCost.of_units
    later: list[int] = []

    def cheap_at_last(self: ReadingCost, *arguments: Any) -> int:
        later.append(1)
        return charged(self, *arguments) // (10 if len(later) > 400 else 1)

    monkeypatch.setattr(ReadingCost, "of_units", cheap_at_last)
    found = measured(dataset, word_tokenizer, store, stored // 2)
    assert found.source == "measured" and len(later) > 400
    assert found.bytes_read <= stored // 2
    monkeypatch.setattr(ReadingCost, "of_units", lambda self, *arguments: charged(self, *arguments) // 10)
    never = measured(dataset, word_tokenizer, store, stored // 4)
    assert never.source == "fallback" and never.bytes_read <= stored // 4
    assert never.reason == f"the first rows that were looked at read more than the byte budget of {stored // 4:,}"
    count = measured(dataset, word_tokenizer, store, stored // 4, exact=True)
    assert replace(count, bytes_read=0) == replace(never, bytes_read=0) and count.bytes_read <= stored // 4


@pytest.mark.parametrize("share", [0.55, 0.8, 0.99])
def test_intervals_hold_where_all_but_a_few_files_can_be_read(
    share: float, tmp_path: Path, store: ArtifactStore, word_tokenizer: Path
) -> None:
    """Draws that don't fit aren't made again until they do: those that fall on what is read already always would."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = random.Random(1)
    for number in range(8):
        texts = [" ".join(rng.choice(WORDS) + "x" * (number % 4 * rng.randint(0, 2)) for _ in range(40)) for _ in range(30)]
        pq.write_table(pa.table({"text": texts}), folder / f"{number}.parquet", compression="none", use_dictionary=False)
    dataset = Dataset.from_path("data", str(folder), store=store)
    budget = int(share * sum(shard.stored_bytes for shard in dataset.shards))
    truth = count_tokens(
        dataset, TextTokenCountingSpec(word_tokenizer), run=RatioRun(workers=1, store=str(store.root))
    ).tokens_per_byte
    found = [measured(dataset, word_tokenizer, store, budget, seed=seed) for seed in range(60)]
    assert {(one.source, one.design == "exact") for one in found} == {("measured", False)}
    assert sum(one.interval is not None and one.interval[0] <= truth <= one.interval[1] for one in found) >= 53
    assert all("a file unlike the others may not be among them" in one.reason for one in found if one.draws < 16)


@pytest.mark.parametrize(
    "kind", ["arrow_file_with_dictionaries", "arrow_stream_with_dictionaries", "tar", "rows_of_some_kilobytes"]
)
def test_far_away_files_count_as_near_ones_do(kind: str, tmp_path: Path, store: ArtifactStore, word_tokenizer: Path) -> None:
    import fsspec

    near = dataset_of(kind, tmp_path / "data", store)
    system = fsspec.filesystem("memory")
    for path in sorted((tmp_path / "data").iterdir()):
        system.pipe(f"/{kind}/{path.name}", path.read_bytes())
    far = Dataset.from_path("data", f"memory://{kind}", store=store)
    stored = sum(shard.stored_bytes for shard in near.shards)
    truth = exact_ratio(near, word_tokenizer, store)
    for workers in (1, 8):
        found = measured(far, word_tokenizer, store, stored, exact=True, workers=workers)
        assert (found.design, found.ratio) == ("exact", truth)
        assert found.bytes_read <= stored
        part = measured(far, word_tokenizer, store, stored // 2, workers=workers)
        assert part.bytes_read <= stored // 2


def test_a_file_that_is_another_by_now_takes_none_of_the_budget(tmp_path: Path, store: ArtifactStore, word_tokenizer: Path) -> None:
    dataset = dataset_of("rows_of_some_kilobytes", tmp_path / "data", store)
    stored = sum(shard.stored_bytes for shard in dataset.shards)
    (tmp_path / "data" / "0.jsonl").unlink()
    with (tmp_path / "data" / "1.jsonl").open("a") as file:
        file.write("x")
    found = [measured(dataset, word_tokenizer, store, stored // 2, seed=5, workers=workers) for workers in (1, 2, 8)]
    assert found[0] == found[1] == found[2] and found[0].retryable
    counted = measured(dataset, word_tokenizer, store, stored, exact=True)
    assert (counted.design, counted.source, counted.retryable) == ("counted in part", "measured", True) or counted.failed > 0.4


def test_two_draws_on_one_file_leave_room_for_the_others(tmp_path: Path, store: ArtifactStore, word_tokenizer: Path) -> None:
    """Of five files one has most of the bytes: two draws often fall on it, and say nothing of the others."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = random.Random(4)
    for number in range(5):
        kind = "x" * 9 if number else ""
        texts = [" ".join(rng.choice(WORDS) + kind for _ in range(60)) for _ in range(20 if number else 100)]
        pq.write_table(pa.table({"text": texts}), folder / f"{number}.parquet", compression="none", use_dictionary=False)
    dataset = Dataset.from_path("data", str(folder), store=store)
    costs = sorted(shard.stored_bytes for shard in dataset.shards)
    truth = exact_ratio(dataset, word_tokenizer, store)
    found = [measured(dataset, word_tokenizer, store, costs[-1] + costs[-2], seed=seed) for seed in range(60)]
    assert {(one.source, one.draws) for one in found} == {("measured", 2)}
    assert sum(one.units == 1 for one in found) >= 10
    assert sum(one.interval is not None and one.interval[0] <= truth <= one.interval[1] for one in found) >= 55
