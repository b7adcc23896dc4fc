"""Token-budget batches for torch's loaders and checkpoints: a batch sampler whose state is exact whatever was prefetched.

A loader with workers asks for batches long before they are trained on. What it asked for is issued; what a finished training
step consumed is committed, and only `commit` knows that. So `state_dict` holds what is committed, and the iterator, which
torchdata's StatefulDataLoader saves with every batch that it asks for, holds what is issued: that loader puts back the iterator
as it was when it asked for the last batch that it has given out.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zephon_core.batching.plan_cursor import GlobalBatchCursor
from zephon_core.batching.token_sampler import StatefulTokenBatchSampler
from zephon_core.errors import MissingArtifactError, MissingExtraError, SpecError, StateError

try:
    from torch.utils.data import Sampler
except ImportError as error:
    raise MissingExtraError("torch", "is not installed", remedy="pip install torch.") from error

__all__ = ["BatchIterator", "TokenBatchSampler", "read_checkpoint", "read_states"]

Source = StatefulTokenBatchSampler | GlobalBatchCursor

_EVERY_RANK = "every-rank"
_LOADER_ITERATOR = "_sampler_iter_state"
_LOADER_SNAPSHOT = "_snapshot"
_LOADER_MAIN = "_main_snapshot"
_LOADER_SINCE = "_steps_since_snapshot"


class TokenBatchSampler(Sampler[list[int]]):
    """The batches of one data rank as lists of example numbers, for `DataLoader(batch_sampler=…)`.

    source: a rank's `StatefulTokenBatchSampler`, or its `GlobalBatchCursor`; it belongs to this object from now on.

        for epoch in range(batches.epoch, epochs):
            batches.set_epoch(epoch)
            for batch in loader:
                …                   # one training step
                batches.commit()

    An iterator begins after the last committed batch, so what a loader had asked for when it was given up comes again. Only
    the latest iterator goes on. Of a `GlobalBatchCursor` a batch may be empty: `plan_cursor` says when.

    It is what `torch.distributed.checkpoint` calls Stateful. Its state is one JSON text (two or three kilobytes, whatever the
    number of examples) under a key that names the rank, since a checkpoint keeps one value of each key.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._asked: int | None = None  # the epoch that set_epoch named
        self._ended: int | None = None  # the epoch that an iterator of this object has come to the end of
        self._latest: BatchIterator | None = None
        self._issued = False  # whether anything of the present epoch was

    @property
    def source(self) -> Source:
        """What plans the batches, to look at; `set_epoch` replaces a cursor by one of the epoch's plan."""
        return self._source

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._source.epoch

    def __len__(self) -> int:
        """How many batches are to come, of a `GlobalBatchCursor`. Raises TypeError where only planning them would tell."""
        if isinstance(self._source, GlobalBatchCursor):
            return self._source.remaining_batches
        raise TypeError("batches that are cut as they come have no known number; those of a GlobalBatchCursor do")

    def __iter__(self) -> BatchIterator:
        """Return an iterator over what is left of the epoch. Raises SpecError for an epoch that ended, until `set_epoch`."""
        self._source.rewind_uncommitted()
        if self._ended == self.epoch and self._asked is None and self._source.peek() is None:
            remedy = f"Call set_epoch({self.epoch + 1}) for the next one."
            raise SpecError(f"epoch {self.epoch}", "has ended", wanted="set_epoch before each pass", remedy=remedy)
        self._latest = BatchIterator(self)
        return self._latest

    def commit(self, count: int = 1) -> None:
        """Count the first `count` batches that are issued and not committed as consumed. Raises SpecError for more than those."""
        self._source.commit(count)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iterator is for; naming the present one goes on in it, wherever it is.

        Going on to a later one happens when its first batch is asked for, and raises SpecError there while batches of the present
        one are left or not committed. Of a `GlobalBatchCursor` it is planned then, for which the plan needs its lengths.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise SpecError("epoch", f"is {epoch!r}", wanted="a whole number from 0 on")
        self._asked = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return what is committed, under a key that names the rank."""
        return {_key(self._source): json.dumps(_state(self._source))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where this rank was when the state was saved; what was issued then comes again.

        Raises StateError, naming the difference, for a state of another rank, world, source or setting, and changes nothing then.
        """
        self._source.load_state(_own_state(self._source, state_dict))
        self._ended, self._issued, self._latest = None, False, None

    def _settle(self) -> None:
        """Go to the epoch that was asked for."""
        asked, source = self._asked, self._source
        if asked is None or asked == source.epoch:
            return
        where = f"epoch {source.epoch}"
        if asked < source.epoch:
            raise SpecError(where, "was begun", wanted=f"no way back to {asked}", remedy=f"Begin the loop at epoch {source.epoch}.")
        if source.peek() is not None and (self._issued or not _is_untouched(source)):
            found = f"isn't over: {_words(source)} committed"
            remedy = "Call commit() after each training step, and go through the whole epoch."
            raise SpecError(where, found, wanted=f"its end before epoch {asked}", remedy=remedy)
        self._source, self._issued = _at_epoch(source, asked), False


