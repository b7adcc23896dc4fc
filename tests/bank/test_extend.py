import json
from collections import Counter

import numpy as np
import pytest

from zephon_core.bank import FeatureBank, build_bank
from zephon_core.bank.verify import Level, verify_bank
from zephon_core.errors import IncompleteBankError, MismatchError


@pytest.fixture
def extend(bank_parameters, inputs, tmp_path):
    """A function that extends the bank in `bank` by files of the inputs' folder."""

    def run(*names, **settings):
        spec, options = bank_parameters(sources=[str(inputs / name) for name in names], **settings)
        return build_bank(spec.model_copy(update={"base": str(tmp_path / "bank")}), options)

    return run


@pytest.fixture
def new_rows(inputs):
    """Rows of which some texts are in the bank already, some are new, and some come twice."""
    from small_inputs import router_rows, write_rows

    write_rows(inputs / "new.jsonl", router_rows(1, 10) + router_rows(3, 25) + router_rows(3, 5))
    write_rows(inputs / "newer.jsonl", router_rows(4, 7) + router_rows(3, 3))


def texts_of(folder):
    return [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]


def test_old_rows_stay_and_only_new_texts_are_encoded(bank_parameters, extend, new_rows, inputs, tmp_path, monkeypatch):
    build_bank(*bank_parameters())
    old = texts_of(tmp_path / "bank")
    old_features = np.load(tmp_path / "bank" / "features.f16.npy")
    log = tmp_path / "blocks.log"
    monkeypatch.setenv("WORD_ENCODER_LOG", str(log))
    result = extend("new.jsonl")
    build_bank(*bank_parameters(sources=[str(inputs / n) for n in ("train.jsonl", "eval.jsonl", "new.jsonl")], output="whole"))
    bank, whole = FeatureBank.open(tmp_path / "bank"), FeatureBank.open(tmp_path / "whole")
    assert texts_of(tmp_path / "bank") == texts_of(tmp_path / "whole")
    assert texts_of(tmp_path / "bank")[: len(old)] == old
    assert (bank.features[: len(old)] == old_features).all()
    assert result.text_count == len(whole) > len(old)
    np.testing.assert_allclose(bank.features.astype(np.float32), whole.features.astype(np.float32), atol=1e-3)
    for name in (
        "digests.npy",
        "rows.npy",
        "kinds.npy",
        "text_offsets.npy",
        "lengths.npy",
        "token_ids.npy",
        "token_offsets.npy",
        "index.json",
    ):
        assert (tmp_path / "bank" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert all(check.ok for check in verify_bank(tmp_path / "bank", Level.CHECKSUMS))


def test_the_manifest_of_an_extended_bank_counts_everything(bank_parameters, extend, new_rows, inputs, tmp_path):
    build_bank(*bank_parameters())
    extend("new.jsonl")
    build_bank(*bank_parameters(sources=[str(inputs / n) for n in ("train.jsonl", "eval.jsonl", "new.jsonl")], output="whole"))
    found, wanted = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("bank", "whole"))
    for key in ("text_count", "encoded_rows", "complete", "kinds", "hidden_size"):
        assert found[key] == wanted[key], key
    for key in ("rows", "texts", "distinct", "duplicates", "distinct_bytes", "text_bytes", "length_histogram", "kinds"):
        assert found["statistics"]["scan"][key] == wanted["statistics"]["scan"][key], key
    for key in ("texts", "tokens", "truncated", "empty", "length_histogram"):
        assert found["statistics"]["tokens"][key] == wanted["statistics"]["tokens"][key], key
    assert [source["sha256"] for source in found["sources"]] == [source["sha256"] for source in wanted["sources"]]
    assert [source["name"] for source in found["sources"]] == ["train", "eval", ""]


