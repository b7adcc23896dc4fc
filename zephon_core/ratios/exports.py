"""A mixture or its ratios in the words of the loaders that train on it.

Loaders draw by samples or by tokens: where every sample is a sequence of fixed length (Megatron-LM), weights are the token
shares themselves; where a sample is a row, they are the sample probabilities that come out of the ratios.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from zephon_core.errors import SpecError
from zephon_core.ratios.estimation import TokenRatio
from zephon_core.ratios.mixture import Mixture
from zephon_core.ratios.prime import ratio_json

__all__ = ["ExportFormat", "export", "suffix_of"]

Urls = Mapping[str, list[str]]


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
    energon: a Megatron-Energon metadataset with a blend by samples. megatron: Megatron-LM's --data-path, by tokens.
    huggingface: JSON, `probabilities` for datasets.interleave_datasets, in the order of `names`.
    json, yaml: all of it, ratios and mixture.

    urls: where each data set lies, by name. Raises SpecError where a loader needs a mixture and none is given, or where it takes
    one place a data set and there are several.
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
    blend = [{"weight": probability, "path": _one_place(name, urls)} for name, probability in mixture.probabilities.items()]
    return _yaml({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}})


def _megatron(mixture: Mixture, urls: Urls) -> str:
    words = [word for name, share in mixture.shares.items() for word in (f"{share:.12g}", shlex.quote(_one_place(name, urls)))]
    return " ".join(words) + "\n"


def _huggingface(mixture: Mixture, urls: Urls) -> str:
    return _json({"names": list(mixture.datasets), "probabilities": list(mixture.probabilities.values())})


def _one_place(name: str, urls: Urls) -> str:
    places = urls.get(name, [])
    if len(places) != 1:
        raise SpecError(f"data set {name}", f"lies in {len(places)} places", wanted="one", remedy="Put its files into one folder.")
    return places[0]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
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
