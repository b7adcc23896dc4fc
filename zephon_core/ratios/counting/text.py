"""Rows with one text: how many tokens the training's tokenize step makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from zephon_core.errors import FatalCountError, SpecError
from zephon_core.ratios.counting.fields import MISSING, FieldPath, as_text, kind_of, label, look_up, names_of, parse_path, vote
from zephon_core.ratios.counting.lengths import TokenLengths
from zephon_core.ratios.counting.plans import COUNTED, Count
from zephon_core.ratios.counting.pretokenized import PretokenizedPlan
from zephon_core.ratios.counting.tokenizer import check_length, check_switch, checked_tokenizer, tokenizer_of, tokenizer_sha256
from zephon_core.ratios.counting.windows import WindowCounter
from zephon_core.ratios.datasets.model import BLANK_ROW
from zephon_core.store import ArtifactStore

__all__ = ["MissingFieldMode", "SpecialTokensMode", "TextCounter", "TextPlan", "TextTokenCountingSpec"]

SpecialTokensMode = Literal["bos_eos", "bos", "eos", "none", "tokenizer_default"]
MissingFieldMode = Literal["error", "empty"]

_BRACKETS = {"bos_eos": 2, "bos": 1, "eos": 1, "none": 0}


@dataclass(frozen=True)
class TextTokenCountingSpec:
    """What the training delivers of a row with one text, or with token ids, which are counted as they are.

    tokenizer: folder or file. field: dotted path of the text; None: found by a vote over a data set's first rows.
    special_tokens: which of them a document gets, and as many are counted, whether the tokenizer names any or the training is given
    ids for them; tokenizer_default: those of its own post-processor.
    max_length: longest row in tokens, specials included. It counts for `truncation` (the rest of a longer row is lost, the specials
    stay) and `split_long_samples` (a longer row becomes several: no token is lost, and the specials land once a document); with
    neither it is without effect, as in the training.
    missing_field: what the training does with a row that lacks the field: stop, or take an empty text for it.

    Raises SpecError for settings that don't fit together.
    """

    tokenizer: str | Path
    field: str | None = None
    special_tokens: SpecialTokensMode = "bos_eos"
    max_length: int | None = None
    truncation: bool = False
    split_long_samples: bool = False
    missing_field: MissingFieldMode = "error"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokenizer", checked_tokenizer(self.tokenizer))
        if self.field is not None:
            parse_path(self.field)
        for name, modes in (("special_tokens", SpecialTokensMode), ("missing_field", MissingFieldMode)):
            value = str(getattr(self, name))
            if value not in get_args(modes):
                raise SpecError(name, f"is {value!r}", wanted=" or ".join(get_args(modes)))
            object.__setattr__(self, name, value)
        check_length(self.max_length, least=1)
        check_switch("truncation", self.truncation)
        check_switch("split_long_samples", self.split_long_samples)
        if self.truncation and self.split_long_samples:
            raise SpecError("truncation", "is set, and so is split_long_samples", wanted="one of them at most")
        if self.max_length is None and (self.truncation or self.split_long_samples):
            raise SpecError("max_length", "is not set", wanted="the longest row in tokens, to truncate or split at")
        self._check_room(_BRACKETS.get(self.special_tokens, 0))

    def identity(self, *, store: ArtifactStore | None = None) -> dict[str, Any]:
        """See `CountingSpec.identity`. Of max_length only what can change a count is in it: splitting loses no token."""
        return {
            "kind": "text",
            "tokenizer": tokenizer_sha256(str(self.tokenizer), store),
            "field": self.field,
            "special_tokens": self.special_tokens,
            "truncated_to": self.max_length if self.truncation else None,
            "missing_field": self.missing_field,
        }

    def build_counter(self, *, text_bytes: int = 0, threads: int = 1, store: ArtifactStore | None = None) -> TextCounter:
        """See `CountingSpec.build_counter`. Raises TokenizerError, and SpecError if `max_length` has no room for a token."""
        tokenizer = tokenizer_of(str(self.tokenizer), store)
        specials = _BRACKETS.get(self.special_tokens)
        if specials is None:
            specials = tokenizer.huggingface.num_special_tokens_to_add(False)
            self._check_room(specials)
        lengths = TokenLengths(tokenizer, text_bytes=text_bytes, threads=threads, store=store)
        return TextCounter(self, lengths, WindowCounter(tokenizer, lengths), int(specials))

    def _check_room(self, specials: int) -> None:
        if self.truncation and self.max_length is not None and specials and self.max_length <= specials:
            raise SpecError("max_length", f"is {self.max_length}", wanted=f"room for more than the {specials} special tokens")


class TextCounter:
    """See `TokenCounter`."""

    def __init__(self, spec: TextTokenCountingSpec, lengths: TokenLengths, windows: WindowCounter, specials: int) -> None:
        self._spec = spec
        self._lengths = lengths
        self._windows = windows
        self._specials = specials
        self.encoder = lengths.encoder

    def plan(self, prefix: Sequence[Any]) -> TextPlan | PretokenizedPlan:
        """See `TokenCounter.plan`."""
        field = parse_path(self._spec.field) if self._spec.field is not None else None
        tokens, path = vote(prefix, field)
        if tokens and path is not None:
            return PretokenizedPlan(path)
        return TextPlan(self._spec, path, self._lengths, self._windows, self._specials, seen=names_of(prefix))


class TextPlan:
    """Counts one text a row.

    A row that isn't a mapping is the text itself, whatever the field, as in the training. A null text delivers nothing. Bytes that
    aren't UTF-8, and rows without any text where no field was found, can't be measured. A row that lacks the field, a field
    of another type, and a text with lone surrogates are refused: the training would stop there.
    """

    outputs = COUNTED

    def __init__(
        self,
        spec: TextTokenCountingSpec,
        path: FieldPath | None,
        lengths: TokenLengths,
        windows: WindowCounter,
        specials: int,
        *,
        seen: Sequence[str] = (),
    ) -> None:
        self._path = path
        self._empty_if_missing = spec.missing_field == "empty"
        self._most = spec.max_length - specials if spec.truncation and spec.max_length is not None else None
        self._lengths = lengths
        self._windows = windows
        self.specials = specials
        self.paths = (".".join(path),) if path else None
        self.column = path
        self.text_path = path if self._most is None else None
        has = f", which have {', '.join(seen)}; name the field (--field)" if seen else ""
        self.description = f"text, {label(path)}" if path is not None else f"text, none found in the first rows{has}"

    def count(self, payloads: Sequence[Any]) -> list[Count | None]:
        """See `CountPlan.count`."""
        counts: list[Count | None] = [None] * len(payloads)
        texts, rows = [], []
        name = self._path[0] if self._path and len(self._path) == 1 else None
        for row, payload in enumerate(payloads):
            if name is not None and type(payload) is dict and type(text := payload.get(name)) is str:  # nearly all of them
                texts.append(text)
                rows.append(row)
                continue
            try:
                value = self._value(payload)
            except FatalCountError as error:
                error.position = row
                raise
            if value is None:
                counts[row] = (0,)
            elif (decoded := as_text(value)) is not None:
                texts.append(decoded)
                rows.append(row)
        try:
            delivered = self.count_texts(texts).tolist()
        except FatalCountError as error:
            error.position = rows[error.position]
            raise
        for row, tokens in zip(rows, delivered, strict=True):
            counts[row] = (tokens,)
        return counts

    def count_texts(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """See `CountPlan.count_texts`."""
        return self._lengths.count(texts, most=self._most) + self.specials

    def count_windows(self, texts: Sequence[str], starts: Sequence[int], stops: Sequence[int]) -> npt.NDArray[np.int64]:
        """See `CountPlan.count_windows`."""
        return self._windows.count(texts, starts, stops)

    def count_window(self, text: str, start: int, stop: int) -> int:
        """See `CountPlan.count_window`."""
        return int(self._windows.count([text], [start], [stop])[0])

    def _value(self, payload: Any) -> Any:
        """Return a row's text or bytes, None if it is null; a row without text gives something that is neither."""
        if not isinstance(payload, Mapping):
            return None if payload is BLANK_ROW else payload
        if not self._path:
            return ()
        value = look_up(payload, self._path)
        name = ".".join(self._path)
        if value is MISSING:
            if self._empty_if_missing:
                return ""
            names = ", ".join(sorted(str(key) for key in payload)[:8])  # none of a row of which only this column was read
            raise FatalCountError(
                "row",
                f"has no {name!r}{f', but {names}' if names else ''}",
                remedy="Fix the row, name another field (--field), or set missing_field (--missing-field) to empty.",
            )
        if value is not None and not isinstance(value, str | bytes | bytearray | memoryview):
            remedy = "Fix the row, or name another field (--field)."
            raise FatalCountError("row", f"{name!r} is {kind_of(value)}", wanted="text", remedy=remedy)
        return value
