"""A plan as files: plan.arrow, which readers map, and plan.json, which says what it is.

plan.arrow is an Arrow IPC file of one record batch, a row a batch in the order of (step, rank):

    step                     int64
    rank                     int32
    real_tokens              int64
    maximum_sequence_length  int64
    token_slots              int64
    examples                 large_list<uint32>, or of int64 for more than 2**32 examples

Its buffers are the plan's own arrays, so that mapping it needs neither reading nor conversion. plan.json is written last, and
holds the format's version, the recipe and its digest, the statistics, the size and SHA-256 of plan.arrow, and a SHA-256 of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from zephon_core.atomic import atomic_file, fsync_directory, temporary_name, write_json
from zephon_core.batching.plan.global_plan import PlanArrays
from zephon_core.batching.plan.recipe import PlanRecipe
from zephon_core.batching.plan.statistics import PlanStatistics
from zephon_core.batching.state_fields import StateFields, sealed
from zephon_core.errors import ArtifactError, CorruptArtifactError, MissingArtifactError, StateError
from zephon_core.fingerprint import canonical_json, file_sha256
from zephon_core.locks import alone_in

__all__ = ["ARRAYS_NAME", "FILE_VERSION", "HEADER_NAME", "open_plan", "save_plan"]

ARRAYS_NAME = "plan.arrow"
HEADER_NAME = "plan.json"
FILE_VERSION = 1

_FORMAT = "zephon-batch-plan"
_NAMES = ["digest", "recipe", "steps", "world_size", "examples", "statistics", "file"]
_PLAN_AGAIN = "Plan again, or take another copy."


def save_plan(folder: Path, recipe: PlanRecipe, arrays: PlanArrays, statistics: PlanStatistics) -> None:
    """Write both files; where they are already, the new ones take their place once they are whole, at one go."""
    folder.mkdir(parents=True, exist_ok=True)
    staged = temporary_name(folder / ARRAYS_NAME), temporary_name(folder / HEADER_NAME)
    try:
        with atomic_file(staged[0]) as handle:
            hashed = _Hashed(handle)
            _write_arrow(hashed, arrays, recipe)
        record = {"name": ARRAYS_NAME, "bytes": hashed.written, "sha256": hashed.digest.hexdigest()}
        _write_header(staged[1], recipe, arrays, statistics, record)
        with alone_in(folder):
            (folder / HEADER_NAME).unlink(missing_ok=True)  # so that no header is ever beside another plan's arrays
            staged[0].replace(folder / ARRAYS_NAME)
            staged[1].replace(folder / HEADER_NAME)
            fsync_directory(folder)
    finally:
        for path in staged:
            path.unlink(missing_ok=True)


def _write_header(path: Path, recipe: PlanRecipe, arrays: PlanArrays, statistics: PlanStatistics, record: dict[str, Any]) -> None:
    header = {
        "format": _FORMAT,
        "version": FILE_VERSION,
        "digest": recipe.digest,
        "recipe": recipe.to_json(),
        "steps": len(arrays.real_tokens) // recipe.last_world_size,
        "world_size": recipe.last_world_size,
        "examples": len(arrays.examples),
        "statistics": statistics.to_json(),
        "file": record,
    }
    write_json(path, sealed(header))


def open_plan(folder: Path, *, verify: bool) -> tuple[PlanRecipe, PlanArrays, PlanStatistics]:
    """Map a plan's arrays, read-only, and read its header.

    verify: compare the checksum of plan.arrow, and all that must hold of its content. Raises as `GlobalBatchPlan.open` says.
    """
    header, recipe, statistics = _read_header(folder / HEADER_NAME)
    path = folder / ARRAYS_NAME
    record = StateFields(header.raw("file"), "file", ["name", "bytes", "sha256"])
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise CorruptArtifactError(str(path), "is not there, though its header is", remedy=_PLAN_AGAIN) from None
    if found != record.raw("bytes"):
        raise CorruptArtifactError(str(path), f"is {found} bytes long", wanted=str(record.raw("bytes")), remedy=_PLAN_AGAIN)
    if verify and file_sha256(path) != record.raw("sha256"):
        raise CorruptArtifactError(str(path), "has another SHA-256 than its header says", remedy=_PLAN_AGAIN)
    columns, digest = _map_arrow(path)
    if digest != recipe.digest:
        raise CorruptArtifactError(str(path), f"is of plan {digest[:16]}", wanted=f"plan {recipe.digest[:16]}", remedy=_PLAN_AGAIN)
    arrays = PlanArrays(
        columns["examples"],
        columns["offsets"],
        columns["real_tokens"],
        columns["maximum_sequence_length"],
        columns["token_slots"],
    )
    counts = header.integer("steps") * header.integer("world_size"), header.integer("examples"), recipe.last_world_size
    if counts != (len(arrays.real_tokens), len(arrays.examples), header.integer("world_size")):
        raise CorruptArtifactError(str(path), "holds other batches than its header says", remedy=_PLAN_AGAIN)
    offsets = arrays.offsets  # whatever reads a batch relies on these
    if len(offsets) != len(arrays.real_tokens) + 1 or offsets[0] != 0 or offsets[-1] != len(arrays.examples):
        raise CorruptArtifactError(str(path), "has offsets that can't be right", remedy=_PLAN_AGAIN)
    if (offsets[1:] < offsets[:-1]).any():
        raise CorruptArtifactError(str(path), "has offsets that can't be right", remedy=_PLAN_AGAIN)
    if verify:
        _check_content(path, columns, recipe)
    return recipe, arrays, statistics


class _Hashed:
    """A file for writing that hashes what goes through it."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle, self.digest, self.written, self.closed = handle, hashlib.sha256(), 0, False

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        self.digest.update(view)
        self._handle.write(view)
        self.written += len(view)
        return len(view)

    def tell(self) -> int:
        return self.written

    def flush(self) -> None:
        self._handle.flush()

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _write_arrow(file: _Hashed, arrays: PlanArrays, recipe: PlanRecipe) -> None:
    import pyarrow as pa

    world_size, batches = recipe.last_world_size, len(arrays.real_tokens)
    steps = batches // world_size
    columns = {
        "step": pa.array(np.repeat(np.arange(steps), world_size)),
        "rank": pa.array(np.tile(np.arange(world_size, dtype=np.int32), steps)),
        "real_tokens": pa.array(arrays.real_tokens),
        "maximum_sequence_length": pa.array(arrays.longest),
        "token_slots": pa.array(arrays.token_slots),
        "examples": pa.LargeListArray.from_arrays(pa.array(arrays.offsets), pa.array(arrays.examples)),
    }
    schema = pa.schema(
        [pa.field(name, column.type, nullable=False) for name, column in columns.items()],
        metadata={"format": _FORMAT, "version": str(FILE_VERSION), "digest": recipe.digest},
    )
    with pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))


