"""Encode blocks: read their token ids, run the model, finish the features. The part of an encode that runs beside the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zephon_core.bank.encode.features import finish_features
from zephon_core.bank.specs import EncodeSpec, Grouping, Pooling
from zephon_core.blocks import BlockJob, BlockResult, Facts, TokenRows, in_halves, unless_out_of_memory
from zephon_core.errors import ModelError, SpecError
from zephon_core.models import Encoder, EncoderOptions, load_encoder, read_model_folder
from zephon_core.models.encoder import check_ids, import_torch, load_reference
from zephon_core.models.plugins import is_plugin

__all__ = ["EncodeTask", "ProbeJob", "UnitEncoder", "normalizes", "open_here", "open_unit_encoder"]


@dataclass(frozen=True)
class ProbeJob:
    """Rows to encode for comparison: each item of `batches` (int64 rows) by itself. reference: in plain float32."""

    batches: tuple[npt.NDArray[np.int64], ...]
    reference: bool = False


@dataclass(frozen=True)
class EncodeTask:
    """What a worker needs to encode blocks of one bank."""

    tokens: Path
    spec: EncodeSpec
    options: EncoderOptions


class UnitEncoder:
    """Turns the blocks of one unit into results."""

    def __init__(self, tokens: TokenRows, encoder: Encoder, spec: EncodeSpec) -> None:
        self._tokens = tokens
        self._encoder = encoder
        self._grouping = spec.grouping
        self._normalize = normalizes(spec)
        self._dtype = np.dtype(spec.store_dtype.value)
        self._where = spec.model.path
        if spec.grouping is Grouping.PACKED and not encoder.ragged:
            raise SpecError(
                "grouping", "is packed", wanted=f"exact_token_length or padded: {encoder.name} doesn't pack rows of several lengths"
            )
        if spec.grouping is Grouping.PADDED and not encoder.padded:
            raise SpecError("grouping", "is padded", wanted=f"exact_token_length: {encoder.name} doesn't mask padding")

    @property
    def facts(self) -> Facts:
        """What the encoder is: what runs it, the width of its vectors, whether blocks share a forward pass."""
        return Facts({"forward": self._encoder.name, "hidden_size": self._encoder.hidden_size}, ragged=self._encoder.ragged)

    def __call__(self, jobs: Sequence[BlockJob]) -> list[BlockResult]:
        """Encode the wanted blocks.

        Raises ModelError if a single row doesn't fit into memory, or for ids that the model doesn't know.
        """
        started = time.perf_counter()
        needed = list(jobs) if self._encoder.ragged else [job for job in jobs if job.wanted]
        features = self._together(needed) or [self._alone(job.rows) for job in needed]
        each_us = int((time.perf_counter() - started) * 1e6 / max(1, len(needed)))
        return [
            BlockResult(job.block, finish_features(vectors, normalize=self._normalize, dtype=self._dtype), each_us, halvings)
            for job, (vectors, halvings) in zip(needed, features, strict=True)
            if job.wanted
        ]

    def probe(self, batches: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        """Encode batches one by one; return float32 [rows of all, hidden_size], not cast to the stored type."""
        vectors = np.concatenate([self._alone(rows)[0] for rows in batches])
        return finish_features(vectors, normalize=self._normalize, dtype=np.dtype(np.float32)).stored.astype(np.float32)

    def _together(self, jobs: Sequence[BlockJob]) -> list[tuple[npt.NDArray[np.float32], int]] | None:
        """Encode several blocks in one call; None if that is too much at once."""
        if self._grouping is Grouping.PADDED or len(jobs) < 2:
            return None
        groups = [self._groups(job.rows) for job in jobs]
        vectors = unless_out_of_memory(lambda: self._encoder.encode([ids for group in groups for ids in group]))
        if vectors is None:
            return None
        ends = np.cumsum([len(job.rows) for job in jobs])
        return [(part, 0) for part in np.split(vectors, ends[:-1])]

    def _alone(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float32], int]:
        """Encode one block, in halves if it is too large for the device; return its features and how often it was halved."""
        return in_halves(rows, self._one_pass, self._too_long)

    def _too_long(self, row: int) -> ModelError:
        return ModelError(
            self._where,
            f"runs out of memory on a single text of {int(self._tokens.lengths[row]):,} tokens (row {row})",
            remedy="Lower max_key_tokens, quantise the model, or use a device with more memory.",
        )

    def _one_pass(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        if self._grouping is not Grouping.PADDED:
            return self._encoder.encode(self._groups(rows))
        lengths = self._tokens.lengths[rows].astype(np.int64)
        last = len(self._tokens.ids) - 1
        places = self._tokens.offsets[rows].astype(np.int64)[:, None] + np.arange(int(lengths.max()))
        ids = self._tokens.ids[np.minimum(places, last)].astype(np.int64)
        ids[np.arange(ids.shape[1]) >= lengths[:, None]] = 0
        check_ids(self._encoder, ids, where=self._where)
        return self._encoder.encode_padded(ids, lengths)

    def _groups(self, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Read the ids of neighbouring rows, a group for each run of equal lengths."""
        lengths = self._tokens.lengths[rows]
        cuts = np.flatnonzero(np.diff(lengths)) + 1
        groups = [self._tokens.gather(part, int(self._tokens.lengths[part[0]])) for part in np.split(rows, cuts)]
        for ids in groups:
            check_ids(self._encoder, ids, where=self._where)
        return groups


Request = Sequence[BlockJob] | ProbeJob | None
Answer = list[BlockResult] | npt.NDArray[np.float32] | Facts


@contextmanager
def open_unit_encoder(task: EncodeTask) -> Iterator[Callable[[Request], Answer]]:
    """Load a task's encoder into a worker process. Yields what `open_here` does."""
    if not is_plugin(task.spec.model.path):
        import_torch().set_num_threads(1)
    with open_here(task) as handle:
        yield handle


@contextmanager
def open_here(task: EncodeTask) -> Iterator[Callable[[Request], Answer]]:
    """Load a task's encoder into this process, its memory switched off while the context lasts.

    Yields a function from the blocks of a unit to their results, from a probe to its features, from None to the encoder's facts.
    """
    encoder = load_encoder(task.spec.model, task.options)
    try:
        with encoder.frozen():
            unit_encoder = UnitEncoder(TokenRows(task.tokens), encoder, task.spec)

            def handle(request: Request) -> Answer:
                if request is None:
                    return unit_encoder.facts
                if isinstance(request, ProbeJob):
                    return _run_probe(task, unit_encoder, request)
                return unit_encoder(request)

            yield handle
    finally:
        encoder.close()


def _run_probe(task: EncodeTask, encoder: UnitEncoder, probe: ProbeJob) -> npt.NDArray[np.float32]:
    """Encode a probe, with the bank's own encoder or with one loaded for plain float32."""
    if not probe.reference:
        return encoder.probe(probe.batches)
    reference = load_reference(task.spec.model, task.options)
    try:
        spec = task.spec.model_copy(update={"grouping": Grouping.EXACT})
        return UnitEncoder(TokenRows(task.tokens), reference, spec).probe(probe.batches)
    finally:
        reference.close()


def normalizes(spec: EncodeSpec) -> bool:
    """Tell whether features are scaled to length 1: if the spec says so, or the model's own modules where they are asked for."""
    if spec.normalize or is_plugin(spec.model.path):
        return spec.normalize
    return spec.pooling is Pooling.MODEL and read_model_folder(spec.model.path).modules.normalize
