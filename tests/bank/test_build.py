import hashlib
import json
import os

import numpy as np
import pytest

from zephon_core.bank import FeatureBank, build_bank, steps
from zephon_core.errors import (
    ArtifactError,
    BadRowError,
    IncompleteBankError,
    InputError,
    PoisonError,
    SourceChangedError,
    SpecError,
)
from zephon_core.fingerprint import file_sha256
from zephon_core.store import ArtifactStore


def distinct_texts(*paths):
    texts = {}
    for path in paths:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            for kind, text in [("query", row["query"]), *(("candidate", c["text"]) for c in row["candidates"])]:
                texts.setdefault(text.strip(), kind)
    return texts


def snapshot(folder):
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino, file_sha256(path)) for path in folder.iterdir()}


@pytest.fixture
def built(bank_parameters):
    spec, run = bank_parameters()
    return build_bank(spec, run), spec, run


def test_a_bank_is_what_existing_trainers_read(built, inputs, tmp_path):
    """The files and manifest keys of format version 2, worked out anew from the sources."""
    result, spec, _ = built
    folder = tmp_path / "bank"
    texts = distinct_texts(inputs / "train.jsonl", inputs / "eval.jsonl")
    assert json.loads((folder / "index.json").read_text()) == {
        hashlib.sha1(t.encode()).hexdigest(): row for row, t in enumerate(texts)
    }
    assert [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()] == list(texts)
    matrix = np.load(folder / "features.f16.npy", mmap_mode="r")
    assert (matrix.dtype, matrix.shape) == (np.float16, (len(texts), 8))
    manifest = json.loads((folder / "manifest.json").read_text())
    kinds = list(texts.values())
    expected = {
        "format_version": 2,
        "train_sha256": hashlib.sha256((inputs / "train.jsonl").read_bytes()).hexdigest(),
        "eval_sha256": hashlib.sha256((inputs / "eval.jsonl").read_bytes()).hexdigest(),
        "model_path": spec.encode.model.path,
        "max_key_tokens": 256,
        "hidden_size": 8,
        "text_count": len(texts),
        "dtype": "float16_memmap",
        "bank": "features.f16.npy",
        "index": "index.json",
        "texts": "texts.jsonl",
        "kinds": {"query": kinds.count("query"), "candidate": kinds.count("candidate")},
        "complete": True,
        "encoded_rows": len(texts),
    }
    assert {key: manifest[key] for key in expected} == expected
    assert set(manifest["encoding"]) == {
        "tokenizer_threads", "max_batch", "token_budget", "grouping", "skip_lm_head", "backbone", "fill_rows"
    }  # fmt: skip
    assert result.to_json()["complete"] is True
    assert result.text_count == len(texts)


def test_features_are_those_of_the_encoder(built, tmp_path):
    import word_encoder

    bank = FeatureBank.open(tmp_path / "bank")
    encoder = word_encoder.WordEncoder()
    for row in range(0, len(bank), 17):
        ids = np.array([[int(word[1:]) for word in bank.text(row).split()]])
        vector = encoder.encode(ids)[0]
        np.testing.assert_allclose(bank.features[row], vector / np.linalg.norm(vector), atol=1e-3)


def test_a_second_build_does_nothing_and_changes_no_byte(built, tmp_path, bank_parameters, monkeypatch):
    log = tmp_path / "blocks.log"
    monkeypatch.setenv("WORD_ENCODER_LOG", str(log))
    before = snapshot(tmp_path / "bank")
    result = build_bank(*bank_parameters())
    assert result.cached == {"scan": True, "tokenize": True, "encode": True, "manifest": True}
    assert snapshot(tmp_path / "bank") == before
    assert not log.exists()


def test_other_weights_under_the_same_path_are_another_bank(built, tmp_path, bank_parameters, monkeypatch):
    first, *_ = built
    before = file_sha256(tmp_path / "bank" / "features.f16.npy")
    monkeypatch.setenv("WORD_ENCODER_SEED", "2")
    second = build_bank(*bank_parameters())
    assert second.cached == {"scan": True, "tokenize": True, "encode": False, "manifest": False}
    assert second.fingerprint != first.fingerprint
    assert file_sha256(tmp_path / "bank" / "features.f16.npy") != before


