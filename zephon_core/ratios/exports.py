"""A mixture or its ratios in the words of the loaders that train on it.

Loaders draw by samples or by tokens: where every sample is a sequence of fixed length (Megatron-LM), weights are the token
shares themselves; where a sample is a row, they are the sample probabilities that come out of the ratios.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from zephon_core.errors import SpecError
from zephon_core.ratios.estimation import TokenRatio
from zephon_core.ratios.mixture import Mixture
from zephon_core.ratios.prime import ratio_json
from zephon_core.readers.sources import local_path

__all__ = ["ExportFormat", "export", "suffix_of"]

Urls = Mapping[str, list[str]]

# Energon reads object stores through NVIDIA's multi-storage client, whose URLs begin with a profile; these stand for a bucket.
_ENERGON_BUCKET = re.compile(r"(s3|gs)://([^/]+)")


class ExportFormat(StrEnum):
    """Which loader is to read it."""

    ZEPHON = "zephon"
    STREAMING = "streaming"
    ENERGON = "energon"
    MEGATRON = "megatron"
    HUGGINGFACE = "huggingface"
    JSON = "json"
    YAML = "yaml"


def export(kind: ExportFormat, ratios: Mapping[str, TokenRatio], mixture: Mixture | None = None, urls: Urls | None = None) -> str:
    """Return the text of a file for a loader.

    zephon: JSON, the arguments of zephon's TokenEstimation: every ratio as a pin (its mixtures take the token shares).
    streaming: YAML with `streams` for MosaicML Streaming, `proportion` by samples.
    energon: a Megatron-Energon metadataset with a blend by samples. megatron: a --data-args-path of Megatron-LM, by tokens.
    huggingface: JSON, `probabilities` for datasets.interleave_datasets, in the order of `names`.
    json, yaml: all of it, ratios and mixture.

    urls: where each data set lies, by name; local places are written as absolute paths. Raises SpecError where a loader needs a
    mixture and none is given, and for places that it can't take: several of one data set, a pattern, a scheme it doesn't know.
    """
    if kind in (ExportFormat.JSON, ExportFormat.YAML, ExportFormat.ZEPHON):
        return _PLAIN[kind](ratios, mixture)
    if mixture is None:
        raise SpecError(
            "shares", "are missing", wanted="a token share for every data set", remedy="Give --share NAME=0.6 for each."
        )
    return _BLENDS[kind](mixture, urls or {})


def suffix_of(kind: ExportFormat) -> str:
    """Return the ending of a file of that kind."""
    yaml = (ExportFormat.STREAMING, ExportFormat.ENERGON, ExportFormat.YAML)
    return ".yaml" if kind in yaml else ".txt" if kind is ExportFormat.MEGATRON else ".json"


def _zephon(ratios: Mapping[str, TokenRatio], mixture: Mixture | None) -> str:
    return _json({"primer": {name: ratio.tokens_per_byte for name, ratio in ratios.items()}})


def _everything(ratios: Mapping[str, TokenRatio], mixture: Mixture | None) -> dict[str, Any]:
    plain = {name: ratio_json(ratio) for name, ratio in ratios.items()}
    return {"ratios": plain, **({} if mixture is None else mixture.to_json())}


def _streaming(mixture: Mixture, urls: Urls) -> str:
    streams = {}
    for name, probability in mixture.probabilities.items():
        place = _one_place(name, urls)
        where = "remote" if "://" in place else "local"
        streams[name] = {where: place, "proportion": probability}
    return _yaml({"streams": streams})


def _energon(mixture: Mixture, urls: Urls) -> str:
    blend = [{"weight": probability, "path": _energon_place(name, urls)} for name, probability in mixture.probabilities.items()]
    return _yaml({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}})


def _energon_place(name: str, urls: Urls) -> str:
    place = _ENERGON_BUCKET.sub(r"msc://_\1-\2", _one_place(name, urls))
    if "://" in place and not place.startswith("msc://"):
        raise SpecError(f"data set {name}", f"lies at {place}", wanted="a folder, s3://, gs:// or msc:// for Megatron-Energon")
    return place


def _megatron(mixture: Mixture, urls: Urls) -> str:
    """Write weight and path in turn. Its --data-args-path is split at white space, and knows no quotes."""
    words = []
    for name, share in mixture.shares.items():
        place = _one_place(name, urls)
        if len(place.split()) != 1:
            raise SpecError(f"data set {name}", f"lies at {place!r}", wanted="a path without white space for Megatron-LM")
        words += [f"{share:.12g}", place]
    return " ".join(words) + "\n"


def _huggingface(mixture: Mixture, urls: Urls) -> str:
    return _json({"names": list(mixture.datasets), "probabilities": list(mixture.probabilities.values())})


def _one_place(name: str, urls: Urls) -> str:
    """Return where a data set lies: a URL, or the absolute path of what is on this machine."""
    places = urls.get(name, [])
    if len(places) != 1:
        raise SpecError(f"data set {name}", f"lies in {len(places)} places", wanted="one", remedy="Put its files into one folder.")
    path = local_path(places[0])
    place = places[0] if path is None else str(path.absolute())
    if any(mark in place for mark in "*?[") and not (path is not None and path.exists()):
        raise SpecError(f"data set {name}", f"lies at the pattern {place}", wanted="one folder or file, which loaders can open")
    return place


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=math.inf)
    return text


_PLAIN: dict[ExportFormat, Callable[[Mapping[str, TokenRatio], Mixture | None], str]] = {
    ExportFormat.ZEPHON: _zephon,
    ExportFormat.JSON: lambda ratios, mixture: _json(_everything(ratios, mixture)),
    ExportFormat.YAML: lambda ratios, mixture: _yaml(_everything(ratios, mixture)),
}
_BLENDS: dict[ExportFormat, Callable[[Mixture, Urls], str]] = {
    ExportFormat.STREAMING: _streaming,
    ExportFormat.ENERGON: _energon,
    ExportFormat.MEGATRON: _megatron,
    ExportFormat.HUGGINGFACE: _huggingface,
}
