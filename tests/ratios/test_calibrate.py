"""What a measurement is worth: unbiased, as sure as it says, and the same whoever makes it."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ratio_inputs import WORDS

from zephon_core.errors import FatalCountError
from zephon_core.ratios import calibrate as calibrate_module
from zephon_core.ratios.calibrate import Measurement, _Calibration, calibrate
from zephon_core.ratios.count import count_tokens
from zephon_core.ratios.counting import ChatTokenCountingSpec, TextTokenCountingSpec
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.datasets import parquet as parquet_format
from zephon_core.ratios.estimation import TokenEstimation
from zephon_core.ratios.reading_cost import ReadingCost
from zephon_core.ratios.specs import RatioRun
from zephon_core.store import ArtifactStore

Texts = Sequence[str | None]
SAMPLED = {"exact_below_bytes": 0, "target_rel_error": 0.02}


def words(rng: random.Random, count: int, longest: int = 1) -> str:
    """Words, each repeated into a run without a blank: `longest` says how many bytes a token may have."""
    return " ".join(rng.choice(WORDS) if rng.random() < 1 / longest else "x" * rng.randint(3, 9) for _ in range(count))


def even(rng: random.Random, shard: int) -> list[str | None]:
    return [words(rng, rng.randint(5, 60)) for _ in range(40)]


def one_kind_a_shard(rng: random.Random, shard: int) -> list[str | None]:
    """Rows of equal size, but of many tokens in some shards and few in others."""
    return [words(rng, 200, longest=1 + shard % 4)[:600] for _ in range(15)]


def heavy_tail(rng: random.Random, shard: int) -> list[str | None]:
    """Tiny rows, and in a tenth of the shards a row a thousand times as long, of another kind."""
    rows: list[str | None] = [words(rng, rng.randint(1, 6)) for _ in range(80)]
    return [*rows, words(rng, 6_000, longest=6)] if shard % 10 == 3 else rows


def with_gaps(rng: random.Random, shard: int) -> list[str | None]:
    """Nulls and empty texts: an empty one delivers its special tokens, a null nothing."""
    return [rng.choice([None, "", words(rng, 3)]) for _ in range(150)]


KINDS: dict[str, Callable[[random.Random, int], list[str | None]]] = {
    "even": even,
    "one kind a shard": one_kind_a_shard,
    "heavy tail": heavy_tail,
    "with gaps": with_gaps,
}


def write(folder: Path, number: int, texts: Texts, format: str) -> None:
    folder.mkdir(exist_ok=True)
    lines = b"".join(json.dumps({"id": row, "text": text}).encode() + b"\n" for row, text in enumerate(texts))
    if format == "parquet":
        table = pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.string())})
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=25, compression="zstd")
    elif format == "jsonl":
        (folder / f"{number:03}.jsonl").write_bytes(lines)
    else:
        (folder / f"{number:03}.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make a data set of 40 shards, once."""
    root = tmp_path_factory.mktemp("sets")

    def make(kind: str, format: str) -> Path:
        folder = root / f"{kind}-{format}"
        if not folder.exists():
            rng = random.Random(kind)
            for shard in range(40):
                write(folder, shard, KINDS[kind](rng, shard), format)
        return folder

    return make


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtifactStore]:
    folder = tmp_path_factory.mktemp("store")
    yield ArtifactStore(folder)
    shutil.rmtree(folder)


def exact_ratio(dataset: Dataset, counting: TextTokenCountingSpec, store: ArtifactStore) -> float:
    return count_tokens(dataset, counting, run=RatioRun(workers=1, store=str(store.root))).tokens_per_byte