def test_another_width_under_the_same_path_is_another_bank(built, tmp_path, bank_parameters, monkeypatch):
    monkeypatch.setenv("WORD_ENCODER_WIDTH", "12")
    build_bank(*bank_parameters())
    assert FeatureBank.open(tmp_path / "bank").features.shape[1] == 12


def test_another_tokenizer_under_the_same_path_is_another_bank(built, inputs, bank_parameters):
    path = inputs / "tokenizer.json"
    definition = json.loads(path.read_text())
    vocabulary = definition["model"]["vocab"]
    vocabulary["w1"], vocabulary["w2"] = vocabulary["w2"], vocabulary["w1"]
    path.write_text(json.dumps(definition))
    result = build_bank(*bank_parameters())
    assert result.cached == {"scan": True, "tokenize": False, "encode": False, "manifest": False}


def test_reordered_rows_are_another_bank_whose_rows_are_right(built, inputs, tmp_path, bank_parameters):
    first, *_ = built
    old = {
        text: vector.copy()
        for text, vector in ((t, FeatureBank.open(tmp_path / "bank")[t]) for t in distinct_texts(inputs / "train.jsonl"))
    }
    path = inputs / "train.jsonl"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    second = build_bank(*bank_parameters())
    assert second.fingerprint != first.fingerprint
    bank = FeatureBank.open(tmp_path / "bank")
    for text, vector in old.items():
        np.testing.assert_allclose(bank[text], vector, atol=2e-3)


def test_a_cap_makes_an_incomplete_bank_that_a_later_build_finishes(bank_parameters, tmp_path):
    spec, run = bank_parameters(limit_texts=20)
    partial = build_bank(spec, run)
    assert not partial.complete
    assert 20 <= partial.encoded_rows < partial.text_count
    with pytest.raises(IncompleteBankError, match=f"holds {partial.encoded_rows} of {partial.text_count} rows"):
        FeatureBank.open(tmp_path / "bank")
    opened = FeatureBank.open(tmp_path / "bank", partial=True)
    assert int(opened.valid.sum()) == partial.encoded_rows
    assert opened.valid[:20].all()
    finished = build_bank(*bank_parameters())
    whole = build_bank(*bank_parameters(output="other", store=str(tmp_path / "other-store")))
    assert finished.complete
    assert finished.encoded_rows == whole.encoded_rows == finished.text_count
    assert file_sha256(tmp_path / "bank" / "features.f16.npy") == file_sha256(tmp_path / "other" / "features.f16.npy")


def test_row_ranges_add_up_and_the_last_one_completes_the_bank(bank_parameters, tmp_path):
    total = build_bank(*bank_parameters(output="", rows="0:1")).text_count
    middle = total // 2
    assert not build_bank(*bank_parameters(rows=f"{middle}:{total}")).complete
    assert json.loads((tmp_path / "bank" / "manifest.json").read_text())["complete"] is False
    assert build_bank(*bank_parameters(rows=f"0:{middle}")).complete
    assert json.loads((tmp_path / "bank" / "manifest.json").read_text())["complete"] is True


def test_a_row_range_on_a_complete_bank_leaves_it_complete(built, bank_parameters, tmp_path):
    before = snapshot(tmp_path / "bank")
    result = build_bank(*bank_parameters(rows="0:3"))
    assert result.complete
    assert snapshot(tmp_path / "bank") == before


def test_a_complete_bank_is_not_replaced_by_an_unfinished_one_of_itself(built, bank_parameters, tmp_path):
    before = snapshot(tmp_path / "bank")
    with pytest.raises(ArtifactError, match="is complete, and this run has only"):
        build_bank(*bank_parameters(limit_texts=3, store=str(tmp_path / "new-store")))
    assert snapshot(tmp_path / "bank") == before


