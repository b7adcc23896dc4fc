"""What a bank says of itself: manifest.json, format version 2.

The keys that existing trainers read keep their names and meanings; what is more than they know is added beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zephon_core.bank.specs import BankSpec, RunOptions, StoreDtype
from zephon_core.errors import CorruptArtifactError, MissingArtifactError
from zephon_core.readers.sources import Source
from zephon_core.store import ArtifactRecord, FileRecord, package_versions

__all__ = [
    "FORMAT_VERSION",
    "INDEX_NAME",
    "MANIFEST_NAME",
    "TEXTS_NAME",
    "VALID_NAME",
    "Coverage",
    "bank_manifest",
    "features_name",
    "read_manifest",
]

FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.json"
TEXTS_NAME = "texts.jsonl"
VALID_NAME = "valid.npy"

_NEEDED = ("format_version", "hidden_size", "text_count", "bank", "texts", "complete", "encoded_rows", "files")


def features_name(dtype: StoreDtype) -> str:
    """Return the matrix's file name."""
    return "features.f16.npy" if dtype is StoreDtype.FLOAT16 else "features.f32.npy"


@dataclass(frozen=True)
class Coverage:
    """How much of a bank is encoded, as its block ledger says."""

    text_count: int
    hidden_size: int
    encoded_rows: int
    poison_rows: int
    complete: bool


def bank_manifest(
    spec: BankSpec,
    run: RunOptions,
    *,
    sources: Sequence[Source],
    fingerprints: Mapping[str, str],
    contents: Mapping[str, Any],
    scan: ArtifactRecord,
    tokens: ArtifactRecord,
    encoding: Mapping[str, Any],
    coverage: Coverage,
    files: Mapping[str, FileRecord],
) -> dict[str, Any]:
    """Put the manifest of a bank together; pure.

    fingerprints: of scan, tokens, features and bank. contents: SHA-256 and description of tokenizer and model.
    encoding: the statistics of the encode (engine, device, receipts, seconds, throughput).
    """
    encode = spec.encode
    return {
        "format_version": FORMAT_VERSION,
        **_split_digests(sources),
        "model_path": encode.model.path,
        "max_key_tokens": spec.tokenize.max_key_tokens,
        "hidden_size": coverage.hidden_size,
        "text_count": coverage.text_count,
        "dtype": f"{encode.store_dtype.value}_memmap",
        "bank": features_name(encode.store_dtype),
        "index": INDEX_NAME if spec.write_index else None,
        "texts": TEXTS_NAME,
        "kinds": scan.statistics["kinds"],
        "complete": coverage.complete,
        "encoded_rows": coverage.encoded_rows,
        "poison_rows": coverage.poison_rows,
        "encoding": {
            "tokenizer_threads": run.workers,
            "max_batch": encode.max_batch,
            "token_budget": encode.token_budget,
            "grouping": encode.grouping.value,
            "skip_lm_head": encode.model.backbone == "inner",
            "backbone": encode.model.backbone,
            "fill_rows": run.rows or None,
        },
        "name": spec.name,
        "spec": spec.model_dump(mode="json"),
        "fingerprints": dict(fingerprints),
        "sources": _source_table(sources, scan.statistics),
        **contents,
        "quantization": encode.model.quantization.value,
        "precision": encode.model.dtype.value,
        "engine": encode.model.engine.value,
        "versions": package_versions(
            "numpy", "pyarrow", "numba", "tokenizers", "torch", "transformers", "bitsandbytes", "openvino"
        ),
        "statistics": {"scan": scan.statistics, "tokens": tokens.statistics, "encode": dict(encoding)},
        "seconds": {"scan": scan.seconds, "tokens": tokens.seconds, "encode": encoding.get("seconds")},
        "files": {name: record.model_dump() for name, record in sorted(files.items())},
    }


def _split_digests(sources: Sequence[Source]) -> dict[str, str]:
    """Name the content of the training and evaluation files, where the sources are exactly those."""
    by_name: dict[str, list[str]] = {}
    for source in sources:
        by_name.setdefault(source.name, []).append(source.sha256)
    if len(by_name.get("train", ())) == 1 and len(by_name.get("eval", ())) == 1:
        return {"train_sha256": by_name["train"][0], "eval_sha256": by_name["eval"][0]}
    if len(sources) == 2:
        return {"train_sha256": sources[0].sha256, "eval_sha256": sources[1].sha256}
    return {}


def _source_table(sources: Sequence[Source], statistics: Mapping[str, Any]) -> list[dict[str, Any]]:
    counts = statistics.get("sources", [{}] * len(sources))
    return [
        {
            "name": source.name,
            "url": source.url,
            "format": source.format,
            "compression": source.compression,
            "sha256": source.sha256,
            "bytes": source.bytes,
            **{key: count[key] for key in ("rows", "bad_rows") if key in count},
        }
        for source, count in zip(sources, counts, strict=True)
    ]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of the bank in `folder`. Raises MissingArtifactError or CorruptArtifactError."""
    path = folder / MANIFEST_NAME
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MissingArtifactError(str(folder), "holds no bank", wanted=f"a folder with {MANIFEST_NAME}") from None
    except (OSError, ValueError) as error:
        raise CorruptArtifactError(str(path), f"can't be read ({error})", remedy="Rebuild the bank.") from error
    if not isinstance(value, dict):
        raise CorruptArtifactError(str(path), "is no JSON object", remedy="Rebuild the bank.")
    if value.get("format_version") != FORMAT_VERSION:
        raise CorruptArtifactError(
            str(path), f"has format_version {value.get('format_version')!r}", wanted=str(FORMAT_VERSION), remedy="Rebuild the bank."
        )
    if missing := [key for key in _NEEDED if key not in value]:
        raise CorruptArtifactError(str(path), f"lacks {', '.join(missing)}", remedy="Rebuild the bank.")
    return value
