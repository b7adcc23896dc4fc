"""Score sequences with a teacher, block by block, resumably: one logprob a token.

What is done is what the ledger says. Scoring that was stopped anywhere goes on with the missing blocks, which come out as they
would have: the finished file has the same bytes. Any number of processes may score parts of one plan at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from zephon_core.blocks import BlockState, BlockWork, Share, Standing, TokenRows, TokenRowsWriter, read_standing
from zephon_core.blocks.tokens import TOKEN_FILES
from zephon_core.budget import PLAN_VERSION, BlockPlan, exact_blocks
from zephon_core.errors import CorruptArtifactError, InputError, ModelError
from zephon_core.fingerprint import file_sha256
from zephon_core.models import ModelSpec, model_content_sha256, read_model_folder
from zephon_core.progress import NULL_PROGRESS, Progress
from zephon_core.xtoken.score.product import LOGPROBS_NAME, ScoreProduct
from zephon_core.xtoken.score.spec import ScoreRun, ScoreSpec

__all__ = [
    "ScoreOutcome",
    "Scores",
    "open_scores",
    "read_scored",
    "score_plan",
    "score_sequences",
    "score_tokens",
    "write_token_rows",
]

SCORE_VERSION = 1
_UNSETTLED = {"forward": ""}


@dataclass(frozen=True)
class ScoreOutcome:
    """What is scored, and how this run went; JSON-able.

    scored: sequences on record, of which `poison` (by reason) came out as NaN or infinite. complete: all are scored, and none is
    poison. forward: what runs the model. receipt: how far a probe is from plain float32, in nats. The rest is of this run alone.
    """

    sequences: int
    scored: int
    complete: bool
    poison: dict[str, int]
    forward: str
    receipt: dict[str, Any] | None
    devices: list[str] = field(default_factory=list)
    rows_now: int = 0
    tokens_now: int = 0
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    throughput: list[list[float]] = field(default_factory=list)
    damaged_blocks: int = 0


class Scores(Sequence[npt.NDArray[np.float32]]):
    """Logprobs of sequences: `scores[i]` is float32 [tokens of sequence i], NaN for the first token, which nothing precedes.

    logprobs: float32 [tokens of all], end to end; offsets: int64 [sequences + 1].
    """

    def __init__(self, logprobs: npt.NDArray[np.float32], offsets: npt.NDArray[np.int64]) -> None:
        self.logprobs = logprobs
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, place: int) -> npt.NDArray[np.float32]: ...

    @overload
    def __getitem__(self, place: slice) -> list[npt.NDArray[np.float32]]: ...

    def __getitem__(self, place: int | slice) -> npt.NDArray[np.float32] | list[npt.NDArray[np.float32]]:
        if isinstance(place, slice):
            return [self[row] for row in range(*place.indices(len(self)))]
        row = range(len(self))[place]
        return self.logprobs[self.offsets[row] : self.offsets[row + 1]]

    def lists(self) -> Iterator[list[float | None]]:
        """Yield each sequence's logprobs as Python numbers, None where there is none."""
        for row in self:
            yield [None if value != value else value for value in row.tolist()]


def score_sequences(
    model: str | Path | ModelSpec,
    token_ids: Sequence[npt.ArrayLike],
    *,
    max_batch: int = 128,
    token_budget: int = 8192,
    run: ScoreRun | None = None,
    progress: Progress = NULL_PROGRESS,
) -> Scores:
    """Return log p(token | the tokens before it) by a causal language model, for every token of every sequence.

    token_ids: integers [tokens], one array a sequence, as the teacher's own tokenizer gives them. Sequences of exactly equal
    length share a forward pass of up to `max_batch` of them and `token_budget` tokens; log-softmax is in float32, and logits exist
    for some positions at a time. For what must survive a kill, or doesn't fit into memory, use `score_tokens`.
    Raises ModelError, SpecError, InputError; `Scores` never holds NaN but for first tokens: what isn't finite is an error.
    """
    spec = ScoreSpec(
        model=model if isinstance(model, ModelSpec) else ModelSpec(path=str(model)), max_batch=max_batch, token_budget=token_budget
    )
    with tempfile.TemporaryDirectory(prefix="zephon-score-") as folder:
        tokens, work = Path(folder, "tokens"), Path(folder, "scores")
        tokens.mkdir()
        work.mkdir()
        write_token_rows(tokens, token_ids)
        outcome = score_tokens(tokens, spec, work, run=run, progress=progress)
        if outcome.poison:
            raise ModelError(spec.model.path, f"gives logprobs that are none ({_words(outcome.poison)})", remedy="Use float32.")
        return open_scores(work, tokens, in_memory=True)