def test_parts_in_any_order_make_the_same_matrix(built, bank_parameters, tmp_path):
    wanted = file_sha256(tmp_path / "bank" / "features.f16.npy")
    results = [
        build_bank(*bank_parameters(output="parted", store=str(tmp_path / "parts"), parts=3, part=part)) for part in (2, 0, 0, 1)
    ]
    assert [result.complete for result in results] == [False, False, False, True]
    assert file_sha256(tmp_path / "parted" / "features.f16.npy") == wanted


def test_a_source_edited_while_it_is_scanned_is_refused(bank_parameters, inputs):
    spec, run = bank_parameters()
    store = ArtifactStore(run.store)
    identity = steps.identify(spec, store=store)
    with (inputs / "train.jsonl").open("a") as file:
        file.write('{"query": "late"}\n')
    with pytest.raises(SourceChangedError, match=r"train\.jsonl: .*Run again once nothing writes to it"):
        steps.scan(spec, identity, run, store=store)
    assert store.find("scan", steps.bank_recipes(spec, identity).scan.fingerprint) is None


def test_a_source_edited_after_the_scan_does_not_change_what_the_manifest_says(bank_parameters, inputs, tmp_path):
    spec, run = bank_parameters()
    store = ArtifactStore(run.store)
    before = hashlib.sha256((inputs / "train.jsonl").read_bytes()).hexdigest()
    identity = steps.identify(spec, store=store)
    steps.scan(spec, identity, run, store=store)
    (inputs / "train.jsonl").write_text('{"query": "other"}\n')
    steps.tokenize(spec, identity, run, store=store)
    steps.encode(spec, identity, run, store=store)
    steps.assemble(spec, identity, run, store=store)
    manifest = json.loads((tmp_path / "bank" / "manifest.json").read_text())
    assert manifest["train_sha256"] == before
    assert "other" not in FeatureBank.open(tmp_path / "bank")


def test_sources_without_a_text_are_an_error(bank_parameters, inputs, tmp_path):
    (inputs / "empty.jsonl").write_text('{"query": "  "}\n\n{"candidates": []}\n')
    with pytest.raises(InputError, match="no text at 'query'"):
        build_bank(*bank_parameters(sources=[str(inputs / "empty.jsonl")]))
    assert not (tmp_path / "bank").exists()


def test_a_field_path_that_finds_nothing_is_a_warning(bank_parameters, inputs, tmp_path, caplog):
    """A misspelt path beside a good one would go unnoticed otherwise. Of an extension, the rows of the base count, too."""
    build_bank(*bank_parameters())
    (inputs / "new.jsonl").write_text('{"query": "w1 w2 w3 w4 w5"}\n')
    spec, run = bank_parameters(sources=[str(inputs / "new.jsonl")])
    assert build_bank(spec.model_copy(update={"base": str(tmp_path / "bank")}), run).empty_fields == []
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    fields = ["query", "candidate[].text"]
    assert build_bank(*bank_parameters(scan={"fields": fields}, output="other")).empty_fields == ["candidate[].text"]
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == "No row of any source holds a text at candidate[].text: check the path"


def test_a_bad_row_stops_with_its_place_and_quarantine_sets_it_aside(bank_parameters, inputs, tmp_path):
    path = inputs / "train.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    offset = sum(map(len, lines[:7]))
    path.write_bytes(b"".join([*lines[:7], b'{"query": 5}\n', *lines[7:]]))
    with pytest.raises(BadRowError, match=rf"train\.jsonl:8 \(byte {offset:,}\): 'query' is a number, expected text\."):
        build_bank(*bank_parameters())
    result = build_bank(*bank_parameters(scan={"on_bad_row": "quarantine"}))
    assert result.complete
    [bad] = [json.loads(line) for line in (tmp_path / "bank" / "bad_rows.jsonl").read_text().splitlines()]
    assert (bad["source"], bad["row"], bad["byte_offset"], bad["raw"]) == (0, 8, offset, '{"query": 5}')
    manifest = json.loads((tmp_path / "bank" / "manifest.json").read_text())
    assert [source["bad_rows"] for source in manifest["sources"]] == [1, 0]
    assert "Quarantined rows" in (tmp_path / "bank" / "report.html").read_text()


