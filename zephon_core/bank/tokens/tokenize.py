"""Tokenize the texts of a bank: texts.jsonl in, a token store out.

Each text gives its first `max_key_tokens` ids, without special tokens; a text without ids gives the single id 0. Chunks of the
file go to threads, each of which encodes on its own: the encoders leave Python's lock while they work, and reading the ids
out of one chunk overlaps with the encoding of others. Ids are written in order as they come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from zephon_core.bank.specs import RunOptions, TokenizeSpec
from zephon_core.bank.tokens.statistics import RepeatCounter, length_statistics
from zephon_core.bank.tokens.store import LENGTHS_NAME, Tally, TokenStoreIdentity, TokenWriter, id_dtype
from zephon_core.errors import CorruptArtifactError, MissingArtifactError, TokenizerError
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import (
    Backend,
    FirstIds,
    HuggingFaceBackend,
    RaggedIds,
    Tokenizer,
    TokenizerBackend,
    choose_backend,
    encode_first,
    serial_encoding,
)

__all__ = ["TOKENS_VERSION", "tokenize_texts"]

TOKENS_VERSION = 1

_CHUNK_BYTES = 1 << 20
_CHECKPOINT_BYTES = 32 << 20
_CHUNKS_AHEAD = 8  # so that threads have work while the writer waits for the device

# Of the texts that a faster backend encodes, one in so many goes through the reference as well, and one in so many bytes at least.
_CHECK_EACH_TEXTS = 1000
_CHECK_EACH_BYTES = 8 << 20
_CHECK_LONGEST_CHARACTERS = 1 << 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class _Chunk:
    """Whole lines of texts.jsonl: `lines` of them from row `first_row` on, at byte `offset`."""

    first_row: int
    lines: int
    offset: int
    content: bytes


@dataclass
class _Effort:
    """Seconds by part of the work, summed over threads, and how many texts were checked."""

    seconds: dict[str, float] = field(default_factory=dict)
    checked_texts: int = 0

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - begun

    def add(self, other: _Effort) -> None:
        for part, seconds in other.seconds.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds
        self.checked_texts += other.checked_texts


@dataclass(frozen=True)
class _EncodedChunk:
    ids: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]
    digests: npt.NDArray[np.int64]
    tally: Tally
    effort: _Effort


def tokenize_texts(
    texts: Path,
    text_count: int,
    tokenizer: Tokenizer,
    spec: TokenizeSpec,
    directory: Path,
    *,
    run: RunOptions | None = None,
    store: ArtifactStore | None = None,
    progress: Progress = NULL_PROGRESS,
    chunk_bytes: int = _CHUNK_BYTES,
    checkpoint_bytes: int = _CHECKPOINT_BYTES,
) -> dict[str, Any]:
    """Write the token store of `texts` (texts.jsonl with `text_count` lines) into `directory`, and return its statistics.

    `last_run` among them is of this call alone: how many texts it tokenized, with which backend, in what time.
    A directory with an interrupted run's leftovers is taken up where its ledger ends. Memory: 8 bytes a text, and a few chunks of
    `chunk_bytes` a thread with their ids. A crash loses about `checkpoint_bytes` of text. store: keeps the proof that a faster
    backend may be used, which is made anew at each call without it. Raises MissingArtifactError or
    CorruptArtifactError for the texts, TokenizerError if a faster backend gives other ids than the Hugging Face encoder,
    MismatchError for a directory that was begun for other inputs.
    """
    run = run or RunOptions()
    started = time.perf_counter()
    if not texts.is_file():
        raise MissingArtifactError(str(texts), "is not there", remedy="Run the scan first.")
    text_bytes = texts.stat().st_size
    identity = TokenStoreIdentity(tokenizer.content_sha256, spec.max_key_tokens, text_count, text_bytes, tokenizer.vocab_size)
    with TokenWriter(directory, identity) as writer:
        resumed_after = writer.done.texts
        if resumed_after:
            progress.note(f"Resuming after {resumed_after:,} of {text_count:,} texts.")
        to_do_bytes = text_bytes - writer.done.text_bytes
        chosen = choose_backend(
            tokenizer, run.tokenizer_backend, text_bytes=to_do_bytes, threads=run.worker_count, store=store, progress=progress
        )
        if chosen.fell_back:
            progress.note(f"Tokenizing with the Hugging Face encoder: {chosen.reason}.")
        repeats = RepeatCounter(text_count)
        repeats.add_recorded(*writer.recorded())
        effort = _Effort(seconds={"start": time.perf_counter() - started})
        work = _ChunkWork(texts, tokenizer, chosen.backend, spec.max_key_tokens)
        chunks = _chunks(texts, writer.done, text_count, chunk_bytes)
        with (
            _forgotten_if_wrong(writer),
            progress.phase("tokenize", total=text_count, unit="texts") as phase,
            closing(_map(work, chunks, run.worker_count)) as results,
        ):
            phase.advance(writer.done.texts)
            for encoded in results:
                effort.add(encoded.effort)
                with effort.measure("write"):
                    writer.append(encoded.ids, encoded.lengths, encoded.tally)
                    if writer.appended.text_bytes - writer.done.text_bytes >= checkpoint_bytes:
                        writer.checkpoint()
                repeats.add(encoded.digests)
                phase.advance(encoded.tally.texts)
        with effort.measure("write"):
            writer.finish()
    effort.seconds["elapsed"] = time.perf_counter() - started
    return {
        "texts": writer.done.texts,
        "tokens": writer.done.tokens,
        "truncated": writer.done.truncated,
        "empty": writer.done.empty,
        "text_bytes": writer.done.text_bytes,
        "characters_per_token": writer.done.whole_characters / writer.done.whole_tokens if writer.done.whole_tokens else None,
        **length_statistics(directory / LENGTHS_NAME),
        "same_ids": repeats.count(),
        "last_run": {
            "texts": text_count - resumed_after,
            "backend": {"name": chosen.backend.name, "reason": chosen.reason, "checked_texts": effort.checked_texts},
            "seconds": effort.seconds,
        },
    }


@contextmanager
def _forgotten_if_wrong(writer: TokenWriter) -> Iterator[None]:
    """Don't let a later run build on ids of a backend that was caught giving wrong ones: the sample may have missed others."""
    try:
        yield
    except TokenizerError:
        writer.forget()
        raise