def test_a_bank_is_extended_again_and_again(bank_parameters, extend, new_rows, inputs, tmp_path):
    build_bank(*bank_parameters())
    extend("new.jsonl")
    extend("newer.jsonl")
    names = ("train.jsonl", "eval.jsonl", "new.jsonl", "newer.jsonl")
    build_bank(*bank_parameters(sources=[str(inputs / name) for name in names], output="whole"))
    assert texts_of(tmp_path / "bank") == texts_of(tmp_path / "whole")
    assert (tmp_path / "bank" / "digests.npy").read_bytes() == (tmp_path / "whole" / "digests.npy").read_bytes()
    assert all(check.ok for check in verify_bank(tmp_path / "bank", Level.CHECKSUMS))


def test_sources_that_are_in_the_bank_cost_nothing(bank_parameters, extend, new_rows, tmp_path):
    build_bank(*bank_parameters())
    first = extend("new.jsonl")
    before = (tmp_path / "bank" / "manifest.json").stat().st_mtime_ns
    again = extend("train.jsonl", "new.jsonl")
    assert again.fingerprint == first.fingerprint
    assert all(again.cached.values())
    assert (tmp_path / "bank" / "manifest.json").stat().st_mtime_ns == before


def test_a_source_without_a_new_text_is_noted_and_nothing_is_encoded(bank_parameters, extend, inputs, tmp_path, monkeypatch):
    from small_inputs import router_rows, write_rows

    build_bank(*bank_parameters())
    count = len(FeatureBank.open(tmp_path / "bank"))
    write_rows(inputs / "old.jsonl", router_rows(1, 4))
    log = tmp_path / "blocks.log"
    monkeypatch.setenv("WORD_ENCODER_LOG", str(log))
    assert extend("old.jsonl").text_count == count
    assert not log.exists()
    manifest = json.loads((tmp_path / "bank" / "manifest.json").read_text())
    assert len(manifest["sources"]) == 3
    assert manifest["complete"]
    assert all(check.ok for check in verify_bank(tmp_path / "bank", Level.CHECKSUMS))


def test_other_settings_or_weights_are_refused_by_name(bank_parameters, extend, new_rows, monkeypatch):
    build_bank(*bank_parameters())
    with pytest.raises(MismatchError, match="max_key_tokens 256, and now it is 5"):
        extend("new.jsonl", tokenize={"max_key_tokens": 5})
    monkeypatch.setenv("WORD_ENCODER_SEED", "2")
    with pytest.raises(MismatchError, match="was made with model"):
        extend("new.jsonl")


def test_an_unfinished_bank_is_not_extended(bank_parameters, extend, new_rows):
    build_bank(*bank_parameters(limit_texts=5))
    with pytest.raises(IncompleteBankError):
        extend("new.jsonl")


def test_without_a_bank_one_is_begun(extend, new_rows, tmp_path):
    assert extend("new.jsonl").complete
    assert len(FeatureBank.open(tmp_path / "bank")) > 0


def test_an_extension_that_was_cut_short_goes_on(bank_parameters, extend, new_rows, tmp_path, monkeypatch):
    build_bank(*bank_parameters())
    before = (tmp_path / "bank" / "manifest.json").read_bytes()
    log = tmp_path / "blocks.log"
    monkeypatch.setenv("WORD_ENCODER_LOG", str(log))
    assert not extend("new.jsonl", rows="0:40").complete
    assert (tmp_path / "bank" / "manifest.json").read_bytes() == before
    assert extend("new.jsonl").complete
    counts = Counter(log.read_text().split())
    probes = 2 * 64
    assert sum(count - 1 for count in counts.values()) <= probes


def test_quarantined_rows_of_both_are_kept(bank_parameters, extend, inputs, new_rows, tmp_path):
    for name in ("train.jsonl", "new.jsonl"):
        with (inputs / name).open("a") as file:
            file.write('{"query": 1}\n')
    build_bank(*bank_parameters(scan={"on_bad_row": "quarantine"}))
    extend("new.jsonl", scan={"on_bad_row": "quarantine"})
    rows = [json.loads(line) for line in (tmp_path / "bank" / "bad_rows.jsonl").read_text().splitlines()]
    assert [row["source"] for row in rows] == [0, 2]
