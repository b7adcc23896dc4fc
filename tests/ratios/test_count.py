"""The exact pass counts every row, whoever counts it, and says what it could not count."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import count_steps
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ratio_inputs import WORDS
from tokenizers import Tokenizer

from zephon_core.errors import FatalCountError, InputError, MeasureError, WorkerError
from zephon_core.ratios import count
from zephon_core.ratios.count import ExactCount, count_tokens
from zephon_core.ratios.counting import ChatTokenCountingSpec, Replay, TextTokenCountingSpec
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.specs import RatioRun
from zephon_core.store import ArtifactStore


def texts_of(seed: int, rows: int = 60) -> list[str | None]:
    words = random.Random(seed)
    return [None if words.random() < 0.05 else " ".join(words.choices(WORDS, k=words.choice([0, 1, 9, 70]))) for _ in range(rows)]


def tokens_of(texts: list[str | None]) -> int:
    return sum(len(text.split()) + 2 for text in texts if text is not None)


def as_lines(texts: list[str | None]) -> bytes:
    return b"".join(json.dumps({"text": text, "id": i}).encode() + b"\n" for i, text in enumerate(texts))


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[Path, int, int]:
    """A folder of Parquet, plain and compressed JSONL; its tokens, and its rows."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    parts = [texts_of(seed) for seed in range(4)]
    for number, texts in enumerate(parts[:2]):
        table = pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.string())})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=17)
    (folder / "2.jsonl").write_bytes(as_lines(parts[2]) + b"\n\n")
    (folder / "3.jsonl.gz").write_bytes(gzip.compress(as_lines(parts[3]), mtime=0))
    return folder, sum(map(tokens_of, parts)), sum(map(len, parts)) + 2


def opened(folder: Path) -> tuple[Dataset, RatioRun]:
    store = str(folder.parent / "store")
    return Dataset.from_path("data", str(folder), store=ArtifactStore(store)), RatioRun(store=store)