def test_poison_is_an_error_unless_allowed_and_then_masked(bank_parameters, inputs, tmp_path):
    with (inputs / "train.jsonl").open("a") as file:
        file.write('{"query": "w1 w1100"}\n')
    with pytest.raises(PoisonError, match="1 of"):
        build_bank(*bank_parameters())
    assert not (tmp_path / "bank").exists()
    result = build_bank(*bank_parameters(encode={"allow_poison": True}))
    assert result.complete
    assert result.cached["encode"]
    bank = FeatureBank.open(tmp_path / "bank")
    row = bank.row("w1 w1100")
    assert np.flatnonzero(~bank.valid).tolist() == [row]
    assert bank.manifest["poison_rows"] == 1


def test_texts_that_begin_alike_share_their_features_and_are_counted(bank_parameters, inputs, tmp_path):
    start = " ".join(f"w{number}" for number in range(1, 9))
    rows = [json.dumps({"query": f"{start} w{number}"}) for number in range(100, 105)]
    (inputs / "alike.jsonl").write_text("\n".join(rows))
    build_bank(*bank_parameters(sources=[str(inputs / "alike.jsonl")], tokenize={"max_key_tokens": 8}))
    bank = FeatureBank.open(tmp_path / "bank")
    assert len(bank) == 5
    assert (bank.features == bank.features[0]).all()
    assert bank.manifest["statistics"]["tokens"]["same_ids"] == {"texts": 5, "groups": 1}
    assert bank.manifest["statistics"]["tokens"]["truncated"] == 5


def test_a_folder_that_is_no_bank_is_not_touched(bank_parameters, tmp_path):
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "thesis.txt").write_text("years of work")
    with pytest.raises(SpecError, match="holds files that are no bank"):
        build_bank(*bank_parameters())
    assert (tmp_path / "bank" / "thesis.txt").read_text() == "years of work"


def test_a_damaged_output_is_published_again(built, bank_parameters, tmp_path):
    (tmp_path / "bank" / "lengths.npy").unlink()
    assert build_bank(*bank_parameters()).cached["manifest"]
    FeatureBank.open(tmp_path / "bank")


def test_a_moved_model_path_shows_in_the_manifest_without_encoding_again(built, bank_parameters, tmp_path):
    result = build_bank(*bank_parameters(name="other-name"))
    assert result.cached["encode"]
    assert json.loads((tmp_path / "bank" / "manifest.json").read_text())["name"] == "other-name"


def test_without_an_index_the_reader_finds_rows_all_the_same(bank_parameters, tmp_path):
    spec, run = bank_parameters()
    build_bank(spec.model_copy(update={"write_index": False}), run)
    assert not (tmp_path / "bank" / "index.json").exists()
    bank = FeatureBank.open(tmp_path / "bank")
    assert bank.manifest["index"] is None
    assert bank.rows([bank.text(3), "absent", bank.text(0)]).tolist() == [3, -1, 0]


def test_a_store_wiped_in_between_is_no_harm_to_a_published_bank(built, tmp_path):
    import shutil

    shutil.rmtree(tmp_path / "store")
    bank = FeatureBank.open(tmp_path / "bank")
    assert np.isfinite(np.asarray(bank.features)).all()


def test_refresh_computes_again_and_finds_the_same_bytes(built, bank_parameters, tmp_path, monkeypatch):
    log = tmp_path / "blocks.log"
    monkeypatch.setenv("WORD_ENCODER_LOG", str(log))
    wanted = file_sha256(tmp_path / "bank" / "features.f16.npy")
    result = build_bank(*bank_parameters(refresh=True))
    assert not any(result.cached.values())
    assert log.exists()
    assert file_sha256(tmp_path / "bank" / "features.f16.npy") == wanted


def test_what_is_published_can_be_moved(built, tmp_path):
    (tmp_path / "bank").rename(tmp_path / "elsewhere")
    assert len(FeatureBank.open(tmp_path / "elsewhere")) == built[0].text_count


