"""How many tokens texts have, in bulk: their ids are never read out of the encoder where only their number is wanted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zephon_core.errors import FatalCountError, TokenizerError
from zephon_core.ratios.counting.cuts import SafeCuts
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import Backend, Tokenizer, TokenizerBackend, choose_backend
from zephon_core.tokenizers.huggingface import small_batches

__all__ = ["TokenLengths", "refuse_surrogates"]

_LONG_CHARACTERS = 1 << 20
_CHARACTERS_A_TOKEN = 6
_WORTH_CUTTING = 1.25

# Of the texts that a faster encoder counts, one in so many goes through the reference as well, and one in so many characters.
_CHECK_EACH_TEXTS = 1000
_CHECK_EACH_CHARACTERS = 8 << 20
_CHECK_LONGEST_CHARACTERS = 1 << 16


class TokenLengths:
    """Counts the tokens of texts without special tokens, as the tokenizers library does.

    text_bytes, threads, store: see `CountingSpec.build_counter`. encoder: the name of what counts.
    """

    def __init__(self, tokenizer: Tokenizer, *, text_bytes: int = 0, threads: int = 1, store: ArtifactStore | None = None) -> None:
        chosen = choose_backend(tokenizer, TokenizerBackend.AUTO, text_bytes=text_bytes, threads=threads, store=store)
        self.encoder = chosen.backend.name
        self._huggingface = tokenizer.huggingface
        self._cuts = SafeCuts(tokenizer)
        self._origin = tokenizer.origin
        self._fast: Backend | None = chosen.backend if self.encoder != TokenizerBackend.HUGGINGFACE else None
        self._unchecked_texts = self._unchecked_characters = 0

    def count(self, texts: Sequence[str], *, most: int | None = None) -> npt.NDArray[np.int64]:
        """Count the tokens of each text: int64 [texts]; with `most`, of a longer text only that many.

        Raises FatalCountError for a text that no encoder takes, TokenizerError if a faster one is found to count otherwise.
        """
        try:
            return self._first(texts, most) if most is not None else self._whole(texts)
        except (TypeError, UnicodeEncodeError):
            for position, text in enumerate(texts):
                refuse_surrogates(text, position)
            raise

    def _first(self, texts: Sequence[str], most: int) -> npt.NDArray[np.int64]:
        """Encode no more of a long text than its first tokens need; see `zephon_core.tokenizers.encode_first`."""
        counts = np.zeros(len(texts), dtype=np.int64)
        rows = list(range(len(texts)))
        goals = [most * _CHARACTERS_A_TOKEN] * len(texts)
        while rows:
            ends = [self._end(texts[row], goal) for row, goal in zip(rows, goals, strict=True)]
            found = self._whole([texts[row][:end] for row, end in zip(rows, ends, strict=True)])
            counts[rows] = np.minimum(found, most)
            again = [i for i, row in enumerate(rows) if ends[i] < len(texts[row]) and found[i] < most]
            goals = [2 * ends[i] for i in again]
            rows = [rows[i] for i in again]
        return counts

    def _end(self, text: str, goal: int) -> int:
        return len(text) if len(text) <= goal * _WORTH_CUTTING else self._cuts.after(text, goal) or len(text)

    def _whole(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        if max(map(len, texts), default=0) > _LONG_CHARACTERS:  # its encoding would take a hundred times its size
            pieces = [list(self._cuts.pieces(text, _LONG_CHARACTERS // 4)) for text in texts]
            counts = self._uncut([piece for group in pieces for piece in group])
            return np.array([part.sum() for part in np.split(counts, np.cumsum(list(map(len, pieces)))[:-1])], dtype=np.int64)
        return self._uncut(texts)

    def _uncut(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        if self._fast is None:
            return self._reference(texts)
        counts = self._fast.encode(texts).lengths.astype(np.int64)
        self._check(self._fast, texts, counts)
        return counts

    def _reference(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        counts = np.empty(len(texts), dtype=np.int64)
        row = 0
        for batch in small_batches(texts):
            for encoding in self._huggingface.encode_batch_fast(batch, add_special_tokens=False):
                counts[row] = len(encoding)
                row += 1
        return counts

    def _check(self, fast: Backend, texts: Sequence[str], counts: npt.NDArray[np.int64]) -> None:
        """Count a sample of the texts with the reference as well: by number, and where a stretch of characters is through."""
        for row, text in enumerate(texts):
            self._unchecked_texts += 1
            self._unchecked_characters += len(text)
            if self._unchecked_texts < _CHECK_EACH_TEXTS and self._unchecked_characters < _CHECK_EACH_CHARACTERS:
                continue
            self._unchecked_texts = self._unchecked_characters = 0
            piece = text[:_CHECK_LONGEST_CHARACTERS]
            counted = int(counts[row] if len(piece) == len(text) else fast.encode([piece]).lengths[0])
            if (expected := int(self._reference([piece])[0])) != counted:
                found = f"{fast.name} counts {counted:,} tokens of {text[:80]!r}, huggingface {expected:,}"
                raise TokenizerError(self._origin, found, remedy="Uninstall it, and huggingface counts.")


def refuse_surrogates(text: str, position: int) -> None:
    """Raise FatalCountError for a text that has no UTF-8 form. position: of its row among those counted together."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start:,}), which no tokenizer takes"
        refused = FatalCountError("row", found, remedy="Fix or drop the row.")
        refused.position = position
        raise refused from None