@pytest.mark.parametrize(
    ("kind", "format"), [*((kind, format) for kind in KINDS for format in ("jsonl", "parquet")), ("even", "jsonl.gz")]
)
def test_the_interval_holds_the_exact_ratio(
    kind: str,
    format: str,
    made: Callable[..., Path],
    store: ArtifactStore,
    word_tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_Calibration, "_may_read_rest", lambda *_: False)  # these sets are small enough to be counted
    counting = TextTokenCountingSpec(word_tokenizer)
    dataset = Dataset.from_path("data", str(made(kind, format)), store=store)
    truth = exact_ratio(dataset, counting, store)
    seeds = 40
    estimation = TokenEstimation(exact_below_bytes=0, target_rel_error=0.05)
    found = [calibrate(dataset, counting, estimation, seed=seed, workers=1) for seed in range(seeds)]
    errors = np.array([one.ratio / truth - 1 for one in found])
    # 40 intervals of 95 %: that more than 8 miss the truth has a probability of one in ten thousand.
    assert sum(one.interval is not None and one.interval[0] <= truth <= one.interval[1] for one in found) >= 32
    assert abs(errors.mean()) < 4 * errors.std() / math.sqrt(seeds)
    assert errors.std() < 0.03


def measured(folder: Path, store: ArtifactStore, tokenizer: Path, *, name: str = "data", **settings: Any) -> Measurement:
    dataset = Dataset.from_path(name, str(folder), store=store)
    workers = settings.pop("workers", 2)
    seed = settings.pop("seed", 7)
    estimation = TokenEstimation(**{**SAMPLED, **settings})
    return calibrate(dataset, TextTokenCountingSpec(tokenizer), estimation, seed=seed, workers=workers)


@pytest.mark.parametrize("format", ["jsonl", "parquet", "jsonl.gz"])
def test_content_and_seed_alone_decide(
    format: str, made: Callable[..., Path], store: ArtifactStore, word_tokenizer: Path, tmp_path: Path
) -> None:
    folder = made("heavy tail", format)
    first = measured(folder, store, word_tokenizer)
    assert first.source == "measured"
    again = measured(folder, store, word_tokenizer, workers=8)
    assert replace(again, bytes_read=0) == replace(first, bytes_read=0)
    assert again.bytes_read == first.bytes_read or format == "jsonl"
    renamed = tmp_path / "renamed"
    for number, path in enumerate(sorted(folder.iterdir(), reverse=True)):
        renamed.mkdir(exist_ok=True)
        shutil.copyfile(path, renamed / f"{number:03}.{format}")
    again = measured(renamed, store, word_tokenizer, name="other")
    assert replace(again, bytes_read=0) == replace(first, bytes_read=0)
    assert measured(folder, store, word_tokenizer, seed=8).ratio != first.ratio


def test_it_goes_on_until_the_interval_is_narrow_enough(
    made: Callable[..., Path], store: ArtifactStore, word_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Calibration, "_may_read_rest", lambda *_: False)
    folder = made("even", "jsonl")
    wide, narrow = (measured(folder, store, word_tokenizer, target_rel_error=target) for target in (0.05, 0.001))
    assert wide.interval is not None and narrow.interval is not None
    assert (wide.interval[1] - wide.interval[0]) / 2 <= 0.05 * wide.ratio
    assert (narrow.interval[1] - narrow.interval[0]) / 2 <= 0.001 * narrow.ratio
    assert narrow.draws > wide.draws >= 256


def test_what_costs_as_much_as_counting_is_counted(made: Callable[..., Path], store: ArtifactStore, word_tokenizer: Path) -> None:
    folder = made("even", "parquet")
    dataset = Dataset.from_path("data", str(folder), store=store)
    truth = exact_ratio(dataset, TextTokenCountingSpec(word_tokenizer), store)
    for settings in ({"exact_below_bytes": 1 << 30}, {"target_rel_error": 0.0001}):
        found = measured(folder, store, word_tokenizer, **settings)
        assert (found.design, found.ratio, found.interval) == ("exact", truth, (truth, truth))
    within_budget = measured(folder, store, word_tokenizer, exact_below_bytes=1 << 30, byte_budget=20_000)
    assert within_budget.design != "exact"