def write_token_rows(directory: Path, token_ids: Sequence[npt.ArrayLike]) -> None:
    """Write sequences of token ids as `TokenRows` reads them. Raises InputError for one that is empty or holds no ids."""
    rows = [np.asarray(ids) for ids in token_ids]
    for number, row in enumerate(rows):
        if row.ndim != 1 or not len(row) or row.dtype.kind not in "iu" or int(row.min()) < 0 or int(row.max()) >= 1 << 32:
            found = "is empty" if row.ndim == 1 and not len(row) else f"is {row.dtype} {list(row.shape)}"
            raise InputError(f"sequence {number}", found, wanted="token ids, one at least")
    with closing(TokenRowsWriter(directory)) as writer:
        for row in rows:
            writer.append(row, np.array([len(row)]))


def score_plan(lengths: npt.NDArray[np.integer], spec: ScoreSpec) -> BlockPlan:
    """Return the blocks that are scored: sequences of exactly equal length, the longest first."""
    return exact_blocks(lengths, max_batch=spec.max_batch, token_budget=spec.token_budget)


def score_tokens(
    tokens: Path,
    spec: ScoreSpec,
    directory: Path,
    *,
    run: ScoreRun | None = None,
    progress: Progress = NULL_PROGRESS,
    identity: Mapping[str, str] | None = None,
    hash_file: Callable[[Path], str] = file_sha256,
) -> ScoreOutcome:
    """Score the sequences whose ids lie in `tokens` (see `TokenRows`), as far as they aren't scored in `directory` yet.

    Writes logprobs.f32.npy: float32 [tokens of all], end to end, NaN for first tokens and for the whole of a sequence that came
    out as NaN or infinite. identity: SHA-256 of what goes in, under "tokens" and "model"; what is missing is worked out.
    Raises InputError (no sequences), ModelError, SpecError, MismatchError (the directory holds other work), SourceChangedError,
    LeaseHeldError (another process scores this part), WorkerError, ArtifactError (disk full).
    """
    rows = TokenRows(tokens)
    if not len(rows):
        raise InputError(str(tokens), "holds no sequences", wanted="at least one")
    run = run or ScoreRun()
    plan = score_plan(rows.lengths, spec)
    _check_longest(spec, int(plan.lengths[0]))
    state = BlockState.open(directory, _identity(tokens, spec, plan, identity or {}), len(plan), _UNSETTLED)
    product = ScoreProduct(rows, spec, run, state.document["identity"]["model"], hash_file)
    work = BlockWork(plan, rows.lengths, state, product, Share(parts=run.parts, part=run.part), progress)
    work.run()
    return _outcome(work.standing(allow_poison=False), **work.tally.to_json())


def read_scored(directory: Path) -> ScoreOutcome:
    """Read how much is scored in `directory`, finished or not, from its ledgers alone. Raises CorruptArtifactError."""
    standing = read_standing(directory, allow_poison=False)
    if standing is None:
        raise CorruptArtifactError(str(directory), "holds no scores", remedy="Score first.")
    return _outcome(standing)


def open_scores(directory: Path, tokens: Path, *, in_memory: bool = False) -> Scores:
    """Map the finished scores of the sequences in `tokens`. Raises CorruptArtifactError where scoring isn't finished."""
    outcome = read_scored(directory)
    if outcome.scored < outcome.sequences:
        raise CorruptArtifactError(
            str(directory), f"has {outcome.scored:,} of {outcome.sequences:,} sequences", remedy="Score the rest first."
        )
    logprobs = np.load(directory / LOGPROBS_NAME, mmap_mode=None if in_memory else "r")
    offsets = np.load(tokens / TOKEN_FILES[1]).astype(np.int64)
    if len(logprobs) != int(offsets[-1]):
        raise CorruptArtifactError(str(directory), f"holds {len(logprobs):,} logprobs", wanted=f"{int(offsets[-1]):,}")
    return Scores(logprobs, offsets)


def _identity(tokens: Path, spec: ScoreSpec, plan: BlockPlan, known: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that decides the scores, by name."""
    decides = spec.model_dump(mode="json", exclude={"model": {"path"}})
    model = decides.pop("model")
    return {
        "version": [SCORE_VERSION, PLAN_VERSION],
        "work": "score",
        "text_count": plan.row_count,
        "plan": plan.digest(),
        "tokens": known.get("tokens") or file_sha256(tokens / TOKEN_FILES[0]),
        "model": known.get("model") or model_content_sha256(spec.model),
        **decides,
        **model,
    }


def _check_longest(spec: ScoreSpec, longest: int) -> None:
    folder = read_model_folder(spec.model.path)
    if folder.longest_text and longest > folder.longest_text:
        raise ModelError(
            spec.model.path, f"takes sequences of up to {folder.longest_text:,} tokens, and the longest has {longest:,}"
        )


def _outcome(standing: Standing, **this_run: Any) -> ScoreOutcome:
    return ScoreOutcome(
        sequences=standing.row_count,
        scored=standing.rows_done,
        complete=standing.complete,
        poison=standing.poison,
        forward=str(standing.document["forward"]),
        receipt=standing.document["receipt"],
        **this_run,
    )


def _words(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
