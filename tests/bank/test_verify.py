"""A bank is checked against itself: what its manifest says follows from the files beside it, or is found out."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zephon_core.bank import FeatureBank, build_bank
from zephon_core.bank.verify import Level, verify_bank
from zephon_core.errors import CorruptArtifactError, SpecError


def wrong(folder, level=Level.SIZES):
    return {check.name: check.seen for check in verify_bank(folder, level) if not check.ok}


def edit(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def unfinished(bank_parameters, tmp_path):
    """A bank of which some rows are encoded; and how many rows it has."""
    result = build_bank(*bank_parameters(limit_texts=5))
    assert 0 < result.encoded_rows < result.text_count
    return tmp_path / "bank", result


@pytest.mark.parametrize("level", [Level.SIZES, Level.CHECKSUMS])
def test_a_manifest_that_claims_more_than_was_encoded_is_found_out(unfinished, level):
    folder, result = unfinished
    assert set(wrong(folder, level)) == {"complete"}
    edit(folder, complete=True, encoded_rows=result.text_count)
    assert wrong(folder, level) == {
        "ledger": f"encoded_rows is {result.text_count} in the manifest and {result.encoded_rows} in the ledger; "
        "complete is True in the manifest and False in the ledger"
    }


def test_a_mask_that_claims_more_than_was_encoded_is_found_out(unfinished):
    folder, result = unfinished
    np.save(folder / "valid.npy", np.ones(result.text_count, np.bool_))
    assert f"{result.text_count - result.encoded_rows} rows are marked" in wrong(folder)["ledger"]


def test_a_manifest_that_claims_less_is_found_out_as_well(bank_parameters, tmp_path):
    build_bank(*bank_parameters())
    assert wrong(tmp_path / "bank") == {}
    edit(tmp_path / "bank", complete=False)
    assert "complete is False in the manifest and True in the ledger" in wrong(tmp_path / "bank")["ledger"]


def test_poison_counts_as_the_spec_says(bank_parameters, inputs, tmp_path):
    with (inputs / "train.jsonl").open("a") as file:
        file.write('{"query": "w1 w1100"}\n')
    build_bank(*bank_parameters(encode={"allow_poison": True}))
    folder = tmp_path / "bank"
    assert wrong(folder) == {}
    edit(folder, poison_rows=0)
    assert wrong(folder) == {"ledger": "poison_rows is 0 in the manifest and 1 in the ledger"}
    spec = json.loads((folder / "manifest.json").read_text())["spec"]
    spec["encode"]["allow_poison"] = False
    edit(folder, poison_rows=1, spec=spec)
    assert wrong(folder) == {"ledger": "complete is True in the manifest and False in the ledger"}


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"format": 1}', b'{"format": 9}', b'{"format": 1, "finished": true}'])
def test_a_ledger_that_is_none_is_a_finding(bank_parameters, tmp_path, content):
    build_bank(*bank_parameters())
    folder = tmp_path / "bank"
    (folder / "blocks.json").unlink()
    (folder / "blocks.json").write_bytes(content)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    files["blocks.json"]["bytes"] = len(content)
    edit(folder, files=files)
    assert set(wrong(folder)) == {"ledger"}


def test_an_extended_bank_is_checked_as_a_whole(bank_parameters, inputs, tmp_path):
    from small_inputs import router_rows, write_rows

    spec, run = bank_parameters()
    build_bank(spec, run)
    more = write_rows(inputs / "more.jsonl", router_rows(7, 6))
    scan = spec.scan.model_copy(update={"sources": (str(more),)})
    build_bank(spec.model_copy(update={"base": str(tmp_path / "bank"), "scan": scan}), run)
    assert wrong(tmp_path / "bank", Level.CHECKSUMS) == {}
    edit(tmp_path / "bank", encoded_rows=3)
    assert set(wrong(tmp_path / "bank")) == {"ledger"}


@pytest.mark.parametrize("sample", [0, -5])
def test_a_sample_of_no_rows_is_refused(unfinished, sample):
    with pytest.raises(SpecError, match=f"sample: is {sample}, expected .* at least 1"):
        verify_bank(unfinished[0], sample=sample)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("digests.npy", np.zeros((3, 20), np.uint8)),
        ("rows.npy", np.zeros(3, np.uint32)),
        ("rows.npy", None),
        ("features.f16.npy", np.zeros((3, 8), np.float16)),
    ],
)
def test_arrays_that_do_not_belong_to_the_manifest_are_refused(bank_parameters, tmp_path, name, array):
    build_bank(*bank_parameters())
    path = tmp_path / "bank" / name
    array = np.load(path).astype(np.float32) if array is None else array
    path.unlink()
    np.save(path, array)
    files = json.loads((tmp_path / "bank" / "manifest.json").read_text())["files"]
    files[name]["bytes"] = path.stat().st_size
    edit(tmp_path / "bank", files=files)
    with pytest.raises(CorruptArtifactError, match=rf"{name}: is an array of .*, expected .* as manifest\.json says"):
        FeatureBank.open(tmp_path / "bank")