@pytest.mark.parametrize("kind", ["even", "heavy tail"])
@pytest.mark.parametrize("format", ["jsonl", "parquet", "jsonl.gz"])
def test_a_budget_of_bytes_is_kept(
    kind: str, format: str, made: Callable[..., Path], store: ArtifactStore, word_tokenizer: Path
) -> None:
    folder = made(kind, format)
    stored = sum(path.stat().st_size for path in folder.iterdir())
    for seed, share in enumerate((0.25, 0.25, 0.35, 0.5, 0.8)):
        budget = int(share * stored)
        found = measured(folder, store, word_tokenizer, seed=seed, workers=8, byte_budget=budget, target_rel_error=0.001)
        assert found.source == "measured"
        assert (found.design == "exact", found.units > 0) == (False, True)
        assert budget / 2 < found.bytes_read <= budget or format == "jsonl"
        assert 0 < found.bytes_read <= budget


def dear_and_cheap(folder: Path) -> Path:
    """Five files that hold half of the bytes, in words of one letter, and many small ones, in longer words."""
    rng = random.Random(6)
    for number in range(45):
        if number % 9 == 4:
            write(folder, number, [words(rng, 500, longest=1) for _ in range(24)], "jsonl.gz")
        else:
            write(folder, number, [words(rng, 30, longest=6) for _ in range(24)], "jsonl.gz")
    return folder


