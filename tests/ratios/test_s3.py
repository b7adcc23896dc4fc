"""Data sets in object storage, read through s3fs from a server on loopback that speaks S3."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from ratio_inputs import WORDS

from zephon_core.ratios.count import count_tokens
from zephon_core.ratios.counting import TextTokenCountingSpec
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.documents import RatioDocuments
from zephon_core.ratios.run import prime_mixture
from zephon_core.ratios.specs import RatioRun, RatioSpec
from zephon_core.store import ArtifactStore


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `parquet` and `jsonl`, of 3 shards each, of some 250 kB."""
    folder = tmp_path_factory.mktemp("sets")
    rng = np.random.default_rng(0)
    (folder / "parquet").mkdir()
    (folder / "jsonl").mkdir()
    for shard in range(3):
        lengths = rng.integers(1, 40 * (shard + 1), 600)
        texts = [" ".join(WORDS[word] for word in rng.integers(0, len(WORDS), length)) for length in lengths]
        pq.write_table(pa.table({"text": texts, "id": range(600)}), folder / "parquet" / f"{shard}.parquet", row_group_size=50)
        (folder / "jsonl" / f"{shard}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def spec_of(tokenizer: Path, urls: dict[str, str], **settings: Any) -> RatioSpec:
    datasets = [f"{name}={url}" for name, url in urls.items()]
    return RatioSpec.model_validate({"datasets": datasets, "tokenizer": str(tokenizer), "exact_below_bytes": 0, **settings})


def prime(tokenizer: Path, urls: dict[str, str], store: Path, **run: Any) -> Any:
    spec = spec_of(tokenizer, urls, **run.pop("spec", {}))
    return prime_mixture(spec, RatioRun(store=str(store), workers=2, **run)).priming


@pytest.mark.parametrize("name", ["parquet", "jsonl"])
def test_an_exact_count_is_that_of_the_same_files_on_disk(
    local: Path, s3: Any, word_tokenizer: Path, tmp_path: Path, name: str
) -> None:
    counting = TextTokenCountingSpec(word_tokenizer)
    store = ArtifactStore(tmp_path / "store")
    here, there = (
        count_tokens(Dataset.from_path(name, place, store=store), counting, run=RatioRun(store=str(store.root)))
        for place in (str(local / name), s3.put_folder(local / name))
    )
    assert (here.tokens, here.rows, here.raw_bytes, here.tokens_per_byte) == (
        there.tokens,
        there.rows,
        there.raw_bytes,
        there.tokens_per_byte,
    )
    assert there.complete and there.rows == 1800


def test_worker_processes_read_the_bucket_for_themselves(s3: Any, word_tokenizer: Path, tmp_path: Path) -> None:
    line = json.dumps({"text": " ".join(WORDS)}) + "\n"
    for shard in range(3):
        s3.put(f"large/{shard}.jsonl", (line * (1 + (3 << 20) // len(line))).encode())
    store = ArtifactStore(tmp_path / "store")
    dataset = Dataset.from_path("large", f"{s3.url}/large/", store=store)
    counted = count_tokens(
        dataset, TextTokenCountingSpec(word_tokenizer, special_tokens="none"), run=RatioRun(store=str(store.root), workers=2)
    )
    assert counted.complete and counted.tokens == counted.rows * len(WORDS)


def test_draws_come_near_the_exact_ratio_and_are_the_same_wherever_the_objects_lie(
    local: Path, s3: Any, word_tokenizer: Path, tmp_path: Path
) -> None:
    exact = prime(
        word_tokenizer, {n: str(local / n) for n in ("parquet", "jsonl")}, tmp_path / "0", spec={"exact_below_bytes": 1 << 30}
    )
    urls = {name: s3.put_folder(local / name) for name in ("parquet", "jsonl")}
    for file in (local / "jsonl").iterdir():
        s3.put(f"elsewhere/x-{file.name}", file.read_bytes())
    drawn = prime(word_tokenizer, {**urls, "moved": f"{s3.url}/elsewhere/*.jsonl"}, tmp_path / "1", spec={"target_rel_error": 0.03})
    for name, ratio in exact.ratios.items():
        assert ratio.design == "exact" and drawn.ratios[name].design.startswith("stratified")
        assert drawn.ratios[name].tokens_per_byte == pytest.approx(ratio.tokens_per_byte, rel=0.05)  # ± 3 % in 95 of 100
    assert drawn.ratios["moved"].tokens_per_byte == drawn.ratios["jsonl"].tokens_per_byte
    again = prime(word_tokenizer, urls, tmp_path / "2", spec={"target_rel_error": 0.03})
    assert {name: drawn.ratios[name] for name in urls} == again.ratios


def test_a_second_run_reads_no_data_and_one_after_a_change_does(local: Path, s3: Any, word_tokenizer: Path, tmp_path: Path) -> None:
    urls = {name: s3.put_folder(local / name) for name in ("parquet", "jsonl")}
    first = prime(word_tokenizer, urls, tmp_path)
    assert any(request.startswith("GET ") for request in s3.asked())
    second = prime(word_tokenizer, urls, tmp_path)
    assert second.ratios == first.ratios and all(outcome.cached for outcome in second.outcomes.values())
    assert not any(request.startswith("GET ") for request in s3.asked())
    s3.put("jsonl/3.jsonl", b'{"text": "word1 word2"}\n' * 2000)
    third = prime(word_tokenizer, urls, tmp_path)
    assert {name: outcome.cached for name, outcome in third.outcomes.items()} == {"parquet": True, "jsonl": False}
    assert third.ratios["jsonl"] != first.ratios["jsonl"]


def test_without_credentials_it_is_guessed_and_not_tried_again_at_once(
    local: Path, s3: Any, word_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {"far": s3.put_folder(local / "jsonl"), "near": str(local / "parquet")}
    with monkeypatch.context() as without:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            without.delenv(name)
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.warns(RuntimeWarning, match="far"):
            first = prime(word_tokenizer, urls, tmp_path)
    far = first.ratios["far"]
    assert (far.source, first.ratios["near"].source) == ("fallback", "measured") and "credentials" in far.reason.lower()
    s3fs.S3FileSystem.clear_instance_cache()
    s3.asked()
    with pytest.warns(RuntimeWarning, match="far"):
        assert prime(word_tokenizer, urls, tmp_path).ratios["far"] == far
    assert s3.asked() == []
    assert prime(word_tokenizer, urls, tmp_path, negative_ttl_s=0).ratios["far"].source == "measured"


def test_a_server_that_is_not_there_costs_its_own_data_set(
    local: Path, s3: Any, word_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.put_folder(local / "jsonl")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.warns(RuntimeWarning, match="far"):
        ratios = prime(word_tokenizer, {"far": url, "near": str(local / "parquet")}, tmp_path).ratios
    assert (ratios["far"].source, ratios["near"].source) == ("fallback", "measured")
    assert url in ratios["far"].reason and "127.0.0.1:9" in ratios["far"].reason


def test_an_object_that_vanished_after_the_catalog_costs_itself(local: Path, s3: Any, word_tokenizer: Path, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    dataset = Dataset.from_path("jsonl", s3.put_folder(local / "jsonl"), store=store)
    s3.delete("jsonl/0.jsonl")
    counted = count_tokens(dataset, TextTokenCountingSpec(word_tokenizer), run=RatioRun(store=str(store.root)))
    assert counted.rows == 1200 and counted.transient and sum(counted.bad_units.values()) >= 1
    assert "0.jsonl" in counted.problems[0]


def test_one_map_in_the_bucket_is_what_every_node_reads(local: Path, s3: Any, word_tokenizer: Path, tmp_path: Path) -> None:
    urls = {"web": s3.put_folder(local / "jsonl")}
    first = prime(word_tokenizer, urls, tmp_path / "node-1", publish=f"{s3.url}/maps")
    (key,) = [key for key in s3.names() if key.startswith("maps/")]
    published = json.loads(s3.get(key))
    assert published["ratios"]["web"][:2] == [first.ratios["web"].tokens_per_byte, "measured"]
    s3.asked()
    second = prime(word_tokenizer, urls, tmp_path / "node-2", publish=f"{s3.url}/maps")
    assert second.ratios == first.ratios and s3.get(key) == json.dumps(published, indent=2).encode() + b"\n"
    assert not RatioDocuments(ArtifactStore(tmp_path / "node-2")).all()


def test_a_map_that_cannot_be_reached_is_one_line(
    local: Path, s3: Any, word_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zephon_core.errors import InputError

    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(InputError, match=rf"^{s3.url}/maps/.*can't be read \(.*credentials"):
        prime(word_tokenizer, {"near": str(local / "parquet")}, tmp_path, publish=f"{s3.url}/maps")


def test_credentials_are_written_and_said_nowhere(local: Path, s3: Any, word_tokenizer: Path, tmp_path: Path) -> None:
    sets = {"web": s3.put_folder(local / "jsonl"), "absent": f"{s3.url}/nothing/", "denied": "s3://no-such-bucket-here/x.jsonl"}
    arguments = [f"--dataset={name}={url}" for name, url in sets.items()]
    folders = ["--store", str(tmp_path / "store"), "--output", str(tmp_path / "out"), "--publish", f"{s3.url}/maps"]
    command = [sys.executable, "-m", "zephon_core.cli", "ratios", "prime", *arguments, "--tokenizer", str(word_tokenizer), *folders]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=120)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    published = [s3.get(key) for key in s3.names() if key.startswith("maps/")]
    assert len(written) > 5 and len(published) == 1 and b"web" in done.stdout, done.stderr
    for secret in (b"AKIATESTTESTTESTTEST", b"secret/of+the-tests", b"AWS4-HMAC"):
        assert not any(secret in content for content in (done.stdout, done.stderr, *written, *published))
