"""How many tokens start in a stretch of a text, without tokenizing all of it.

A token starts at the character that the tokenizers library gives as its first; tokens that share a character (byte-level BPE makes
several of one) all start there. Every token starts at one character, so the windows that partition a text add up to its tokens.

A window is tokenized from the last safe position before it to the first one after it (`SafeCuts`), and its count is exact. One more
character is taken before it, so that what a tokenizer puts before a text lands on the far side of the position.

A long window is cut at the first safe position in it and the last one. Of what is between them only the number of tokens is
wanted, which is much faster had than where they start.

Where no such position is in reach (a long run of letters, of blanks, of pictographs), or the tokenizer's structure is none that is
known, the stretch begins and ends between a word and a blank, or else anywhere, with a context on both sides: what happens at its
ends reaches a few tokens far as a rule, not always.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.errors import SpecError
from zephon_core.ratios.counting.cuts import SafeCuts
from zephon_core.ratios.counting.lengths import TokenLengths, refuse_surrogates
from zephon_core.tokenizers import Tokenizer
from zephon_core.tokenizers.huggingface import small_batches

__all__ = ["WindowCounter"]

_NEAR_CHARACTERS = 128
_REACH_CHARACTERS = 4096
_WORTH_CUTTING_CHARACTERS = 512
_CONTEXT_CHARACTERS = 64
_BLIND_CONTEXT_CHARACTERS = 512
_WORD_END = re.compile(r"(?<=\w) ")


class _Stretch(NamedTuple):
    """Of window `row`, characters begin to end of its text, to be tokenized; tokens count that start from first to stop."""

    row: int
    begin: int
    end: int
    first: int
    stop: int


class WindowCounter:
    """Counts the tokens that start in stretches of texts. lengths: what counts texts of which all tokens count."""

    def __init__(self, tokenizer: Tokenizer, lengths: TokenLengths | None = None) -> None:
        self._huggingface = tokenizer.huggingface
        self._cuts = SafeCuts(tokenizer)
        self._lengths = lengths or TokenLengths(tokenizer)

    @property
    def exact(self) -> bool:
        """Whether windows are exact wherever a safe position is in reach; else they are nearly so."""
        return self._cuts.known

    def count(self, texts: Sequence[str], starts: Sequence[int], stops: Sequence[int]) -> npt.NDArray[np.int64]:
        """Count, of each text, the tokens that start in its characters starts[i] to stops[i]: int64 [texts].

        Raises SpecError for a window that isn't within its text, FatalCountError for a stretch with a lone surrogate.
        """
        stretches: list[_Stretch] = []
        whole: list[str] = []
        owners: list[int] = []
        for row, (text, start, stop) in enumerate(zip(texts, starts, stops, strict=True)):
            if not 0 <= start <= stop <= len(text):
                raise SpecError("window", f"is {start}:{stop}", wanted=f"a stretch of the text's {len(text):,} characters")
            if start == stop:
                continue
            begin, end = self._begin(text, start), self._end(text, stop)
            refuse_surrogates(text[begin:end], row)
            first, last = self._inner_cuts(text, start, stop)
            if first == last:
                stretches.append(_Stretch(row, begin, end, start, stop))
                continue
            whole.append(text[first:last])
            owners.append(row)
            if start < first:
                stretches.append(_Stretch(row, begin, first, start, first))
            if last < stop:
                stretches.append(_Stretch(row, last, end, last, stop))
        counts = np.zeros(len(texts), dtype=np.int64)
        counts[owners] = self._lengths.count(whole)
        self._add_stretches(texts, stretches, counts)
        return counts

    def _add_stretches(self, texts: Sequence[str], stretches: Sequence[_Stretch], counts: npt.NDArray[np.int64]) -> None:
        remaining = iter(stretches)
        for batch in small_batches([texts[stretch.row][stretch.begin : stretch.end] for stretch in stretches]):
            for encoding, stretch in zip(self._huggingface.encode_batch(batch, add_special_tokens=False), remaining, strict=False):
                first, stop = stretch.first - stretch.begin, stretch.stop - stretch.begin
                last = stretch.end - stretch.begin - 1  # where offsets are trimmed, those of white space may point past it
                counts[stretch.row] += sum(first <= min(offset, last) < stop for offset, _ in encoding.offsets)

    def _inner_cuts(self, text: str, start: int, stop: int) -> tuple[int, int]:
        """Find the first and the last safe position in a window, if what is between them may and should be counted apart."""
        if not self._cuts.halves_add_up or stop - start < _WORTH_CUTTING_CHARACTERS:
            return start, start
        first = self._cuts.after(text, start) if start else 0
        last = self._cuts.before(text, max(start, stop - _NEAR_CHARACTERS), stop) if stop < len(text) else stop
        return (first, last) if first is not None and last is not None and first < last else (start, start)

    def _begin(self, text: str, start: int) -> int:
        """Find where to begin, so that the tokens that start at `start` or later are those of the whole text."""
        if start == 0:
            return 0
        for reach in (_NEAR_CHARACTERS, _REACH_CHARACTERS):
            if (position := self._cuts.before(text, start - reach, start)) is not None:
                return position - 1
        # At a multiple, so that windows in one run of blanks, whose tokens are 2^n long, see the same ones.
        first = max(0, start - _BLIND_CONTEXT_CHARACTERS) // _BLIND_CONTEXT_CHARACTERS * _BLIND_CONTEXT_CHARACTERS
        ends = [match.start() for match in _WORD_END.finditer(text, first, max(first, start - _CONTEXT_CHARACTERS))]
        return ends[-1] if ends else first

    def _end(self, text: str, stop: int) -> int:
        """Find where to end, so that the tokens that start before `stop` are those of the whole text."""
        if stop == len(text):
            return stop
        if (position := self._cuts.after(text, stop)) is not None:
            return position
        last = min(len(text), stop + _BLIND_CONTEXT_CHARACTERS)
        match = _WORD_END.search(text, min(last, stop + _CONTEXT_CHARACTERS), last)
        return match.start() if match else last
