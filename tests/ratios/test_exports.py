"""A mixture in the words of the loaders that train on it, each read by the loader's own package.

zephon and datasets are installed with the tests. The others' packages ask for other versions of what is: they are installed
into a folder of their own, without what they depend on, and read their export in a process of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ratio_inputs import Sizes

from zephon_core.errors import SpecError
from zephon_core.ratios.estimation import TokenRatio
from zephon_core.ratios.exports import ExportFormat, export, suffix_of
from zephon_core.ratios.mixture import Mixture, mixture_weights

LOADERS = Path(__file__).parent / "programs" / "loaders"
SAMPLES = 4000
UNREACHABLE = re.compile(r"(Failed to establish a new connection|name resolution|timed out|Network is unreachable)[^\n]*")
RATIOS = {
    "web": TokenRatio(0.25, "measured", interval=(0.2475, 0.2525), draws=2048),
    "code": TokenRatio(0.4, "pinned"),
    "chat": TokenRatio(0.3, "fallback", reason="the disk is away"),
}
URLS = {"web": ["s3://bucket/web/"], "code": ["/data/code"], "chat": ["/data/chat"]}


@pytest.fixture
def mixture() -> Mixture:
    sizes = {"web": Sizes(100, 400_000), "code": Sizes(100, 1_000_000), "chat": Sizes(100, 100_000)}
    return mixture_weights({"web": 0.6, "code": 0.3, "chat": 0.1}, RATIOS, sizes, budget_tokens=1e6)


def delivered(probabilities: dict[str, float]) -> dict[str, float]:
    """Token shares that come of drawing samples so."""
    tokens = {name: p * {"web": 1000, "code": 4000, "chat": 300}[name] for name, p in probabilities.items()}
    return {name: value / sum(tokens.values()) for name, value in tokens.items()}


WANTED = {"web": 0.6, "code": 0.3, "chat": 0.1}


def test_zephons_pins_are_all_ratios() -> None:
    content = json.loads(export(ExportFormat.ZEPHON, RATIOS))
    assert content == {"primer": {"web": 0.25, "code": 0.4, "chat": 0.3}}


def test_zephon_takes_them() -> None:
    from zephon.work import TokenEstimation

    estimation = TokenEstimation(**json.loads(export(ExportFormat.ZEPHON, RATIOS)))
    assert dict(estimation.primer) == {"web": 0.25, "code": 0.4, "chat": 0.3}


@pytest.fixture(scope="session")
def loader_packages(pytestconfig: pytest.Config) -> Path:
    """The loaders' packages, in the tests' cache. Where no package index can be reached their tests are skipped, but not in CI."""
    wanted = LOADERS / "requirements.txt"
    version = hashlib.sha256(f"{sys.version} {wanted.read_text()}".encode()).hexdigest()[:16]
    folder = pytestconfig.cache.mkdir(f"loaders-{version}")
    packages, fresh = folder / "packages", folder / f"new-{os.getpid()}"
    if not packages.exists():
        options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(fresh), "--requirement", str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            cause = UNREACHABLE.search(done.stderr)
            if cause and not os.environ.get("CI"):
                pytest.skip(f"no package index can be reached ({cause[0][:200]})")
            pytest.fail(done.stderr[-2000:])
        try:
            fresh.rename(packages)
        except OSError:  # another test process was first
            shutil.rmtree(fresh)
    return packages


@pytest.fixture
def draw(loader_packages: Path, tmp_path: Path, mixture: Mixture) -> Callable[..., dict[str, float]]:
    """Export a mixture, have the loader's package draw samples by it, and return the shares of them."""

    def run(kind: ExportFormat, urls: dict[str, list[str]]) -> dict[str, float]:
        file = tmp_path / f"blend{suffix_of(kind)}"
        file.write_text(export(kind, RATIOS, mixture, urls))
        environment = {**os.environ, "PYTHONPATH": str(loader_packages), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
        command = [sys.executable, str(LOADERS / f"draw_{kind.value}.py"), str(file), str(SAMPLES)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        counts = json.loads(done.stdout.splitlines()[-1])
        return {Path(place).stem: count / SAMPLES for place, count in counts.items()}

    return run


def test_streaming_draws_by_samples(mixture: Mixture, tmp_path: Path, draw: Any) -> None:
    drawn = draw(ExportFormat.STREAMING, {name: [f"{tmp_path}/our {name}"] for name in WANTED})
    assert delivered(drawn) == pytest.approx(WANTED, abs=0.002)
    streams = yaml.safe_load(export(ExportFormat.STREAMING, RATIOS, mixture, URLS))["streams"]
    assert streams["web"].keys() == {"remote", "proportion"} and streams["code"].keys() == {"local", "proportion"}


def test_energon_blends_by_samples(mixture: Mixture, tmp_path: Path, draw: Any) -> None:
    (tmp_path / "our data").mkdir()
    drawn = draw(ExportFormat.ENERGON, {name: [f"{tmp_path}/our data/{name}.jsonl"] for name in WANTED})
    assert drawn == pytest.approx(mixture.probabilities, abs=0.03)


def test_energon_finds_a_bucket_by_its_own_kind_of_url(mixture: Mixture, s3: Any, draw: Any) -> None:
    drawn = draw(ExportFormat.ENERGON, {name: [f"{s3.url}/{name}.jsonl"] for name in WANTED})
    assert drawn == pytest.approx(mixture.probabilities, abs=0.03)
    blend = yaml.safe_load(export(ExportFormat.ENERGON, RATIOS, mixture, URLS))["splits"]["train"]["blend"]
    assert [each["path"] for each in blend] == ["msc://_s3-bucket/web/", "/data/code", "/data/chat"]
    with pytest.raises(SpecError, match=r"data set web: lies at hf://datasets/web, expected a folder, s3://"):
        export(ExportFormat.ENERGON, RATIOS, mixture, {**URLS, "web": ["hf://datasets/web"]})


def test_megatron_blends_by_tokens(mixture: Mixture, draw: Any) -> None:
    """Its samples are sequences of one length, so that the weights are token shares."""
    assert draw(ExportFormat.MEGATRON, URLS) == pytest.approx(WANTED, abs=0.001)
    with pytest.raises(SpecError, match="'/data/our code', expected a path without white space"):
        export(ExportFormat.MEGATRON, RATIOS, mixture, {**URLS, "code": ["/data/our code"]})


def test_huggingface_takes_the_probabilities(mixture: Mixture) -> None:
    content = json.loads(export(ExportFormat.HUGGINGFACE, RATIOS, mixture))
    assert content["names"] == ["web", "code", "chat"]
    assert delivered(dict(zip(content["names"], content["probabilities"], strict=True))) == pytest.approx(WANTED)
    import datasets

    parts = [datasets.Dataset.from_dict({"name": [name] * 4000}).to_iterable_dataset() for name in content["names"]]
    mixed = datasets.interleave_datasets(parts, probabilities=content["probabilities"], seed=0)
    drawn = [row["name"] for row in mixed.take(3000)]
    for name, probability in zip(content["names"], content["probabilities"], strict=True):
        assert drawn.count(name) / 3000 == pytest.approx(probability, abs=0.04)


@pytest.mark.parametrize(("kind", "load"), [(ExportFormat.JSON, json.loads), (ExportFormat.YAML, yaml.safe_load)])
def test_everything_as_plain_values(mixture: Mixture, kind: ExportFormat, load: Any) -> None:
    content = load(export(kind, RATIOS, mixture))
    assert content["ratios"]["web"]["interval"] == [0.2475, 0.2525]
    assert content["ratios"]["chat"]["reason"] == "the disk is away"
    assert content["mixture"]["web"]["share"] == pytest.approx(0.6)
    assert load(export(kind, RATIOS)).keys() == {"ratios"}


def test_what_a_loader_lacks_is_said(mixture: Mixture) -> None:
    for kind in (ExportFormat.STREAMING, ExportFormat.ENERGON, ExportFormat.MEGATRON, ExportFormat.HUGGINGFACE):
        with pytest.raises(SpecError, match="shares: are missing"):
            export(kind, RATIOS)
    with pytest.raises(SpecError, match="lies in 2 places"):
        export(ExportFormat.ENERGON, RATIOS, mixture, {**URLS, "web": ["a", "b"]})
    with pytest.raises(SpecError, match=r"lies at the pattern s3://bucket/\*\.parquet, expected one folder or file"):
        export(ExportFormat.STREAMING, RATIOS, mixture, {**URLS, "web": ["s3://bucket/*.parquet"]})


def test_places_on_this_machine_are_absolute(mixture: Mixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export is read from another folder: Energon takes paths from where the file lies, the others from where they run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "we[b]").mkdir()
    streams = yaml.safe_load(export(ExportFormat.STREAMING, RATIOS, mixture, {**URLS, "web": ["we[b]"], "code": ["file:///x"]}))
    assert (streams["streams"]["web"]["local"], streams["streams"]["code"]["local"]) == (f"{tmp_path}/we[b]", "/x")


def test_files_have_the_endings_that_loaders_look_for() -> None:
    assert {kind: Path("x" + suffix_of(kind)).suffix for kind in ExportFormat} == {
        ExportFormat.ZEPHON: ".json",
        ExportFormat.STREAMING: ".yaml",
        ExportFormat.ENERGON: ".yaml",
        ExportFormat.MEGATRON: ".txt",
        ExportFormat.HUGGINGFACE: ".json",
        ExportFormat.JSON: ".json",
        ExportFormat.YAML: ".yaml",
    }