def test_draws_that_may_not_fit_a_budget_have_room_in_the_interval(
    store: ArtifactStore, word_tokenizer: Path, tmp_path: Path
) -> None:
    """Two of the five dear files, which have most of the tokens, don't fit; what fits by luck isn't taken for all."""
    dataset = Dataset.from_path("data", str(dear_and_cheap(tmp_path / "data")), store=store)
    truth = exact_ratio(dataset, TextTokenCountingSpec(word_tokenizer), store)
    units = dataset.units
    dearest = int(units.stored_bytes.max())
    budget = dearest * 5 // 4
    fitting = ReadingCost(dataset).fitting(budget)
    assert 0.5 < fitting < 0.8
    found = [measured(tmp_path / "data", store, word_tokenizer, seed=seed, byte_budget=budget) for seed in range(25)]
    assert {one.source for one in found} == {"measured"}
    assert all(one.bytes_read <= budget and one.failed == pytest.approx(1 - fitting) for one in found)
    assert all("two draws at times read more than the byte budget" in one.reason for one in found)
    assert sum(one.interval is not None and one.interval[0] <= truth <= one.interval[1] for one in found) >= 22
    enough = measured(tmp_path / "data", store, word_tokenizer, byte_budget=2 * dearest)
    assert (enough.failed, enough.draws) == (0, 2)
    assert enough.reason == "the byte budget has room for 2 draws: a file unlike the others may not be among them"
    never = [measured(tmp_path / "data", store, word_tokenizer, seed=seed, byte_budget=dearest // 2) for seed in range(5)]
    assert {one.source for one in never} == {"fallback"}


def test_a_budget_that_holds_no_two_draws_measures_nothing(
    made: Callable[..., Path], store: ArtifactStore, word_tokenizer: Path
) -> None:
    found = measured(made("even", "parquet"), store, word_tokenizer, byte_budget=50)
    assert (found.source, found.bytes_read) == ("fallback", 0)
    assert found.reason == "two draws read more than the byte budget of 50"


def test_what_is_left_out_has_room_in_the_interval(
    made: Callable[..., Path], store: ArtifactStore, word_tokenizer: Path, tmp_path: Path
) -> None:
    """A fifth of the shards can't be read: they may hold 2.5 times more or less."""
    folder = tmp_path / "data"
    shutil.copytree(made("one kind a shard", "parquet"), folder)
    for number, path in enumerate(sorted(folder.iterdir())):
        if number % 5 == 2:
            path.write_bytes(path.read_bytes()[:-1])
    for settings in ({"exact_below_bytes": 1 << 30}, {}):
        found = measured(folder, store, word_tokenizer, **settings)
        assert found.interval is not None and 0.15 < found.failed < 0.25
        assert found.interval[0] <= found.ratio * (1 - found.failed * 0.6)
        assert found.interval[1] >= found.ratio * (1 + found.failed * 1.5)
        assert found.design in ("counted in part", "stratified")


def test_a_part_that_no_draw_met_has_room_in_the_interval(store: ArtifactStore, word_tokenizer: Path, tmp_path: Path) -> None:
    """Nearly all bytes are of rows without text; the tokens are in 0.2 % of them."""
    rng = random.Random(1)
    with (tmp_path / "data.jsonl").open("w") as file:
        for number in range(150):
            print(json.dumps({"blob": "x" * 20_000, "text": ""}), file=file)
            if number == 70:
                print(json.dumps({"blob": "", "text": words(rng, 1_500)}), file=file)
    dataset = Dataset.from_path("data", str(tmp_path), store=store)
    counting = TextTokenCountingSpec(word_tokenizer, field="text")
    truth = exact_ratio(dataset, counting, store)
    for seed in range(10):
        estimation = TokenEstimation(exact_below_bytes=0, byte_budget=2_500_000)
        found = calibrate(dataset, counting, estimation, seed=seed, store=store)
        assert found.interval is not None and found.design != "exact"
        assert found.interval[0] <= truth <= found.interval[1]


def test_chat_rows_give_two_ratios(store: ArtifactStore, word_tokenizer: Path, tmp_path: Path) -> None:
    rng = random.Random(3)
    template = (
        "{% for message in messages %}{{ message.role }} {% if message.role == 'assistant' %}"
        "{% generation %}{{ message.content }} {% endgeneration %}{% else %}{{ message.content }} {% endif %}{% endfor %}"
    )
    rows = [
        {"messages": [{"role": role, "content": words(rng, rng.randint(2, 30))} for role in ("user", "assistant")]}
        for _ in range(400)
    ]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = Dataset.from_path("chat", str(tmp_path / "chat.jsonl"), store=store)
    counting = ChatTokenCountingSpec(word_tokenizer, chat_template=template)
    exact = count_tokens(dataset, counting, run=RatioRun(workers=1, store=str(store.root)))
    found = calibrate(dataset, counting, TokenEstimation(exact_below_bytes=0, target_rel_error=0.03, byte_budget=10**9), seed=1)
    assert found.ratio == pytest.approx(exact.tokens_per_byte, rel=0.06)
    assert found.loss_ratio == pytest.approx(exact.loss_tokens_per_byte, rel=0.1)
    assert found.loss_interval is not None and found.loss_interval[0] < found.loss_ratio < found.loss_interval[1]


def test_what_can_t_be_read_is_left_out_and_told(
    made: Callable[..., Path], store: ArtifactStore, word_tokenizer: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(made("even", "jsonl"), folder)
    lines = (folder / "003.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "003.jsonl").write_bytes(b"".join(b"{broken" + line[7:] for line in lines))
    found = measured(folder, store, word_tokenizer)
    assert found.source == "measured"
    assert 0 < found.failed < 0.1
    assert "of the bytes are left out: broken JSON" in found.reason
    for path in folder.iterdir():
        if path.name > "015.jsonl":
            path.write_bytes(path.read_bytes().replace(b"{", b"["))
    found = measured(folder, store, word_tokenizer)
    assert (found.source, found.retryable) == ("fallback", False)
    assert found.ratio == 0.25  # of JSONL, content bytes are raw bytes
    assert "of the bytes drawn could be measured as text, field: text: broken JSON" in found.reason


@pytest.mark.parametrize("settings", [{}, {"exact_below_bytes": 1 << 30}])
@pytest.mark.parametrize("when", ["before the catalog", "after it"])
def test_a_shard_that_is_gone_is_told_and_not_remembered(
    when: str,
    settings: dict[str, Any],
    made: Callable[..., Path],
    store: ArtifactStore,
    word_tokenizer: Path,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "gone"
    shutil.copytree(made("even", "jsonl.gz"), folder)
    if when == "before the catalog":
        (folder / "004.jsonl.gz").write_bytes((folder / "004.jsonl.gz").read_bytes()[:-20])
    dataset = Dataset.from_path("data", str(folder), store=store)
    if when == "after it":
        (folder / "004.jsonl.gz").unlink()
    estimation = TokenEstimation(**{**SAMPLED, **settings})
    found = calibrate(dataset, TextTokenCountingSpec(word_tokenizer), estimation, seed=7)
    assert found.source == "measured"
    assert 0 < found.failed < 0.1
    assert "% of the bytes are left out: " in found.reason
    assert found.retryable == (when == "after it")


def test_a_row_that_the_training_would_refuse_stops_it(store: ArtifactStore, word_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one two"}\n' * 300 + '{"body": "one"}\n' * 300)
    with pytest.raises(FatalCountError, match=r"a\.jsonl \(byte [\d,]+\): has no 'text'"):
        measured(tmp_path / "a.jsonl", store, word_tokenizer)


def test_a_function_of_the_user_s_takes_the_tokenizer_s_place(made: Callable[..., Path], store: ArtifactStore) -> None:
    folder = made("even", "jsonl")
    dataset = Dataset.from_path("data", str(folder), store=store)
    estimation = TokenEstimation(exact_below_bytes=0, measure=lambda row: len(json.dumps(row)) + 1)
    found = calibrate(dataset, None, estimation)
    assert found.ratio == pytest.approx(1, rel=1e-9)  # a token a byte of the line, and its end

    def fails(row: Any) -> int:
        raise KeyError("tokens")

    found = calibrate(dataset, None, TokenEstimation(exact_below_bytes=0, measure=fails))
    assert (found.source, found.ratio) == ("fallback", 0.25)
    assert "failed (KeyError: 'tokens')" in found.reason


def test_an_empty_data_set_is_a_fallback(store: ArtifactStore, word_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    found = measured(tmp_path / "a.jsonl", store, word_tokenizer)
    assert (found.source, found.reason) == ("fallback", "holds nothing that can be read")


@pytest.fixture
def one_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of one row group, cut by pages, of which a first round may read a tenth."""
    monkeypatch.setattr(parquet_format, "_LARGE_GROUP_BYTES", 1)
    monkeypatch.setattr(parquet_format, "_UNIT_BYTES", 1)
    monkeypatch.setattr(calibrate_module, "_EASY_BYTES", (1 << 10, 1 << 20))
    monkeypatch.setattr(_Calibration, "_may_read_rest", lambda *_: False)
    rng = random.Random(11)
    texts = [words(rng, rng.randint(1, 40), longest=1 + row // 2000) for row in range(6000)]
    table = pa.table({"text": pa.array(texts, pa.string()), "tags": pa.array([["a"]] * len(texts))})
    options = {"data_page_size": 4096, "write_batch_size": 16, "use_dictionary": False, "write_page_index": True}
    pq.write_table(table, tmp_path / "a.parquet", **options)
    return tmp_path / "a.parquet"


def test_pages_of_a_row_group_are_looked_at_often(one_row_group: Path, store: ArtifactStore, word_tokenizer: Path) -> None:
    counting = TextTokenCountingSpec(word_tokenizer)
    dataset = Dataset.from_path("data", str(one_row_group), store=store)
    truth = exact_ratio(dataset, counting, store)
    estimation = TokenEstimation(exact_below_bytes=0, target_rel_error=0.1)
    found = [calibrate(dataset, counting, estimation, seed=seed, workers=1) for seed in range(40)]
    assert all("looks a draw" in one.design for one in found)
    assert np.median([one.units for one in found]) < len(dataset.units) / 2
    assert sum(one.interval is not None and one.interval[0] <= truth <= one.interval[1] for one in found) >= 32
    assert np.median([one.bytes_read for one in found]) < dataset.shards[0].stored_bytes
    again = calibrate(dataset, counting, estimation, seed=5, workers=8)
    assert replace(again, bytes_read=0) == replace(found[5], bytes_read=0)


def test_a_bad_row_costs_a_look_and_not_its_draw(one_row_group: Path, store: ArtifactStore, word_tokenizer: Path) -> None:
    table = pq.read_table(one_row_group)
    texts = [None if row % 20 else b"\xff\xfe and more" for row in range(len(table))]
    kept = [text if bad is None else bad for text, bad in zip(table["text"].to_pylist(), texts, strict=True)]
    encoded = pa.array([text if isinstance(text, bytes) else text.encode() for text in kept], pa.binary())
    # As texts that a writer didn't check.
    column = pa.Array.from_buffers(pa.string(), len(encoded), encoded.buffers())
    pq.write_table(pa.table({"text": column}), one_row_group, data_page_size=4096, write_batch_size=16, use_dictionary=False)
    found = measured(one_row_group, store, word_tokenizer, target_rel_error=0.1)
    assert found.source == "measured"
    assert 0 < found.failed < 0.2
    assert "invalid UTF-8" in found.reason


def few_large(folder: Path, kind: str, files: int = 6) -> Path:
    """Files of row groups or lines, not all with the same kind of words, and another column or field."""
    folder.mkdir()
    rng = random.Random(9)
    for shard in range(files):
        texts = [words(rng, rng.randint(50, 200), longest=1 + shard % 3) for _ in range(600)]
        if kind == "parquet":
            table = pa.table({"id": [rng.random() for _ in texts], "text": texts})
            pq.write_table(table, folder / f"{shard:03}.parquet", row_group_size=300 if files < 16 else 600)
        else:
            write(folder, shard, texts, kind)
    return folder


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz"])
@pytest.mark.parametrize("workers", [1, 8])
def test_a_budget_of_all_bytes_counts_exactly_and_is_kept(
    kind: str, workers: int, store: ArtifactStore, word_tokenizer: Path, tmp_path: Path
) -> None:
    folder = few_large(tmp_path / "data", kind)
    stored = sum(path.stat().st_size for path in folder.iterdir())
    assert kind != "parquet" or stored > 6 * (128 << 10)  # files that aren't small, whose footers are read before their units
    dataset = Dataset.from_path("data", str(folder), store=store)
    truth = exact_ratio(dataset, TextTokenCountingSpec(word_tokenizer), store)
    at_once = measured(folder, store, word_tokenizer, workers=workers, byte_budget=stored, exact_below_bytes=1 << 30)
    assert (at_once.design, at_once.ratio, at_once.interval) == ("exact", truth, (truth, truth))
    assert at_once.bytes_read <= stored
    later = measured(folder, store, word_tokenizer, workers=workers, byte_budget=stored, target_rel_error=1e-6)
    assert later.bytes_read <= stored
    if kind != "jsonl":  # of which rows were read, and had to be read again with all the others
        assert (later.design, later.ratio) == ("exact", truth)
    tight = measured(folder, store, word_tokenizer, workers=workers, byte_budget=stored - 1, exact_below_bytes=1 << 30)
    assert tight.design != "exact" and tight.bytes_read < stored


def test_a_budget_of_most_bytes_makes_the_most_of_them(store: ArtifactStore, word_tokenizer: Path, tmp_path: Path) -> None:
    """Whoever could draw on only where the draws fall on what is kept, for ever, stops; and looks often where draws are few."""
    folder = few_large(tmp_path / "data", "parquet", files=16)
    stored = sum(path.stat().st_size for path in folder.iterdir())
    dataset = Dataset.from_path("data", str(folder), store=store)
    truth = exact_ratio(dataset, TextTokenCountingSpec(word_tokenizer), store)
    for budget in (stored * 9 // 10, stored - 1):
        found = [
            measured(folder, store, word_tokenizer, seed=seed, byte_budget=budget, target_rel_error=1e-6) for seed in range(12)
        ]
        assert all(one.bytes_read <= budget for one in found)
        sampled = [one for one in found if one.design != "exact"]
        # What is left out of the budget is the other column: with all of it but a byte, everything is counted in the end at times.
        assert len(sampled) == len(found) if budget < stored - 1 else all(one.ratio == truth for one in found if one not in sampled)
        assert all(one.draws * int(re.search(r"(\d+) looks", one.design)[1]) >= 1024 for one in sampled)
        errors = np.array([one.ratio / truth - 1 for one in found])
        assert np.sqrt(np.square(errors).mean()) < 0.005
        assert sum(one.interval is not None and one.interval[0] <= truth <= one.interval[1] for one in found) >= 9
