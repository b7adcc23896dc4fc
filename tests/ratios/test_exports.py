"""A mixture in the words of the loaders that train on it.

zephon and datasets read theirs here. The others' packages don't install beside these, and their files are held against the
shape that their manuals give.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ratio_inputs import Sizes

from zephon_core.errors import SpecError
from zephon_core.ratios.estimation import TokenRatio
from zephon_core.ratios.exports import ExportFormat, export, suffix_of
from zephon_core.ratios.mixture import Mixture, mixture_weights

RATIOS = {
    "web": TokenRatio(0.25, "measured", interval=(0.2475, 0.2525), draws=2048),
    "code": TokenRatio(0.4, "pinned"),
    "chat": TokenRatio(0.3, "fallback", reason="the disk is away"),
}
URLS = {"web": ["s3://bucket/web/"], "code": ["/data/our code"], "chat": ["/data/chat"]}


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


def test_streaming_draws_by_samples(mixture: Mixture) -> None:
    """Arguments of streaming.Stream (https://docs.mosaicml.com/projects/streaming): one of remote and local, and proportion."""
    streams = yaml.safe_load(export(ExportFormat.STREAMING, RATIOS, mixture, URLS))["streams"]
    assert streams["web"].keys() == {"remote", "proportion"} and streams["code"].keys() == {"local", "proportion"}
    assert streams["code"]["local"] == "/data/our code"
    assert delivered({name: stream["proportion"] for name, stream in streams.items()}) == pytest.approx(WANTED)


def test_energon_blends_by_samples(mixture: Mixture) -> None:
    """The shape that its manual gives for a metadataset (https://nvidia.github.io/Megatron-Energon/basic/metadataset.html)."""
    content = yaml.safe_load(export(ExportFormat.ENERGON, RATIOS, mixture, URLS))
    assert content.keys() == {"__module__", "__class__", "splits"}
    assert (content["__module__"], content["__class__"]) == ("megatron.energon", "MetadatasetV2")
    blend = content["splits"]["train"]["blend"]
    assert all(each.keys() == {"weight", "path"} for each in blend)
    names = {urls[0]: name for name, urls in URLS.items()}
    assert delivered({names[each["path"]]: each["weight"] for each in blend}) == pytest.approx(WANTED)


def test_megatron_blends_by_tokens(mixture: Mixture) -> None:
    """Its samples are sequences of one length, so that the weights are token shares: weight and path in turn."""
    words = shlex.split(export(ExportFormat.MEGATRON, RATIOS, mixture, URLS))
    assert words[1::2] == ["s3://bucket/web/", "/data/our code", "/data/chat"]
    assert [float(word) for word in words[::2]] == pytest.approx([0.6, 0.3, 0.1])


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
