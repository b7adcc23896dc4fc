"""What a bank says of itself: manifest.json, format version 2.

The keys that existing trainers read keep their names and meanings; what is more than they know is added beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

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
    "empty_fields",
    "features_name",
    "manifest_spec",
    "parse_manifest",
    "read_manifest",
]

FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.json"
TEXTS_NAME = "texts.jsonl"
VALID_NAME = "valid.npy"

_REBUILD = "Rebuild the bank, or copy it again."
_LONGEST_SHOWN = 60
_WANTED = {
    "int_type": "a whole number",
    "greater_than_equal": "a number from 0 on",
    "bool_type": "true or false",
    "string_type": "a text",
    "dict_type": "an object",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def features_name(dtype: StoreDtype) -> str:
    """Return the matrix's file name."""
    return "features.f16.npy" if dtype is StoreDtype.FLOAT16 else "features.f32.npy"


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


Count = Annotated[int, Field(ge=0)]


class _File(_Part):
    bytes: Count
    sha256: str


class _Content(_Part):
    sha256: str


class _SourceRow(_Part):
    name: str
    url: str
    format: str
    compression: str
    sha256: str
    bytes: Count


class _Statistics(_Part):
    scan: dict[str, Any]
    tokens: dict[str, Any]
    encode: dict[str, Any]


class _Fingerprints(_Part):
    scan: str
    tokens: str
    features: str
    bank: str


class _Spec(_Part):
    scan: dict[str, Any]
    encode: dict[str, Any]


class _Manifest(_Part):
    """What readers of a manifest rely on; there may be more in one."""

    model_path: str
    max_key_tokens: Count
    hidden_size: Count
    text_count: Count
    dtype: str
    bank: str
    index: str | None
    texts: str
    kinds: dict[str, Count]
    complete: bool
    encoded_rows: Count
    poison_rows: Count
    name: str
    spec: _Spec
    fingerprints: _Fingerprints
    sources: list[_SourceRow]
    tokenizer: _Content
    model: _Content
    quantization: str
    precision: str
    engine: str
    statistics: _Statistics
    seconds: dict[str, Any]
    files: dict[str, _File]

    @field_validator("files")
    @classmethod
    def _files_lie_in_the_folder(cls, files: dict[str, _File]) -> dict[str, _File]:
        for name in files:
            if Path(name).name != name:
                raise ValueError(f"names of files in the folder, not {name!r}")
        return files


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
    encoding: the statistics of the encode (see `EncodeOutcome.statistics`).
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
        "seconds": {"scan": scan.seconds, **_resumable_seconds(tokens.statistics, encoding, coverage.text_count)},
        "files": {name: record.model_dump() for name, record in sorted(files.items())},
    }


def _resumable_seconds(tokens: Mapping[str, Any], encoding: Mapping[str, Any], text_count: int) -> dict[str, float | None]:
    """Return the seconds of the steps that may take several runs; None where they did, since only the last is known then."""
    tokenized, encoded = tokens.get("last_run", {}), encoding.get("last_run", {})
    return {
        "tokens": round(tokenized["seconds"]["elapsed"], 3) if tokenized.get("texts") == text_count else None,
        "encode": encoded["seconds"] if encoded.get("rows") == text_count else None,
    }


def _split_digests(sources: Sequence[Source]) -> dict[str, str]:
    """Name the content of the training and evaluation files: by their names, or by place where two sources have none."""
    by_name: dict[str, list[str]] = {}
    for source in sources:
        by_name.setdefault(source.name, []).append(source.sha256)
    if len(by_name.get("train", ())) == 1 and len(by_name.get("eval", ())) == 1:
        return {"train_sha256": by_name["train"][0], "eval_sha256": by_name["eval"][0]}
    if len(sources) == 2 and set(by_name) == {""}:  # a name that says something else isn't overruled by the place
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
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingArtifactError(str(folder), "holds no bank", wanted=f"a folder with {MANIFEST_NAME}") from None
    except OSError as error:
        raise CorruptArtifactError(str(path), f"can't be read ({error.strerror or error})", remedy=_REBUILD) from error
    return parse_manifest(raw, str(path))


def parse_manifest(raw: bytes, where: str) -> dict[str, Any]:
    """Parse a manifest and check that it has what its readers need, of the right types.

    where: what errors call it. Raises CorruptArtifactError, which names the key.
    """
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise CorruptArtifactError(where, f"is no JSON ({error})", remedy=_REBUILD) from error
    if not isinstance(value, dict):
        raise CorruptArtifactError(where, "is no JSON object", remedy=_REBUILD)
    if value.get("format_version") != FORMAT_VERSION:
        raise CorruptArtifactError(
            where, f"has format_version {value.get('format_version')!r}", wanted=str(FORMAT_VERSION), remedy=_REBUILD
        )
    try:
        _Manifest.model_validate(value)
    except ValidationError as error:
        raise _corrupt(where, error) from error
    for key in ("bank", "texts", "index"):
        if value[key] is not None and value[key] not in value["files"]:
            raise CorruptArtifactError(where, f"{key!r} is {value[key]!r}", wanted="one of its files", remedy=_REBUILD)
    return value


def empty_fields(scan: Mapping[str, Any]) -> list[str]:
    """Return the field paths at which no row of any source holds a text, in order. scan: the statistics of a scan."""
    return [path for path, count in scan.get("fields", {}).items() if not count]


def manifest_spec(manifest: Mapping[str, Any], where: str) -> BankSpec:
    """Return the spec that a bank was made from. Raises CorruptArtifactError if it is none that could be built now."""
    try:
        return BankSpec.model_validate(manifest["spec"])
    except ValidationError as error:
        raise _corrupt(where, error, "spec") from error


def _corrupt(where: str, error: ValidationError, *prefix: str) -> CorruptArtifactError:
    """Name the first key at fault, what it holds and what it should."""
    item = error.errors()[0]
    key = ".".join(map(str, [*prefix, *item["loc"]])) or "the whole"
    if item["type"] == "missing":
        return CorruptArtifactError(where, f"lacks {key!r}", remedy=_REBUILD)
    message = str(item["msg"]).removeprefix("Value error, ")
    wanted = _WANTED.get(item["type"], message[0].lower() + message[1:])
    shown = repr(item["input"])
    shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"
    return CorruptArtifactError(where, f"{key!r} is {shown}", wanted=wanted, remedy=_REBUILD)