class BatchIterator(Iterator[list[int]]):
    """One pass over the batches of a `TokenBatchSampler`; its state is what is issued, as if all of it were committed."""

    def __init__(self, batches: TokenBatchSampler) -> None:
        self._batches = batches
        self._begun = self._over = False

    def __next__(self) -> list[int]:
        batches = self._batches
        if batches._latest is not self:
            raise SpecError("iterator", "is out of date: the batches are iterated over anew", wanted="one iterator at a time")
        if not self._begun:
            batches._settle()
            self._begun = True
        plan = None if self._over else batches.source.next_plan()
        if plan is None:
            self._over = True
            batches._ended = batches.epoch
            if batches._asked == batches.epoch:
                batches._asked = None
            raise StopIteration
        batches._issued = True
        indices: list[int] = plan.indices.tolist()
        return indices

    def state_dict(self) -> dict[str, Any]:
        """Return what is issued, under the same key and in the same form as the sampler's state."""
        source = self._batches.source
        return {_key(source): json.dumps(_state(source, issued=True))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on after what was issued when the state was saved. Raises StateError as the sampler does."""
        batches = self._batches
        batches.source.load_state(_own_state(batches.source, state_dict))
        self._begun, self._over = True, batches.source.peek() is None
        if self._over:
            batches._ended = batches.epoch
        elif batches._asked not in (None, batches.epoch):
            found = f"is {batches.epoch} in the state, which is in the middle of it, and set_epoch says {batches._asked}"
            raise StateError("epoch", found, remedy=f"Begin the loop at epoch {batches.epoch}.")


def read_states(state_dicts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the states in what `TokenBatchSampler.state_dict` or `StatefulDataLoader.state_dict` returned on each rank.

    They are what `ConsolidatedTokenBatchState.consolidate` takes, to go on with another world size; of a `GlobalBatchCursor` any
    one of them is what `GlobalBatchCursor.from_state` takes. Raises StateError for anything else.
    """
    states = []
    for state_dict in state_dicts:
        inner = _of_loader(state_dict)
        texts = [text for key, text in inner.items() if _is_key(key)]
        if not texts:
            raise StateError("state", f"holds {', '.join(map(str, inner)) or 'nothing'}", wanted="that of a TokenBatchSampler")
        states += [_document(text) for text in texts]
    return states


def read_checkpoint(folder: str | os.PathLike[str], name: str = "batches") -> list[dict[str, Any]]:
    """Return every rank's state in a folder that `torch.distributed.checkpoint.save({name: sampler, …})` wrote, see `read_states`.

    Needs no process group, and does the same in one. Raises MissingArtifactError where there is no such checkpoint or name in it.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        known = FileSystemReader(folder).read_metadata().state_dict_metadata
    except FileNotFoundError as error:
        raise MissingArtifactError(os.fspath(folder), "holds no checkpoint", wanted="a folder that dcp.save wrote") from error
    found: dict[str, Any] = {key: "" for key in known if key.startswith(f"{name}.") and _is_key(key.removeprefix(f"{name}."))}
    if not found:
        holds = ", ".join(sorted({key.partition(".")[0] for key in known})) or "nothing"
        raise MissingArtifactError(os.fspath(folder), f"holds {holds}", wanted=f"the state of a TokenBatchSampler under {name!r}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(found, checkpoint_id=folder, no_dist=True)
    return [_document(text) for text in found.values()]


def _key(source: Source) -> str:
    """Name a source's state; a cursor's is the same on every rank."""
    if isinstance(source, GlobalBatchCursor):
        return _EVERY_RANK
    return f"rank-{source.sampler.rank}-of-{source.sampler.world_size}"


def _is_key(key: str) -> bool:
    return key == _EVERY_RANK or re.fullmatch(r"rank-\d+-of-\d+", key) is not None


def _state(source: Source, *, issued: bool = False) -> dict[str, Any]:
    """Return a source's state. issued: as if all that is issued were committed."""
    if isinstance(source, GlobalBatchCursor):
        return {**source.state(), "step": source.next_step} if issued else source.state()
    state = source.state("reference")
    if issued:
        state["sampler"]["committed"] = source.sampler.issued
    return state


def _own_state(source: Source, state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Find a source's own state in a state_dict."""
    key = _key(source)
    if key not in state_dict:
        held = ", ".join(each for each in map(str, state_dict) if _is_key(each)) or "no state of a TokenBatchSampler"
        remedy = (
            "To go on with another world size, read every rank's state (read_states, read_checkpoint), consolidate and reshard."
        )
        raise StateError("state", f"holds {held}", wanted=key, remedy=remedy)
    return _document(state_dict[key])


def _document(text: object) -> dict[str, Any]:
    try:
        document = json.loads(text) if isinstance(text, str | bytes) else None
    except ValueError as error:
        raise StateError("state", f"isn't whole JSON ({error})", remedy="It is cut short: take an older checkpoint.") from error
    if not isinstance(document, dict):
        raise StateError("state", f"is a {type(text).__name__}", wanted="JSON text of an object")
    return document


def _of_loader(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the iterator's state in that of a StatefulDataLoader, anything else as it is."""
    snapshot = state_dict.get(_LOADER_SNAPSHOT)
    if isinstance(snapshot, Mapping):
        if since := state_dict.get(_LOADER_SINCE):
            remedy = "Save with snapshot_every_n_steps=1, or the sampler's own state."
            raise StateError("state", f"is {since} batches older than what the loader had given out", remedy=remedy)
        state_dict = snapshot.get(_LOADER_MAIN, {})
    inner = state_dict.get(_LOADER_ITERATOR, state_dict)
    return inner if isinstance(inner, Mapping) else {}


def _is_untouched(source: Source) -> bool:
    """Whether nothing of the present epoch was consumed, in this world or one before it."""
    if isinstance(source, GlobalBatchCursor):
        return not source.plan.recipe.reshards and source.step == 0
    return source.sampler.committed == 0 and source.sampler.saved().carried_consumed == 0


def _words(source: Source) -> str:
    """Say how far a source is."""
    if isinstance(source, GlobalBatchCursor):
        return f"step {source.step} of {source.plan.steps} is the first that isn't"
    return f"{source.sampler.committed} of this rank's {source.sampler.length} examples are"


def _at_epoch(source: Source, epoch: int) -> Source:
    """Return the source at the beginning of a later epoch."""
    if not isinstance(source, GlobalBatchCursor):
        source.start_epoch(epoch)
        return source
    plan = source.plan
    while plan.epoch < epoch:
        plan = plan.next_epoch()
    return GlobalBatchCursor(plan, source.rank)