def test_the_reader_of_a_url_copies_the_bank_once(built, tmp_path, monkeypatch):
    monkeypatch.setenv("ZEPHON_STORE", str(tmp_path / "cache"))
    bank = FeatureBank.open(f"file://{tmp_path / 'bank'}")
    again = FeatureBank.open(f"file://{tmp_path / 'bank'}")
    assert bank.path == again.path
    assert os.path.commonpath([bank.path, tmp_path / "cache"]) == str(tmp_path / "cache")
    assert bank.rows([bank.text(5)]).tolist() == [5]


def test_parts_that_finish_at_once_all_end_well(built, bank_parameters, tmp_path):
    """Whoever comes last commits, and with that moves the folder away from under the others."""
    from concurrent.futures import ThreadPoolExecutor

    wanted = file_sha256(tmp_path / "bank" / "features.f16.npy")
    whole = np.load(tmp_path / "bank" / "features.f16.npy")
    for attempt in range(5):
        store = str(tmp_path / f"store-{attempt}")
        build_bank(*bank_parameters(output="", store=store, rows="0:1"))
        with ThreadPoolExecutor(3) as pool:
            parts = [
                bank_parameters(output=f"bank-{attempt}-{part}", store=store, workers=1, parts=3, part=part) for part in range(3)
            ]
            list(pool.map(lambda parameters: build_bank(*parameters), parts))
        for part in range(3):
            copy = FeatureBank.open(tmp_path / f"bank-{attempt}-{part}", partial=True)
            assert copy.valid.sum() == copy.manifest["encoded_rows"] > 0
            assert np.array_equal(copy.features[copy.valid], whole[copy.valid])
        result = build_bank(*bank_parameters(output=f"bank-{attempt}", store=store))
        assert result.cached["encode"]
        assert file_sha256(tmp_path / f"bank-{attempt}" / "features.f16.npy") == wanted


def test_all_rows_without_the_last_touch_are_no_finished_encode(built, bank_parameters, tmp_path, monkeypatch):
    """Between the last block and the tables another part looks: it must not take the ledgers away, nor call the bank complete."""
    from zephon_core.blocks import BlockWork

    wanted = file_sha256(tmp_path / "bank" / "features.f16.npy")
    settings = {"store": str(tmp_path / "parts"), "output": "parted"}
    with monkeypatch.context() as patch:
        patch.setattr(BlockWork, "_finish", lambda self, runner: True)
        found = [build_bank(*bank_parameters(parts=2, part=part, **settings)) for part in (0, 1, 0)]
        assert [result.complete for result in found] == [False] * 3
        assert found[-1].encoded_rows == found[-1].text_count
    finished = build_bank(*bank_parameters(**settings))
    assert finished.complete
    assert file_sha256(tmp_path / "parted" / "features.f16.npy") == wanted
    assert (tmp_path / "parted" / "blocks.npy").is_file()


def test_a_late_part_does_not_replace_the_finished_bank(bank_parameters, tmp_path, monkeypatch):
    """Another process finishes and publishes while this one copies the unfinished state."""
    from zephon_core.bank import publish

    fill = publish.fill_bank_directory
    waiting = [True]

    def fill_slowly(parts, directory):
        files = fill(parts, directory)
        if waiting and not parts.complete:
            waiting.clear()
            assert build_bank(*bank_parameters()).complete
        return files

    monkeypatch.setattr(publish, "fill_bank_directory", fill_slowly)
    build_bank(*bank_parameters(parts=2, part=0))
    assert not waiting
    assert FeatureBank.open(tmp_path / "bank").manifest["complete"]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("file", "is no folder, expected a new folder, an empty one, or one that holds a bank"),
        ("file/bank", "is no folder"),
        ("full", "holds files that are no bank"),
        ("s3://bucket/bank", "is a URL, expected a folder"),
    ],
)
def test_an_output_that_can_t_be_is_refused_before_any_work(bank_parameters, tmp_path, monkeypatch, output, message):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    monkeypatch.setattr(steps, "identify", lambda *rest, **settings: pytest.fail("work was begun"))
    spec, run = bank_parameters()
    place = output if "://" in output else str(tmp_path / output)
    with pytest.raises(SpecError, match=message):
        build_bank(spec, run.model_copy(update={"output": place}))
