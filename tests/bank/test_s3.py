"""Banks from object storage, and finished work kept there: a server on loopback that speaks S3."""

from __future__ import annotations

import json

import pytest
import s3fs

from zephon_core.bank import FeatureBank, build_bank
from zephon_core.errors import CorruptArtifactError, InputError, SourceChangedError
from zephon_core.fingerprint import file_sha256
from zephon_core.readers.sources import check_unchanged, resolve_sources
from zephon_core.store import ArtifactStore
from zephon_core.upkeep import pull, push, resolve


def contents(folder):
    return {path.name: file_sha256(path) for path in folder.iterdir() if path.name not in ("manifest.json", "report.html")}


def test_a_bank_of_objects_is_that_of_the_files(bank_parameters, inputs, s3, tmp_path):
    build_bank(*bank_parameters(output="near"))
    s3.put_folder(inputs)
    sources = [f"train={s3.url}/inputs/train.jsonl", f"eval={s3.url}/inputs/ev*.jsonl"]
    spec, run = bank_parameters(sources=sources, output="far")
    build_bank(spec, run.model_copy(update={"store": str(tmp_path / "another")}))
    assert contents(tmp_path / "far") == contents(tmp_path / "near")
    secrets = (b"secret/of+the-tests", b"AKIATESTTESTTESTTEST")
    written = [path.read_bytes() for name in ("far", "another") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert len(written) > 10 and not any(secret in content for content in written for secret in secrets)
    assert s3.url in json.dumps(json.loads((tmp_path / "far" / "manifest.json").read_text()))


def test_a_bank_is_opened_from_a_bucket(bank_parameters, s3, tmp_path, monkeypatch):
    monkeypatch.setenv("ZEPHON_STORE", str(tmp_path / "default-store"))
    build_bank(*bank_parameters())
    url = s3.put_folder(tmp_path / "bank").rstrip("/")
    near, far = FeatureBank.open(tmp_path / "bank"), FeatureBank.open(url)
    assert len(near) == len(far) and near.text(3) == far.text(3) and far.row(far.text(3)) == 3
    s3.asked()
    FeatureBank.open(url)
    assert not any("features" in request and request.startswith("GET") for request in s3.asked())


def test_an_object_that_changed_or_went_is_said(s3):
    url = s3.put("a.jsonl", b'{"query": "a"}\n')
    (source,) = resolve_sources([url])
    check_unchanged(source)
    s3.put("a.jsonl", b'{"query": "b"}\n')
    with pytest.raises(SourceChangedError, match=r"a\.jsonl: was changed"):
        check_unchanged(source)
    s3.delete("a.jsonl")
    with pytest.raises(InputError, match=r"a\.jsonl"):
        check_unchanged(source)
    with pytest.raises(InputError, match="matches no file"):
        resolve_sources([f"{s3.url}/*.parquet"])


def test_without_credentials_it_is_one_line(s3, monkeypatch, tmp_path):
    url = s3.put("a.jsonl", b"{}\n")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    s3fs.S3FileSystem.clear_instance_cache()
    for place in (url, f"{s3.url}/*.jsonl"):
        with pytest.raises(InputError, match=r"^s3://.*\(.*credentials.*\)") as caught:
            resolve_sources([place])
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"^s3://.*can't be read \(.*credentials"):
        pull(ArtifactStore(tmp_path), f"{s3.url}/x")
    with pytest.raises(InputError, match=r"^s3://.*can't be read \(.*credentials"):
        FeatureBank.open(f"{s3.url}/x")


def test_finished_work_is_pushed_and_pulled(bank_parameters, s3, tmp_path):
    result = build_bank(*bank_parameters())
    store, other = ArtifactStore(tmp_path / "store"), ArtifactStore(tmp_path / "other")
    place = push(store, resolve(store, result.fingerprint), f"{s3.url}/finished")
    assert place.startswith(f"{s3.url}/finished/bank/")
    s3.asked()
    assert push(store, resolve(store, result.fingerprint), f"{s3.url}/finished") == place
    assert not any(request.startswith("PUT ") for request in s3.asked())
    pulled = pull(other, place)
    other.verify(pulled)
    assert other.record(pulled) == store.record(resolve(store, result.fingerprint))
    key = next(key for key in s3.names() if key.endswith("digests.npy"))
    s3.put(key, bytes(len(s3.get(key))))
    with pytest.raises(CorruptArtifactError, match=r"digests\.npy"):
        pull(ArtifactStore(tmp_path / "third"), place)
    with pytest.raises(InputError, match="holds no artifact"):
        pull(other, f"{s3.url}/finished/bank/none")
