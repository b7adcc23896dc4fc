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

from zephon_core.batching.options import FOLDER_WANTED, is_whole, refuse_other_type, shown
from zephon_core.batching.plan import GlobalBatchCursor, recipe_of
from zephon_core.batching.sampler import StatefulTokenBatchSampler
from zephon_core.batching.state_fields import refuse_no_states
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
    the latest iterator goes on, and only while nothing but it and `commit` moves the source: once that is rewound, sought or
    restored, or batches are left out, it has to be iterated over anew. Of a `GlobalBatchCursor` a batch may be empty:
    `plan.cursor` says when.

    It is what `torch.distributed.checkpoint` calls Stateful. Its state is one JSON text (two or three kilobytes, whatever the
    number of examples) under a key that names the rank, since a checkpoint keeps one value of each key.
    """

    def __init__(self, source: Source) -> None:
        kinds = (StatefulTokenBatchSampler, GlobalBatchCursor)
        refuse_other_type("source", source, kinds, "a StatefulTokenBatchSampler or a GlobalBatchCursor")
        self._source = source
        self._asked: int | None = None  # the epoch that set_epoch named
        self._ended: int | None = None  # the epoch that an iterator of this object has come to the end of
        self._latest: BatchIterator | None = None
        self._issued = False  # whether anything of the present epoch was
        self._counted = False  # whether anything was committed since the latest iterator began

    @property
    def source(self) -> Source:
        """What plans the batches, to look at; `set_epoch` replaces a cursor by one of the epoch's plan."""
        return self._source

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._source.epoch

    def __len__(self) -> int:
        """How many batches the next iterator gives, of a `GlobalBatchCursor`: those of the epoch that aren't committed.

        After `set_epoch` it plans that epoch if the present one is over. Raises TypeError where only planning them would tell.
        """
        if isinstance(self._source, GlobalBatchCursor):
            over = self._source.step == self._source.plan.steps or (_is_untouched(self._source) and not self._issued)
            if over and self._asked is not None and self._asked > self.epoch:
                self._settle()
                if self._latest is not None and not self._latest._begun:
                    self._latest._stay()
            return self._source.remaining_batches + self._source.issued_batches
        raise TypeError("batches that are cut as they come have no known number; those of a GlobalBatchCursor do")

    def __iter__(self) -> BatchIterator:
        """Return an iterator over what is left of the epoch. Raises SpecError for an epoch that ended, until `set_epoch`."""
        if self._ended == self.epoch and self._asked is None:
            pending = self._source.issued_batches
            if self._source.peek() is None and not pending:
                remedy = f"Call set_epoch({self.epoch + 1}) for the next one."
                raise SpecError(f"epoch {self.epoch}", "has ended", wanted="set_epoch before each pass", remedy=remedy)
            if pending and not self._counted:  # a loader that was given up close to the end has committed something
                found = f"was gone through, and none of its {pending} batches committed"
                remedy = f"Call commit() after each training step; to go through it again, call set_epoch({self.epoch})."
                raise SpecError(f"epoch {self.epoch}", found, wanted="set_epoch before each pass", remedy=remedy)
        self._source.rewind_uncommitted()
        self._counted = False
        self._latest = BatchIterator(self)
        return self._latest

    def commit(self, count: int = 1) -> None:
        """Count the first `count` batches that are issued and not committed as consumed.

        Raises SpecError for more than those, and once the source was moved otherwise than by the latest iterator.
        """
        if self._latest is not None:
            self._latest._check_current()
        self._source.commit(count)
        self._counted = self._counted or count > 0

    def skip(self, batch_ids: Iterable[int]) -> None:
        """Leave out batches of a `GlobalBatchCursor` for good, what is issued and not committed as well; the same on every rank.

        A batch's number is step * world_size + rank; the first step that isn't committed is `source.step`. What a loader has
        prefetched is of no use then: leave its loop, and iterate over it anew. Raises SpecError as `GlobalBatchCursor.skip` does.
        """
        if not isinstance(self._source, GlobalBatchCursor):
            raise SpecError("skip", "is called on batches that are cut as they come", wanted="those of a GlobalBatchCursor")
        self._source.leave_out(batch_ids)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iterator is for; naming the present one goes on in it, wherever it is.

        Going on to a later one happens when its first batch is asked for, and raises SpecError there while batches of the present
        one are left or not committed. Of a `GlobalBatchCursor` it is planned then, for which the plan needs its lengths.
        """
        if not is_whole(epoch, 0):
            raise SpecError("epoch", f"is {shown(epoch)}", wanted="a whole number from 0 on")
        self._asked = int(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return what is committed, under a key that names the rank."""
        return {_key(self._source): json.dumps(_state(self._source))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where this rank was when the state was saved; what was issued then comes again.

        Where only the epoch is another one, a `GlobalBatchCursor`'s plan is made anew, for which it needs its lengths.
        Raises StateError, naming the difference, for a state of another rank, world, source or setting, and changes nothing then.
        """
        self._source = _restored(self._source, _own_state(self._source, state_dict))
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
        self._stay()

    def _stay(self) -> None:
        """Take the source to be where it should be."""
        self._source, self._moves = self._batches.source, self._batches.source.moves

    def _check_current(self) -> None:
        """Raise SpecError if the source isn't where this iterator has left it."""
        if self._source is not self._batches.source or self._moves != self._source.moves:
            found = "is out of date: the batches were moved (rewound, skipped, sought or restored) since it began"
            raise SpecError("iterator", found, remedy="Leave its loop, and iterate over the loader anew.")

    def __next__(self) -> list[int]:
        batches = self._batches
        if batches._latest is not self:
            raise SpecError("iterator", "is out of date: the batches are iterated over anew", wanted="one iterator at a time")
        self._check_current()
        if not self._begun:
            batches._settle()
            self._begun = True
            self._stay()
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
        batches._source = _restored(batches.source, _own_state(batches.source, state_dict))
        self._stay()
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
    for state_dict in refuse_no_states(state_dicts):
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
    refuse_other_type("folder", folder, (str, os.PathLike), FOLDER_WANTED)
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
    return source.state(issued=issued) if isinstance(source, GlobalBatchCursor) else source.state("reference", issued=issued)


def _own_state(source: Source, state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Find a source's own state in a state_dict."""
    _refuse_no_state_dict(state_dict)
    key = _key(source)
    if key not in state_dict:
        held = ", ".join(each for each in map(str, state_dict) if _is_key(each)) or "no state of a TokenBatchSampler"
        remedy = (
            "To go on with another world size, read every rank's state (read_states, read_checkpoint), consolidate and reshard."
        )
        raise StateError("state", f"holds {held}", wanted=key, remedy=remedy)
    return _document(state_dict[key])


def _refuse_no_state_dict(state_dict: object) -> None:
    if not isinstance(state_dict, Mapping):
        raise StateError("state", f"is {shown(state_dict)}", wanted="what state_dict() returned")


def _document(text: object) -> dict[str, Any]:
    try:
        document = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError) as error:
        raise StateError("state", f"isn't whole JSON ({error})", remedy="It is cut short: take an older checkpoint.") from error
    if not isinstance(document, dict):
        raise StateError("state", f"is a {type(text).__name__}", wanted="JSON text of an object")
    return document


def _of_loader(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the iterator's state in that of a StatefulDataLoader, anything else as it is."""
    _refuse_no_state_dict(state_dict)
    snapshot = state_dict.get(_LOADER_SNAPSHOT)
    if isinstance(snapshot, Mapping):
        if since := state_dict.get(_LOADER_SINCE):
            remedy = "Save with snapshot_every_n_steps=1, or the sampler's own state."
            raise StateError("state", f"is {since} batches older than what the loader had given out", remedy=remedy)
        state_dict = snapshot.get(_LOADER_MAIN, {})
        _refuse_no_state_dict(state_dict)
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
    return GlobalBatchCursor(source.plan.of_epoch(epoch), source.rank)


def _restored(source: Source, state: dict[str, Any]) -> Source:
    """Return the source at a state's place; of a plan of another epoch, made anew, if nothing else differs."""
    if isinstance(source, GlobalBatchCursor):
        recipe = recipe_of(state)
        if recipe.epoch != source.epoch and recipe == source.plan.recipe.of_epoch(recipe.epoch):
            source = GlobalBatchCursor(source.plan.of_epoch(recipe.epoch), source.rank)
    source.load_state(state)
    return source
