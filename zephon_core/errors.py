"""Every exception this library raises on purpose, in one place.

A message says where the trouble is, what was found there, what was wanted instead and what to do about it:

    train.jsonl:1041 (byte 88,213): 'query' is a number, expected text. Fix the row, or set on_bad_row (--on-bad-row) to quarantine.
"""

from __future__ import annotations

__all__ = [
    "ArtifactError",
    "BadRowError",
    "BudgetSpentError",
    "ChatSplitError",
    "ChatTemplateError",
    "CorruptArtifactError",
    "FatalCountError",
    "IncompleteBankError",
    "InputError",
    "LeaseHeldError",
    "LeaseLostError",
    "LengthError",
    "MeasureError",
    "MismatchError",
    "MissingArtifactError",
    "MissingExtraError",
    "ModelError",
    "PoisonError",
    "SourceChangedError",
    "SpecError",
    "StateError",
    "TokenizerError",
    "TransientInputError",
    "WorkerError",
    "ZephonError",
]


class ZephonError(Exception):
    """Base of all errors of this library.

    where: the file, row, field or setting at fault.
    found: what is there, as the predicate of `where` ("is empty", "'query' is a number").
    wanted: what was expected in its place, if that isn't obvious.
    remedy: what the reader can do now, as a full sentence.
    """

    def __init__(self, where: str, found: str, *, wanted: str = "", remedy: str = "") -> None:
        self.where = where
        self.found = found
        self.wanted = wanted
        self.remedy = remedy
        message = f"{where}: {found}"
        if wanted:
            message += f", expected {wanted}"
        message = message.rstrip(".") + "."
        if remedy:
            message += f" {remedy}"
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the four parts, so that errors cross process boundaries whole."""
        return _rebuild, (type(self), self.where, self.found, self.wanted, self.remedy)


def _rebuild(cls: type[ZephonError], where: str, found: str, wanted: str, remedy: str) -> ZephonError:
    return cls(where, found, wanted=wanted, remedy=remedy)


class SpecError(ZephonError, ValueError):
    """A setting is missing, out of bounds, or at odds with another."""


class MissingExtraError(ZephonError, ImportError):
    """An optional package is needed for what was asked; the remedy is its install command."""


class BudgetSpentError(ZephonError):
    """A read would go beyond the bytes that may be read; it wasn't made."""


class InputError(ZephonError):
    """A source can't be used: absent, unreadable, cut short, of an unknown format, or holding no text at all."""


class BadRowError(InputError):
    """One row of a source is broken and `on_bad_row` is `error`."""


class TransientInputError(InputError):
    """A source can't be reached now, and a later try may succeed: I/O, credentials, a file that went away."""


class SourceChangedError(TransientInputError):
    """A source's content is no longer what it was when this run identified it; a later run takes it as it is then."""

    def __init__(
        self,
        where: str,
        found: str = "was changed since this run identified it",
        *,
        wanted: str = "",
        remedy: str = "Run again once nothing writes to it any more.",
    ) -> None:
        super().__init__(where, found, wanted=wanted, remedy=remedy)


class LengthError(InputError, ValueError):
    """An example's length can't be batched: below one, too large to count, or alone beyond a batch's budget."""


class StateError(ZephonError, ValueError):
    """A saved state can't be restored here: unreadable, of another version, or of other data or settings; nothing was changed."""


class ChatTemplateError(ZephonError, ValueError):
    """A conversation can't be rendered: the chat template refuses it, or fails on it.

    position: which of the conversations that were rendered together it is, from 0.
    """

    position = 0


class ChatSplitError(ChatTemplateError):
    """A rendered conversation can't be split into what the assistant says and the rest."""


class FatalCountError(ZephonError, ValueError):
    """A row that the training's tokenize step would refuse as well: going on would only put its crash off.

    position: which of the rows that were counted together it is, from 0.
    """

    position = 0

    def at(self, where: str) -> FatalCountError:
        """Return the same error headed by the place of the row, once that is known."""
        return FatalCountError(where, self.found, wanted=self.wanted, remedy=self.remedy)


class MeasureError(ZephonError):
    """A function of the user's that measures rows, or is replayed on them, failed: the data set can't be measured.

    position: which of the rows that were counted together it failed on, from 0.
    """

    position = 0

    def at(self, where: str) -> MeasureError:
        """Return the same error with the place of the row, once that is known."""
        return MeasureError(f"{self.where}, on {where}", self.found, wanted=self.wanted, remedy=self.remedy)


class TokenizerError(ZephonError):
    """A tokenizer can't be loaded, or two backends disagree on a text."""


class ModelError(ZephonError):
    """A model can't be loaded, or it returned something other than what its contract says."""


class PoisonError(ModelError):
    """Features came out as NaN, infinite or beyond float16, and `allow_poison` is off."""


class WorkerError(ZephonError):
    """A worker process died."""


class ArtifactError(ZephonError):
    """Something in the store, or in a published artifact, is not as it should be."""


class MissingArtifactError(ArtifactError):
    """No artifact where one was named."""


class CorruptArtifactError(ArtifactError):
    """A file of an artifact has another size or checksum than its record says, or its record can't be read."""


class IncompleteBankError(ArtifactError):
    """A bank lacks rows, and the caller did not ask for a partial one."""


class MismatchError(ArtifactError):
    """Work in progress or a bank belongs to other inputs or settings than those given now; the message names the difference."""


class LeaseHeldError(ZephonError):
    """Another live process is doing this work, and waiting was switched off or took too long."""


class LeaseLostError(ZephonError):
    """Another process took over this one's lease, because it stood still for longer than the lease's time to live."""
