"""What `xtoken show` draws: which samples and datums, and what it says of those that aren't there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from small_pair import BARE, CHATML, LINES, datum_rows, logprob_rows_of, write_rows, write_side

from zephon_core.errors import BadRowError, InputError, MissingArtifactError, SpecError
from zephon_core.store import ArtifactStore
from zephon_core.xtoken.look import FIRST_ROWS, draw_attached, draw_samples
from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec, PairSpec
from zephon_core.xtoken.steps import build_chunk_advantages

pytest.importorskip("transformers")
COUNT = 12
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "the quick fox"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("look")
    student, teacher = write_side(folder / "student", 400, CHATML), write_side(folder / "teacher", 330, BARE, *LINES[1:])
    rows = datum_rows(student, teacher, COUNT, messages=False)
    write_rows(folder / "datums.parquet", rows, row_group=5)
    logprobs = logprob_rows_of([len(row["teacher_tokens"]) for row in rows])
    logprobs[2] = logprobs[2][:-1]
    write_rows(folder / "logprobs.parquet", [{"teacher_logprobs": row} for row in logprobs])
    samples = [{"text": f"the lazy dog {number}"} for number in range(4)] + [{"messages": CHAT}]
    (folder / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return folder


@pytest.fixture
def pair(folder: Path) -> PairSpec:
    return PairSpec(student=str(folder / "student"), teacher=str(folder / "teacher"))


def spec_of(folder: Path, **changes: object) -> ChunkAdvantagesSpec:
    given = {name: str(folder / name) for name in ("student", "teacher")}
    files = {"datums": str(folder / "datums.parquet"), "teacher_logprobs": str(folder / "logprobs.parquet")}
    return ChunkAdvantagesSpec.model_validate({**given, **files, **changes})


def test_texts_and_rows_of_a_source_are_drawn_by_their_place(folder, pair):
    source = str(folder / "samples.jsonl")
    page, titles = draw_samples(pair, ["one text", "another"], source, [4, 1, 4])
    assert titles == ["text 1", "text 2", f"{source}:2", f"{source}:5"]
    assert all(title in page for title in titles) and page.startswith("<!doctype html>")
    assert draw_samples(pair, [], source, [])[1] == [f"{source}:{row + 1}" for row in FIRST_ROWS]


def test_samples_that_are_not_there_or_can_not_be(folder, pair, tmp_path):
    source = str(folder / "samples.jsonl")
    with pytest.raises(InputError, match=r"samples\.jsonl: has no row 5, expected a row that is there, counted from 0"):
        draw_samples(pair, [], source, [0, 5])
    with pytest.raises(SpecError, match="--text: is missing, and so are --texts and --datums"):
        draw_samples(pair, [], "", [])
    with pytest.raises(SpecError, match="--text: is no valid UTF-8 at character 2"):
        draw_samples(pair, ["a\ud800"], "", [])
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    with pytest.raises(BadRowError, match=r"bad\.jsonl:2 \(byte 14\): .*'text' is a number"):
        draw_samples(pair, [], str(tmp_path / "bad.jsonl"), [])
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match=r"empty\.jsonl"):
        draw_samples(pair, [], str(tmp_path / "empty.jsonl"), [])
    with pytest.raises(SpecError, match="teacher_template: is no Jinja template"):
        draw_samples(pair.model_copy(update={"teacher_template": "{% for %}"}), ["a"], "", [])


def test_datums_are_drawn_with_what_they_got_or_why_they_were_dropped(folder, tmp_path):
    spec, store = spec_of(folder), ArtifactStore(str(tmp_path / "store"))
    with pytest.raises(
        MissingArtifactError, match=r"holds no advantages of these datums with these settings\. Run `zephon-flows xt"
    ):
        draw_attached(spec, [], store=store)
    build_chunk_advantages(spec, ChunkAdvantagesRun(store=str(tmp_path / "store")))
    names = pq.read_table(folder / "datums.parquet").column("trial_name").to_pylist()
    for rows in ([], [11, 2, 6]):
        page, titles = draw_attached(spec, rows, store=store)
        wanted = sorted(rows) or list(FIRST_ROWS)
        assert len(titles) == len(wanted) and all(names[row] in title for row, title in zip(wanted, titles, strict=True))
        assert page.count("Dropped: the teacher&#x27;s row is as long as another sequence") == 1  # row 2
    with pytest.raises(InputError, match=r"datums\.parquet: has no row 12, expected a row that is there, counted from 0"):
        draw_attached(spec, [0, 12], store=store)
    with pytest.raises(MissingArtifactError, match="holds no advantages of these datums with these settings"):
        draw_attached(spec_of(folder, clip=0.5), [], store=store)