def _map_arrow(path: Path) -> tuple[dict[str, npt.NDArray[Any]], str]:
    import pyarrow as pa

    try:
        return _mapped(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # in the footer, the schema, the batch or a column's buffers
        words = " ".join(str(error).split())
        raise CorruptArtifactError(str(path), f"can't be read as Arrow ({words})", remedy=_PLAN_AGAIN) from error


def _mapped(path: Path) -> tuple[dict[str, npt.NDArray[Any]], str]:
    import pyarrow as pa

    reader = pa.ipc.open_file(pa.memory_map(os.fspath(path)))
    batch = reader.get_batch(0) if reader.num_record_batches == 1 else None
    metadata = reader.schema.metadata or {}
    if batch is None or metadata.get(b"format") != _FORMAT.encode() or metadata.get(b"version") != str(FILE_VERSION).encode():
        raise CorruptArtifactError(str(path), "holds no plan of this version", remedy=_PLAN_AGAIN)
    batch.validate()  # that no column reaches beyond its buffers
    kinds = {"step": [pa.int64()], "rank": [pa.int32()], "examples": [pa.large_list(pa.uint32()), pa.large_list(pa.int64())]}
    kinds |= {name: [pa.int64()] for name in ("real_tokens", "maximum_sequence_length", "token_slots")}
    for name, types in kinds.items():
        position = batch.schema.get_field_index(name)
        if position < 0 or not any(_same_type(batch.schema.field(position).type, kind) for kind in types):
            raise CorruptArtifactError(str(path), f"has no column {name} of {types[0]}", remedy=_PLAN_AGAIN)
    columns = {name: batch.column(name).to_numpy(zero_copy_only=True) for name in kinds if name != "examples"}
    lists = batch.column("examples")
    columns["offsets"] = lists.offsets.to_numpy(zero_copy_only=True)
    columns["examples"] = lists.values.to_numpy(zero_copy_only=True)
    return columns, metadata.get(b"digest", b"").decode("ascii", "replace")


def _same_type(found: Any, wanted: Any) -> bool:
    inner = getattr(wanted, "value_type", None)
    return bool(found == wanted or (inner is not None and getattr(found, "value_type", None) == inner and found.id == wanted.id))


def _check_content(path: Path, columns: dict[str, npt.NDArray[Any]], recipe: PlanRecipe) -> None:
    """Hold the columns against each other; a file with the right checksum fails here only if it was written wrongly."""
    offsets, world_size = columns["offsets"], recipe.last_world_size
    sizes, steps = np.diff(offsets), len(columns["step"]) // world_size
    slots = columns["real_tokens"] if recipe.options.layout == "packed" else sizes * columns["maximum_sequence_length"]
    checks = {
        "steps and ranks": np.array_equal(columns["step"], np.repeat(np.arange(steps), world_size))
        and np.array_equal(columns["rank"], np.tile(np.arange(world_size), steps)),
        "offsets": int(offsets[0]) == 0 and int(sizes.min(initial=0)) >= 0 and int(offsets[-1]) == len(columns["examples"]),
        "token slots": np.array_equal(columns["token_slots"], slots) and int(slots.max(initial=0)) <= recipe.options.maximum_tokens,
        "examples": int(columns["examples"].min(initial=0)) >= 0
        and int(columns["examples"].max(initial=0)) < max(recipe.source.count, 1),
    }
    for name, good in checks.items():
        if not good:
            raise CorruptArtifactError(str(path), f"has {name} that can't be right", remedy=_PLAN_AGAIN)


def _read_header(path: Path) -> tuple[StateFields, PlanRecipe, PlanStatistics]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MissingArtifactError(str(path), "is not there", remedy="Name the folder of a plan.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptArtifactError(str(path), f"can't be read ({error})", remedy=_PLAN_AGAIN) from error
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise ArtifactError(str(path), "is no plan's header", wanted=f"format {_FORMAT}", remedy="Name a plan's folder.")
    version = value.get("version")
    if isinstance(version, int) and version > FILE_VERSION:
        remedy = "A later release wrote it: use that one, or plan again."
        raise ArtifactError(str(path), f"is of version {version}", wanted=f"{FILE_VERSION} or below", remedy=remedy)
    content = {key: item for key, item in value.items() if key != "sha256"}
    try:
        found = hashlib.sha256(canonical_json(content)).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptArtifactError(str(path), f"holds what no header holds ({error})", remedy=_PLAN_AGAIN) from error
    if value.get("sha256") != found:
        raise CorruptArtifactError(str(path), "has another SHA-256 than it says itself", remedy=_PLAN_AGAIN)
    try:
        header = StateFields.of_document(value, _FORMAT, FILE_VERSION, _NAMES)
        recipe = PlanRecipe.of(header.raw("recipe"))
        statistics = PlanStatistics.model_validate(header.raw("statistics"))
    except (StateError, ValidationError) as error:
        raise ArtifactError(str(path), f"can't be used: {error}", remedy=_PLAN_AGAIN) from error
    if header.raw("digest") != recipe.digest:
        raise CorruptArtifactError(str(path), "has another digest than its recipe gives", remedy=_PLAN_AGAIN)
    return header, recipe, statistics
