"""A manifest says what the sources are, and one that is broken is refused in words, by key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from zephon_core.bank import FeatureBank, build_bank
from zephon_core.bank.manifest import read_manifest
from zephon_core.bank.verify import verify_bank
from zephon_core.errors import CorruptArtifactError


@pytest.fixture
def folder(bank_parameters, tmp_path):
    build_bank(*bank_parameters())
    return tmp_path / "bank"


# Below these there are not keys but names: of kinds, field paths, reasons, packages, files, devices, bins, settings.
_NAMES = {
    "kinds", "spec", "versions", "files", "statistics.scan.kinds", "statistics.scan.fields", "statistics.scan.bad_rows",
    "statistics.scan.length_histogram", "statistics.scan.seconds", "statistics.scan.sources.bad_rows_by_reason",
    "statistics.tokens.last_run.seconds", "statistics.encode.poison",
}  # fmt: skip


def keys_of(value, path=""):
    """Return the keys of a manifest at every depth, without those that are names."""
    if isinstance(value, list):
        return set().union(*(keys_of(item, path) for item in value))
    if not isinstance(value, dict) or path.removeprefix("statistics.encode.base.") in _NAMES:
        return set()
    return set(value).union(*(keys_of(inner, f"{path}.{key}".removeprefix(".")) for key, inner in value.items()))


def test_every_key_of_a_manifest_stands_in_the_page_on_file_formats(bank_parameters, inputs, tmp_path):
    """Of a bank with a quarantined row and of one that was extended, too."""
    with (inputs / "train.jsonl").open("a") as file:
        file.write('{"query": 5}\n')
    spec, run = bank_parameters(scan={"on_bad_row": "quarantine"})
    build_bank(spec, run)
    keys = keys_of(read_manifest(tmp_path / "bank"))
    (inputs / "new.jsonl").write_text('{"query": "w1 w2 w3 w4 w5"}\n')
    more = bank_parameters(sources=[str(inputs / "new.jsonl")], scan={"on_bad_row": "quarantine"})[0]
    build_bank(more.model_copy(update={"base": str(tmp_path / "bank")}), run)
    keys |= keys_of(read_manifest(tmp_path / "bank"))
    assert {"poison_rows", "rows_as_stored", "last_run", "base", "bad_rows_by_reason", "fill_rows"} <= keys
    page = (Path(__file__).parents[2] / "docs" / "file-formats.md").read_text()
    section = page[page.index("### manifest.json") : page.index("## An artifact")]
    assert keys - set(re.findall(r"`([^`\n]+)`", section)) == set()


def seconds_and_report(folder):
    return read_manifest(folder), (folder / "report.html").read_text()


def test_of_a_bank_made_in_one_go_all_times_are_known(folder):
    manifest, report = seconds_and_report(folder)
    assert None not in manifest["seconds"].values()
    for step, count in (("tokens", "texts"), ("encode", "rows")):
        assert manifest["statistics"][step]["last_run"][count] == manifest["text_count"]
    assert manifest["seconds"]["encode"] == manifest["statistics"]["encode"]["last_run"]["seconds"] > 0
    assert "from the first row to the last feature" in report
    assert "last run" not in report


def test_of_an_encode_in_several_runs_no_time_of_one_is_told_as_that_of_all(bank_parameters, tmp_path):
    before = build_bank(*bank_parameters(limit_texts=20)).encoded_rows
    build_bank(*bank_parameters())
    manifest, report = seconds_and_report(tmp_path / "bank")
    last_run = manifest["statistics"]["encode"]["last_run"]
    assert manifest["complete"]
    assert manifest["seconds"]["encode"] is None
    assert manifest["seconds"]["tokens"] > 0
    assert last_run["rows"] == manifest["text_count"] - before
    assert last_run["tokens"] < manifest["statistics"]["tokens"]["tokens"]
    assert last_run["seconds"] > 0
    assert not {"rows_now", "seconds", "tokens_per_second", "throughput"} & set(manifest["statistics"]["encode"])
    assert f"the last run, which encoded {last_run['rows']:,} of {manifest['text_count']:,} rows" in report
    assert "several runs, or isn&#x27;t done yet: encode." in report
    assert "from the first row to the last feature" not in report


def test_an_unfinished_bank_says_no_times_of_runs_that_it_does_not_know(bank_parameters, tmp_path):
    build_bank(*bank_parameters(limit_texts=20))
    manifest, report = seconds_and_report(tmp_path / "bank")
    assert manifest["seconds"]["encode"] is None
    assert "last_run" not in manifest["statistics"]["encode"]
    assert "several runs, or isn&#x27;t done yet: encode." in report


def change(folder, key, value):
    """Set a value at a dotted path of the manifest, or take it out."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    *parents, last = key.split("/")
    place = manifest
    for parent in parents:
        place = place[int(parent) if isinstance(place, list) else parent]
    if value is None:
        del place[last]
    else:
        place[last] = value
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("text_count", "x", "'text_count' is 'x', expected a whole number"),
        ("text_count", 2.5, "'text_count' is 2.5, expected a whole number"),
        ("text_count", True, "'text_count' is True, expected a whole number"),
        ("text_count", -1, "'text_count' is -1, expected a number from 0 on"),
        ("complete", "yes", "'complete' is 'yes', expected true or false"),
        ("bank", 3, "'bank' is 3, expected a text"),
        ("bank", "other.npy", "'bank' is 'other.npy', expected one of its files"),
        ("files", [], r"'files' is \[\], expected an object"),
        ("files/lengths.npy", [], r"'files.lengths.npy' is \[\], expected an object"),
        ("files/lengths.npy/bytes", "9", "'files.lengths.npy.bytes' is '9', expected a whole number"),
        ("files/lengths.npy/sha256", None, "lacks 'files.lengths.npy.sha256'"),
        ("files/..%2Fa", {"bytes": 1, "sha256": ""}, None),
        ("sources", {}, "'sources' is {}, expected a list"),
        ("sources/0/url", None, r"lacks 'sources\.0\.url'"),
        ("statistics/scan", [], r"'statistics.scan' is \[\], expected an object"),
        ("spec", "x", "'spec' is 'x', expected an object"),
        ("fingerprints/bank", None, "lacks 'fingerprints.bank'"),
        ("tokenizer", None, "lacks 'tokenizer'"),
        *(
            (key, None, f"lacks '{key}'")
            for key in ("hidden_size", "encoded_rows", "poison_rows", "kinds", "precision", "model_path")
        ),
    ],
)
def test_a_broken_manifest_is_named_by_key_from_every_side(folder, key, value, complaint):
    change(folder, key.replace("%2F", "\0"), value)
    if complaint is None:
        text = (folder / "manifest.json").read_text().replace("\\u0000", "/")
        (folder / "manifest.json").write_text(text)
        complaint = "expected names of files in the folder"
    for look in (read_manifest, FeatureBank.open):
        with pytest.raises(CorruptArtifactError, match=rf"manifest\.json: .*{complaint}"):
            look(folder)
    [check] = verify_bank(folder)
    assert not check.ok
    assert "manifest.json" in check.seen


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff"])
def test_a_manifest_that_is_no_json_object_is_refused(folder, content):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(CorruptArtifactError, match=r"manifest\.json: is no JSON"):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["train", "eval"], (0, 1)),
        (["eval", "train"], (1, 0)),
        (["more", "eval", "train"], (2, 1)),
        (["", ""], (0, 1)),
        (["eval", "foo"], None),
        (["foo", "train"], None),
        (["train", "train"], None),
        (["train", ""], None),
        (["a", "b"], None),
        (["", "", ""], None),
        ([""], None),
    ],
)
def test_train_and_eval_go_by_name_and_by_place_only_without_names(bank_parameters, inputs, tmp_path, names, named):
    from small_inputs import router_rows, write_rows

    paths = [write_rows(inputs / f"part-{number}.jsonl", router_rows(20 + number, 3)) for number in range(len(names))]
    build_bank(*bank_parameters(sources=[f"{name}={path}" if name else str(path) for name, path in zip(names, paths, strict=True)]))
    manifest = read_manifest(tmp_path / "bank")
    found = [manifest.get(key) for key in ("train_sha256", "eval_sha256")]
    assert found == ([manifest["sources"][place]["sha256"] for place in named] if named else [None, None])