def _chunks(texts: Path, done: Tally, text_count: int, chunk_bytes: int) -> Iterator[_Chunk]:
    """Cut what is left of texts.jsonl into chunks of whole lines. Raises CorruptArtifactError for too many or too few of them."""
    row, offset = done.texts, done.text_bytes
    with texts.open("rb") as file:
        file.seek(offset)
        while content := file.read(chunk_bytes):
            if not content.endswith(b"\n"):
                content += file.readline()
            if not content.endswith(b"\n"):
                content += b"\n"
            lines = content.count(b"\n")
            if row + lines > text_count:
                raise CorruptArtifactError(str(texts), "has more lines", wanted=f"{text_count:,}", remedy="Scan again.")
            yield _Chunk(row, lines, offset, content)
            row += lines
            offset += len(content)
    if row != text_count:
        raise CorruptArtifactError(str(texts), f"has {row:,} lines", wanted=f"{text_count:,}", remedy="Scan again.")


def _map(work: _ChunkWork, chunks: Iterator[_Chunk], threads: int) -> Generator[_EncodedChunk]:
    """Encode chunks on `threads` threads, in order, with only a few of them in memory at once."""
    pending: deque[Future[_EncodedChunk]] = deque()
    with serial_encoding(), ThreadPoolExecutor(threads, thread_name_prefix="tokenize") as executor:
        try:
            for chunk in chunks:
                pending.append(executor.submit(work, chunk))
                if len(pending) > threads + _CHUNKS_AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


