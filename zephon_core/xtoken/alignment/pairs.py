"""Samples as both sides would read them: tokens, what of them the assistant says, and which piece of content each belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.errors import MissingExtraError, SpecError, ZephonError
from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken.alignment.align import Chunks, align_pairs
from zephon_core.xtoken.alignment.islands import Conversation, Islands, Key, Render, RenderedPieces, placed, render_pieces
from zephon_core.xtoken.alignment.samples import Sample
from zephon_core.xtoken.datums import offsets_of
from zephon_core.xtoken.normalised import folded
from zephon_core.xtoken.vocabulary import ByteSpans, Vocabulary, tabulate

__all__ = ["FRAMING", "Refusal", "SamplePairs", "SideTokens", "tokenize_samples"]

FRAMING = -1
WHOLE: tuple[Key, ...] = (("text",),)
"""The one piece of a plain text."""


class Refusal(NamedTuple):
    """A conversation that a chat template refuses. side: student or teacher. reason: in the template's words."""

    place: str
    side: str
    reason: str


@dataclass(frozen=True, eq=False)
class SideTokens:
    """One side's tokens of many samples. ids: int64, flat. offsets: int64 [samples + 1]. texts: what was tokenized, as UTF-8.

    piece_keys: for each sample the places of its pieces of content. pieces: int32, one a token, which of them it reaches into, or
    FRAMING.
    """

    vocabulary: Vocabulary
    ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    texts: Sequence[bytes]
    piece_keys: Sequence[Sequence[Key]]
    pieces: npt.NDArray[np.int32]

    def spans(self, sample: int) -> ByteSpans:
        """Lay the bytes of one sample's tokens out."""
        return self.vocabulary.spans(self.ids[self.of(sample)])

    def of(self, sample: int) -> slice:
        """Where one sample's tokens lie."""
        return slice(int(self.offsets[sample]), int(self.offsets[sample + 1]))


@dataclass(frozen=True, eq=False)
class SamplePairs:
    """Samples on both sides. loss: bool, one a student token: what the assistant says, or all of a text, but never position 0.

    islands: of conversations, None for texts. chunks: how they align. refused: those that are not among the samples.
    """

    samples: Sequence[Sample]
    student: SideTokens
    teacher: SideTokens
    islands: Sequence[Islands | None]
    loss: npt.NDArray[np.bool_]
    chunks: Chunks
    refused: Sequence[Refusal]


def tokenize_samples(
    samples: Sequence[Sample],
    student: Tokenizer,
    teacher: Tokenizer,
    student_template: Render | None,
    teacher_template: Render | None,
) -> SamplePairs:
    """Render and tokenize samples for both sides, without special tokens but those that templates write, and align them.

    A token that reaches into what the assistant says carries loss. Raises SpecError for a conversation without both templates.
    """
    kept: list[Sample] = []
    islands: list[Islands | None] = []
    refused: list[Refusal] = []
    for sample in samples:
        if isinstance(sample.content, str):
            kept.append(sample)
            islands.append(None)
            continue
        sides: list[RenderedPieces] = []
        for side, template in (("student", student_template), ("teacher", teacher_template)):
            rendered = _rendered(sample.place, sample.content, side, template)
            if isinstance(rendered, Refusal):
                refused.append(rendered)
                break
            sides.append(rendered)
        else:
            kept.append(sample)
            islands.append(Islands(*sides))
    ours = _tokenized(student, kept, [each.student if each else None for each in islands])
    theirs = _tokenized(teacher, kept, [each.teacher if each else None for each in islands])
    loss = _loss(ours, islands)
    chunks = align_pairs(
        *(ours.vocabulary, ours.ids, ours.offsets),
        *(theirs.vocabulary, theirs.ids, theirs.offsets),
        loss=loss,
        islands=islands if any(islands) else None,
    )
    return SamplePairs(kept, ours, theirs, islands, loss, chunks, refused)