def counted(folder: Path, spec: object, *, workers: int = 1, **settings: object) -> ExactCount:
    dataset, run = opened(folder)
    return count_tokens(dataset, spec, run=run.model_copy(update={"workers": workers}), **settings)


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small data sets counted as large ones are: in worker processes, and in many slices."""
    monkeypatch.setattr(count, "_WORTH_PROCESSES_BYTES", 0)
    monkeypatch.setattr(count, "_SLICE_BYTES", 700)
    monkeypatch.setattr(count, "_JOB_BYTES", 500)
    monkeypatch.setattr(count, "_JOBS_A_WORKER", 1 << 20)


def test_every_row_is_counted(mixed, word_tokenizer):
    folder, tokens, rows = mixed
    result = counted(folder, TextTokenCountingSpec(word_tokenizer))
    assert (result.tokens, result.rows) == (tokens, rows)
    assert result.raw_bytes == opened(folder)[0].raw_bytes().sum()
    assert result.tokens_per_byte == tokens / result.raw_bytes
    assert (result.loss_tokens, result.loss_tokens_per_byte) == (None, None)
    assert (result.bad_rows, result.bad_units, result.problems, result.measured_share) == ({}, {}, (), 1.0)
    assert result.complete
    assert result.what == "text, field: text"
    assert result.encoder == "huggingface"


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_changes_nothing(mixed, word_tokenizer, in_processes, workers):
    folder, tokens, _ = mixed
    (folder / "broken.jsonl").write_bytes(b'{"text": "word1"}\n{"text": \n' + as_lines(texts_of(9)))
    alone = counted(folder, TextTokenCountingSpec(word_tokenizer))
    together = counted(folder, TextTokenCountingSpec(word_tokenizer), workers=workers)
    for name in ("tokens", "rows", "bad_rows", "problems", "measured_share", "raw_bytes", "what"):
        assert getattr(together, name) == getattr(alone, name)
    assert alone.tokens == tokens + 3 + tokens_of(texts_of(9))
    assert alone.bad_rows == {"broken JSON": 1}


def test_slices_of_units_are_a_partition(mixed):
    dataset, _ = opened(mixed[0])
    for workers in (1, 2, 5):
        pieces = Counter(piece for job in count._jobs(dataset.units.size, workers) for piece in job)
        assert set(pieces.values()) == {1}
        for unit in range(len(dataset.units)):
            parts = sorted((piece.part, piece.parts) for piece in pieces if piece.unit == unit)
            assert parts == [(part, parts[0][1]) for part in range(parts[0][1])]


def test_large_units_come_first_and_in_slices():
    sizes = np.array([5 << 10, 40 << 20, 3 << 20, 7 << 10], np.int64)
    jobs = count._jobs(sizes, 2)
    assert [piece.unit for job in jobs for piece in job] == [1] * 10 + [2, 3, 0]
    assert len(jobs[-1]) == 2
    assert len(count._jobs(sizes, 1)) == 3
    assert count._jobs(np.empty(0, np.int64), 2) == []


def test_one_broken_line_costs_its_own_row(tmp_path, word_tokenizer):
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [
        b'{"text": "word1 word2"}\n',
        b'{"text": "word1\n',
        b'{"text": "\xff"}\n',
        b"\n",
        b'{"text": b"}\n',
        b'{"text": "word3"}\n',
    ]
    (folder / "a.jsonl").write_bytes(b"".join(lines))
    result = counted(folder, TextTokenCountingSpec(word_tokenizer, special_tokens="none"))
    assert (result.tokens, result.rows) == (3, 3)
    assert result.bad_rows == {"broken JSON": 2, "invalid UTF-8": 1}
    assert [problem.rpartition("/")[2] for problem in result.problems] == [
        "a.jsonl:2: broken JSON",
        "a.jsonl:3: invalid UTF-8",
        "a.jsonl:5: broken JSON",
    ]
    lost = sum(map(len, (lines[1], lines[2], lines[4])))
    assert result.measured_share == pytest.approx(1 - lost / result.raw_bytes, abs=1e-12)
    assert result.tokens_per_byte == pytest.approx(3 / (result.raw_bytes - lost))
    assert not result.complete


def test_one_text_that_is_no_utf8_costs_its_own_row(tmp_path, word_tokenizer):
    folder = tmp_path / "data"
    folder.mkdir()
    broken = pa.array([b"word1 word2", b"word\xff", None, b"word3"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 4, broken.buffers(), null_count=1)
    pq.write_table(pa.table({"text": texts}), folder / "a.parquet")
    result = counted(folder, TextTokenCountingSpec(word_tokenizer, special_tokens="none"))
    assert (result.tokens, result.rows, result.bad_rows) == (3, 3, {"invalid UTF-8": 1})
    assert result.problems[0].endswith("a.parquet:2: invalid UTF-8")
    assert result.measured_share == pytest.approx(1 - 5 / 21)


def test_a_row_whose_number_is_unknown_is_found_by_its_unit(word_tokenizer, tmp_path, monkeypatch):
    from zephon_core.ratios.datasets import jsonl

    monkeypatch.setattr(jsonl, "RANGE_BYTES", 1000)
    lines = as_lines(texts_of(3, rows=200)) + b'{"text": "cut'
    with fsspec.open("memory://count/a.jsonl", "wb") as file:
        file.write(lines)
    dataset = Dataset.from_path("remote", "memory://count", store=ArtifactStore(tmp_path))
    result = count_tokens(dataset, TextTokenCountingSpec(word_tokenizer), run=RatioRun(store=str(tmp_path), workers=1))
    assert result.tokens == tokens_of(texts_of(3, rows=200))
    (problem,) = result.problems
    assert re.search(r"a\.jsonl \(row \d+ of its unit \d+\): broken JSON", problem)


def test_a_shard_that_is_cut_after_it_was_listed_costs_itself(mixed, word_tokenizer, in_processes):
    folder, _, _ = mixed
    dataset, run = opened(folder)
    cut = folder / "1.parquet"
    content = cut.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    expected = sum(tokens_of(texts_of(seed)) for seed in (0, 2, 3))
    for workers in (1, 2):
        result = count_tokens(dataset, TextTokenCountingSpec(word_tokenizer), run=run.model_copy(update={"workers": workers}))
        assert result.tokens == expected
        assert sum(result.bad_units.values()) == 4
        assert all("1.parquet" in problem for problem in result.problems)
        assert 0 < result.measured_share < 1


def test_nothing_that_can_be_read_is_an_error(tmp_path, word_tokenizer):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(as_lines(texts_of(1)))
    dataset, run = opened(folder)
    (folder / "a.jsonl").unlink()
    with pytest.raises(InputError, match="data set data: can't be read"):
        count_tokens(dataset, TextTokenCountingSpec(word_tokenizer), run=run)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_that_training_refuses_stops_the_count_and_is_named(tmp_path, word_tokenizer, in_processes, workers):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(as_lines(texts_of(1, rows=300)) + b'{"title": "no text"}\n' + as_lines(texts_of(2)))
    with pytest.raises(FatalCountError, match=r"a\.jsonl:301: has no 'text', but title"):
        counted(folder, TextTokenCountingSpec(word_tokenizer), workers=workers)
    with pytest.raises(MeasureError, match=r"count_steps:words, on .*a\.jsonl:\d+: failed"):
        counted(folder, None, measure=count_steps.words, workers=workers)


def test_columns_and_rows_are_counted_alike(tmp_path, word_tokenizer):
    folder = tmp_path / "data"
    folder.mkdir()
    texts = texts_of(5)
    nested = [None if text is None else {"body": text, "n": 1} for text in texts]
    pq.write_table(pa.table({"doc": pa.array(nested, pa.struct([("body", pa.string()), ("n", pa.int64())]))}), folder / "a.parquet")
    settings = {"field": "doc.body", "special_tokens": "none"}
    expected = sum(len(text.split()) for text in texts if text)
    assert counted(folder, TextTokenCountingSpec(word_tokenizer, **settings)).tokens == expected
    replayed = counted(folder, TextTokenCountingSpec(word_tokenizer, **settings), replay=Replay([count_steps.keep]))
    assert replayed.tokens == expected
    assert replayed.what == "text, field: doc.body, after count_steps:keep"


def test_token_ids(tmp_path, word_tokenizer, in_processes):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [list(range(n % 7)) for n in range(200)]
    pq.write_table(pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))}), folder / "a.parquet", row_group_size=50)
    result = counted(folder, TextTokenCountingSpec(word_tokenizer), workers=2)
    assert result.tokens == sum(map(len, rows))
    assert result.bad_rows == {"can't be measured": sum(not row for row in rows)}
    assert result.measured_share == 1.0


def test_chat_rows_have_two_counts(tmp_path, word_tokenizer, in_processes):
    pytest.importorskip("transformers")
    folder = tmp_path / "data"
    folder.mkdir()
    template = (
        "{% for message in messages %}{{ message['role'] }} {% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] }}{% endgeneration %}{% else %}{{ message['content'] }}{% endif %} {% endfor %}"
    )
    said = [("user", "word1 word2"), ("assistant", "word3 word4 word5"), ("user", "word6")]
    row = {"messages": [{"role": role, "content": content} for role, content in said]}
    (folder / "a.jsonl").write_bytes(json.dumps(row).encode() + b"\n\n" + json.dumps({"messages": None}).encode())
    for workers in (1, 2):
        result = counted(folder, ChatTokenCountingSpec(word_tokenizer, chat_template=template), workers=workers)
        assert (result.tokens, result.loss_tokens, result.rows) == (9, 3, 3)
        assert result.loss_tokens_per_byte == 3 / result.raw_bytes


def test_rows_are_replayed_in_each_worker(mixed, word_tokenizer, in_processes):
    folder, _, _ = mixed
    spec = TextTokenCountingSpec(word_tokenizer, special_tokens="none")
    replay = Replay(["count_steps:without_nulls", count_steps.Doubled()])
    alone = counted(folder, spec)
    for workers in (1, 2):
        assert counted(folder, spec, replay=replay, workers=workers).tokens == 2 * alone.tokens


class Recorded:
    """Progress that adds up."""

    def __init__(self) -> None:
        self.total = self.done = 0.0
        self.unit = ""

    @contextmanager
    def phase(self, label, *, total, unit):
        self.total, self.unit = total, unit
        yield self

    def advance(self, amount):
        self.done += amount

    def note(self, message):
        raise AssertionError(message)


@pytest.mark.parametrize("workers", [1, 3])
def test_progress_is_in_bytes_and_comes_to_an_end(mixed, word_tokenizer, in_processes, workers):
    progress = Recorded()
    counted(mixed[0], TextTokenCountingSpec(word_tokenizer), workers=workers, progress=progress)
    assert progress.unit == "B"
    assert progress.done == progress.total > 0


def test_a_measure_that_no_other_process_can_get_counts_in_this_one(mixed, in_processes):
    notes = []
    progress = Recorded()
    progress.note = notes.append
    result = counted(mixed[0], None, measure=lambda row: 2, workers=2, progress=progress)
    assert result.tokens == 2 * (result.rows - 2)
    assert len(notes) == 1
    assert "one process alone" in notes[0]


def test_many_bad_rows_are_told_alike_whoever_finds_them(tmp_path, word_tokenizer, in_processes):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.jsonl").write_bytes(b"".join(b"%d {\n" % i for i in range(300)) + b'{"text": "word1"}\n')
    results = [counted(folder, TextTokenCountingSpec(word_tokenizer), workers=workers) for workers in (1, 2, 3)]
    assert {result.bad_rows["broken JSON"] for result in results} == {600}
    assert len({result.problems for result in results}) == len({result.measured_share for result in results}) == 1
    assert len(results[0].problems) == 20


def test_a_worker_that_is_killed_is_an_error(mixed, in_processes):
    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        counted(mixed[0], None, measure=count_steps.kill_worker, workers=2)


def test_a_data_set_without_rows(tmp_path, word_tokenizer):
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), folder / "a.parquet")
    result = counted(folder, TextTokenCountingSpec(word_tokenizer), workers=2)
    assert (result.tokens, result.rows, result.tokens_per_byte) == (0, 0, 0.0)
    assert result.complete


def test_real_corpora(shared_data, word_tokenizer, tmp_path):
    tokenizer = Tokenizer.from_file(str(word_tokenizer))
    for name in ("logs", "po_multi", "en_foldoc"):
        dataset = Dataset.from_path(name, str(shared_data / "corpora" / name), store=ArtifactStore(tmp_path))
        expected = 0
        with dataset.open(["text"]) as reader:
            for unit in range(len(dataset.units)):
                rows = reader.read(unit)
                texts = [row["text"] for row in rows.payloads(range(len(rows.row_bytes))) if isinstance(row, dict)]
                expected += sum(len(encoding) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False))
        spec = TextTokenCountingSpec(word_tokenizer, special_tokens="none")
        result = count_tokens(dataset, spec, run=RatioRun(store=str(tmp_path), workers=1))
        assert result.tokens == expected
        assert result.complete


def test_a_file_that_can_not_be_opened_is_left_out_and_said(mixed, word_tokenizer):
    folder, tokens, _ = mixed
    packed = gzip.compress(as_lines(texts_of(7)), mtime=0)
    (folder / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    result = counted(folder, TextTokenCountingSpec(word_tokenizer))
    assert (result.tokens, result.measured_share, result.complete) == (tokens, 1.0, False)
    assert result.counted_share == result.readable_share == pytest.approx(1 - (len(packed) // 2) / folder_bytes(folder))
    assert [problem.rpartition("/")[2][:26] for problem in result.problems] == ["cut.jsonl.gz: is cut short"]
    assert sum(result.unreadable.values()) == 1


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_nothing_but_files_that_can_not_be_opened_is_an_error(tmp_path, word_tokenizer):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"data set data: can't be read: .*a\.parquet: "):
        counted(folder, TextTokenCountingSpec(word_tokenizer))