class _ChunkWork:
    """What a thread does with a chunk: parse, encode, check a sample of it, digest."""

    def __init__(self, texts: Path, tokenizer: Tokenizer, backend: Backend, max_tokens: int) -> None:
        self._texts = texts
        self._backend = backend
        self._cut = tokenizer.early_cut
        self._max_tokens = max_tokens
        self._dtype = id_dtype(tokenizer.vocab_size)
        self._reference = None if backend.name == TokenizerBackend.HUGGINGFACE else HuggingFaceBackend(tokenizer.huggingface)

    def __call__(self, chunk: _Chunk) -> _EncodedChunk:
        effort = _Effort()
        with effort.measure("parse"):
            texts = _parsed(self._texts, chunk)
        with effort.measure("encode"):
            first = encode_first(self._backend.encode, texts, self._max_tokens, self._cut)
        if self._reference is not None:
            with effort.measure("check"):
                effort.checked_texts = self._check(self._reference, chunk, texts, first)
        with effort.measure("digest"):
            ids = first.ids.astype(self._dtype, copy=False)
            digests = RepeatCounter.digests(ids, first.lengths)
        whole = ~(first.truncated | first.empty)
        characters = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        tally = Tally(
            texts=len(texts),
            text_bytes=len(chunk.content),
            tokens=len(ids),
            truncated=int(first.truncated.sum()),
            empty=int(first.empty.sum()),
            whole_characters=int(characters[whole].sum()),
            whole_tokens=int(first.lengths[whole].sum(dtype=np.int64)),
        )
        return _EncodedChunk(ids, first.lengths, digests, tally, effort)

    def _check(self, reference: HuggingFaceBackend, chunk: _Chunk, texts: list[str], found: FirstIds) -> int:
        """Encode a sample of the texts whole with the reference, and return how many. Raises TokenizerError on other ids."""
        sample = _sample(chunk, texts)
        expected = encode_first(reference.encode, [texts[i] for i in sample], self._max_tokens, None)
        ends = np.cumsum(found.lengths, dtype=np.int64)
        ids = [found.ids[ends[i] - found.lengths[i] : ends[i]] for i in sample]
        same_texts = RaggedIds(np.concatenate([np.empty(0, dtype=np.uint32), *ids]), found.lengths[sample])
        difference = same_texts.first_difference(RaggedIds(expected.ids, expected.lengths))
        if difference is not None:
            index, position = difference
            raise TokenizerError(
                f"{self._texts} row {chunk.first_row + sample[index]:,}",
                f"{self._backend.name} gives other ids than huggingface, first at token {position}",
                remedy="Set tokenizer_backend: huggingface.",
            )
        return len(sample)


def _sample(chunk: _Chunk, texts: list[str]) -> list[int]:
    """Choose the texts of a chunk to check: some by their rows, and where a new stretch of bytes begins one that isn't huge."""
    scattered = (np.arange(chunk.first_row, chunk.first_row + chunk.lines, dtype=np.uint64) * _GOLDEN) >> np.uint64(32)
    chosen = np.flatnonzero(scattered % np.uint64(_CHECK_EACH_TEXTS) == 0).tolist()
    if -chunk.offset % _CHECK_EACH_BYTES < len(chunk.content):
        start = int(scattered[0] % np.uint64(chunk.lines))
        around = [*range(start, chunk.lines), *range(start)]
        chosen += [i for i in around if len(texts[i]) <= _CHECK_LONGEST_CHARACTERS][:1]
    return sorted(set(chosen))


def _parsed(path: Path, chunk: _Chunk) -> list[str]:
    """Parse a chunk of one JSON string a line, as one array: no line holds a raw line feed."""
    try:
        texts: list[Any] = orjson.loads(b"[" + chunk.content[:-1].replace(b"\n", b",") + b"]")
    except orjson.JSONDecodeError:
        texts = []
    if len(texts) == chunk.lines and all(type(text) is str for text in texts):
        return texts
    row = next((i for i, line in enumerate(chunk.content.split(b"\n")) if not _is_json_string(line)), 0)
    raise CorruptArtifactError(
        f"{path}:{chunk.first_row + row + 1:,}", "is not a JSON string", wanted="one JSON string a line", remedy="Scan again."
    )


def _is_json_string(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), str)
    except orjson.JSONDecodeError:
        return False