def _rendered(place: str, conversation: Conversation, side: str, template: Render | None) -> RenderedPieces | Refusal:
    if template is None:
        remedy = f"Give {side}_template, or texts in place of conversations."
        raise SpecError(f"{side}_template", f"is missing, and {place} is a conversation", remedy=remedy)
    try:
        return render_pieces(template, conversation)
    except (MissingExtraError, SpecError):  # there is no template to ask
        raise
    except Exception as error:  # a template is somebody else's program, and what it raises is what is to be found out
        found = error.found if isinstance(error, ZephonError) else str(error)
        return Refusal(place, side, " ".join(found.split()) or type(error).__name__)


def _tokenized(tokenizer: Tokenizer, samples: Sequence[Sample], rendered: Sequence[RenderedPieces | None]) -> SideTokens:
    texts = [_text(sample) if each is None else each.text for sample, each in zip(samples, rendered, strict=True)]
    encoded = tokenizer.encode_batch([text.decode("utf-8") for text in texts])
    ids, offsets = encoded.ids.astype(np.int64), offsets_of(encoded.lengths.astype(np.int64))
    vocabulary = tabulate(tokenizer)
    pieces = np.zeros(len(ids), dtype=np.int32)
    keys: list[Sequence[Key]] = []
    for number, each in enumerate(rendered):
        keys.append(WHOLE if each is None else tuple(each.pieces))
        if each is not None:
            tokens = slice(int(offsets[number]), int(offsets[number + 1]))
            pieces[tokens] = _pieces_of_tokens(vocabulary, ids[tokens], each)
    return SideTokens(vocabulary, ids, offsets, texts, keys, pieces)


def _text(sample: Sample) -> bytes:
    return sample.content.encode("utf-8") if isinstance(sample.content, str) else b""


def _loss(student: SideTokens, islands: Sequence[Islands | None]) -> npt.NDArray[np.bool_]:
    loss = np.ones(len(student.ids), dtype=np.bool_)
    for number, each in enumerate(islands):
        if each is not None:
            tokens = student.of(number)
            spoken = np.array([key in each.student.spoken for key in student.piece_keys[number]] + [False], dtype=np.bool_)
            loss[tokens] = spoken[student.pieces[tokens]]  # FRAMING is the last
    begins = student.offsets[:-1]
    loss[begins[begins < student.offsets[1:]]] = False
    return loss


def _pieces_of_tokens(vocabulary: Vocabulary, ids: npt.NDArray[np.int64], rendered: RenderedPieces) -> npt.NDArray[np.int32]:
    """Tell which piece each token reaches into, of two the later. One without bytes stands for what its neighbours leave."""
    spans = vocabulary.spans(ids)
    text_marks = np.full(len(rendered.text), FRAMING, dtype=np.int32)
    for number, (start, end) in enumerate(rendered.pieces.values()):
        text_marks[start:end] = number
    if spans.content.tobytes() == rendered.text:
        starts, marks = spans.starts, text_marks
        left_out = np.zeros((len(starts), 2), dtype=np.int64)
    else:
        mine = folded(spans.content.tobytes(), vocabulary.fold, side=1, sections=spans.sections())
        text = folded(rendered.text, vocabulary.fold, side=2)
        starts = mine.places[spans.starts] // 4
        text_marks = np.repeat(text_marks, np.diff(text.places // 4))
        in_text = np.full(len(mine.content), -1, dtype=np.int64)
        for place, other, length in placed(mine.content, text.content).tolist():
            in_text[place : place + length] = np.arange(other, other + length)
        marks = np.append(text_marks, np.int32(FRAMING))[in_text]
        left_out = _left_out(in_text, len(text.content))[starts]
    pieces = np.full(len(ids), FRAMING, dtype=np.int32)
    some = starts[1:] > starts[:-1]
    if some.any():
        pieces[some] = np.maximum.reduceat(marks, starts[:-1][some])
    for token in np.flatnonzero(~some).tolist():
        begin, end = left_out[token].tolist()
        pieces[token] = text_marks[begin:end].max(initial=FRAMING)
    return pieces


def _left_out(in_text: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Find which stretch of the text lies between the bytes before and after each place among the tokens' bytes: int64 [., 2]."""
    before = np.maximum.accumulate(np.append(0, in_text + 1))
    after = np.minimum.accumulate(np.append(np.where(in_text >= 0, in_text, length), length)[::-1])[::-1]
    return np.stack([before, np.maximum(after, before)], axis=1)
