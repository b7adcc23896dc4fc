"""What normalisers change, as a space to compare in: bytes folded, with an exact map back to the bytes they came from.

A `Fold` is no tokenizer's normaliser. It makes equal what the normalisers of two tokenizers may have made of one text, and is
applied to both sides alike, so that what is equal afterwards is the same text but for case, marks, blanks or composition.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Fold", "Folded", "fold_of", "folded"]

_MARK = "\u2581"
_MARK_BYTES = _MARK.encode()
_BLANK = 0x20
_CLUSTER = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]+")
_FORMS = {"NFC": "NFC", "NFD": "NFC", "NFKC": "NFKC", "NFKD": "NFKC"}


@dataclass(frozen=True)
class Fold:
    """What is made equal. compose: canonical equivalence; compatible: compatibility equivalence too.

    mark: U+2581 is a blank. clean: controls are nothing, and white space is blanks. one_blank: a run of blanks is one, and none
    begins or ends a text; no_blanks: there are none. no_prefix: no blank begins a text, nor what follows an added token.
    """

    compose: bool = False
    compatible: bool = False
    lower: bool = False
    no_accents: bool = False
    mark: bool = False
    clean: bool = False
    one_blank: bool = False
    no_blanks: bool = False
    no_prefix: bool = False

    def __or__(self, other: Fold) -> Fold:
        """Make equal what either makes equal."""
        return Fold(*(mine or theirs for mine, theirs in zip(_values(self), _values(other), strict=True)))

    def __bool__(self) -> bool:
        return any(_values(self))


def _values(fold: Fold) -> tuple[bool, ...]:
    return (
        *(fold.compose, fold.compatible, fold.lower, fold.no_accents, fold.mark),
        *(fold.clean, fold.one_blank, fold.no_blanks, fold.no_prefix),
    )


class Folded(NamedTuple):
    """content: uint8, the folded bytes. places: int64 [bytes + 1], four times the place in them of each place in what was folded.

    A place inside of a character that was changed has no counterpart: it is four times where that begins, plus `side` (1 or 2).
    So places of two sides are equal only where both are counterparts of the same place.
    """

    content: npt.NDArray[np.uint8]
    places: npt.NDArray[np.int64]

    def place(self, unfolded: int) -> int:
        """Return where in `content` that is which stands at a place of what was folded."""
        return int(self.places[unfolded]) // 4


def fold_of(definition: dict[str, Any]) -> Fold:
    """Work out from a parsed tokenizer.json (vocabulary not needed) what its normaliser and pre-tokenizer do to texts."""
    fold = Fold()
    for node in _nodes(definition.get("normalizer"), "normalizers"):
        fold |= _normalizer_fold(node)
    for node in _nodes(definition.get("pre_tokenizer"), "pretokenizers"):
        kind = node.get("type")
        if kind in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "CharDelimiterSplit"):
            fold |= Fold(no_blanks=True)
        elif kind == "Metaspace":
            fold |= Fold(mark=True, no_prefix=node.get("prepend_scheme", "always") != "never")
        elif kind == "ByteLevel" and node.get("add_prefix_space"):
            fold |= Fold(no_prefix=True)
    if definition["model"].get("type") in ("WordPiece", "WordLevel"):
        fold |= Fold(no_blanks=True)
    return fold


def _normalizer_fold(node: dict[str, Any]) -> Fold:
    kind = node.get("type")
    if kind in _FORMS:
        return Fold(compose=True, compatible=_FORMS[kind] == "NFKC")
    if kind == "BertNormalizer":
        accents = node.get("strip_accents")
        lower = bool(node.get("lowercase"))
        return Fold(
            lower=lower, no_accents=lower if accents is None else accents, clean=bool(node.get("clean_text")), no_blanks=True
        )
    if kind in ("Precompiled", "Nmt"):
        return Fold(compose=True, compatible=True, clean=True, one_blank=True)
    if kind == "Replace":
        return _replacement_fold(node)
    return {
        "Lowercase": Fold(lower=True),
        "StripAccents": Fold(no_accents=True),
        "Strip": Fold(one_blank=True),
        "Prepend": Fold(no_prefix=True),
    }.get(str(kind), Fold())


def _replacement_fold(node: dict[str, Any]) -> Fold:
    content, pattern = node.get("content", ""), node.get("pattern", {})
    if content == _MARK and pattern.get("String") == " ":
        return Fold(mark=True)
    regex = str(pattern.get("Regex", ""))
    if content in ("", " ", _MARK) and (" " in regex or _MARK in regex or r"\s" in regex):
        return Fold(one_blank=True)
    return Fold(clean=True, compatible=True, compose=True)


def _nodes(node: dict[str, Any] | None, children: str) -> list[dict[str, Any]]:
    if node is None:
        return []
    if node.get("type") == "Sequence":
        return [leaf for child in node.get(children) or [] for leaf in _nodes(child, children)]
    return [node]


def folded(content: bytes, fold: Fold, *, side: int, sections: Sequence[int] = (0,)) -> Folded:
    """Fold bytes, valid UTF-8 or not. sections: the places where a text begins: at the start and after each added token."""
    array = np.frombuffer(content, dtype=np.uint8)
    if _may_change(content, fold):
        array, places = _characters_folded(content, fold, side)
    else:
        places = np.arange(len(content) + 1, dtype=np.int64) * 4
    if fold.no_blanks or fold.one_blank or fold.no_prefix:
        array, places = _without_blanks(array, places, fold, [int(places[section]) // 4 for section in sections])
    return Folded(array, places)


def _may_change(content: bytes, fold: Fold) -> bool:
    """Tell whether folding characters may change these bytes at all; most texts are in composed form."""
    if fold.lower or fold.clean or fold.no_blanks or fold.no_accents:
        return True
    if content.isascii():
        return False
    if fold.mark and _MARK_BYTES in content:
        return True
    if not (fold.compose or fold.compatible):
        return False
    return not unicodedata.is_normalized("NFKC" if fold.compatible else "NFC", content.decode("utf-8", "surrogateescape"))


def _characters_folded(content: bytes, fold: Fold, side: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Fold character by character; where nothing changes, bytes stay bytes."""
    text = content.decode("utf-8", "surrogateescape")
    table = _ascii_table(fold)
    pieces: list[tuple[bytes, npt.NDArray[np.int64]]] = []
    done = 0
    for cluster in _CLUSTER.finditer(text):
        pieces.append(_ascii_folded(text[done : cluster.start()], table))
        raw = cluster.group().encode("utf-8", "surrogateescape")
        if _may_change(raw, fold):
            pieces.extend(_segment_folded(segment, fold, side) for segment in _segments(cluster.group()))
        else:
            pieces.append((raw, np.arange(len(raw), dtype=np.int64) * 4))
        done = cluster.end()
    pieces.append(_ascii_folded(text[done:], table))
    lengths = np.array([len(piece) for piece, _ in pieces], dtype=np.int64)
    begins = np.cumsum(lengths) - lengths
    places = [place + 4 * begin for (_, place), begin in zip(pieces, begins.tolist(), strict=True)]
    folded_bytes = b"".join(piece for piece, _ in pieces)
    end = np.array([4 * len(folded_bytes)], dtype=np.int64)
    return np.frombuffer(folded_bytes, dtype=np.uint8), np.concatenate([*places, end])


def _ascii_folded(text: str, table: tuple[bytes, bytes]) -> tuple[bytes, npt.NDArray[np.int64]]:
    translation, deleted = table
    content = text.encode("ascii")
    if not deleted:
        return content.translate(translation), np.arange(len(content), dtype=np.int64) * 4
    stays = np.frombuffer(content.translate(_membership(deleted)), dtype=np.uint8).astype(np.int64)
    return content.translate(translation, deleted), (np.cumsum(stays) - stays) * 4


@lru_cache(maxsize=32)
def _ascii_table(fold: Fold) -> tuple[bytes, bytes]:
    """Return what each ASCII byte becomes, and which vanish."""
    translation, deleted = bytearray(range(256)), bytearray()
    for byte in range(128):
        character = _folded_text(chr(byte), fold)
        if character:
            translation[byte] = ord(character)
        else:
            deleted.append(byte)
    return bytes(translation), bytes(deleted)


@lru_cache(maxsize=32)
def _membership(deleted: bytes) -> bytes:
    return bytes(byte not in deleted for byte in range(256))


@lru_cache(maxsize=1 << 16)
def _segment_folded(segment: str, fold: Fold, side: int) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Fold a base character with its marks. Places but the last."""
    before = segment.encode("utf-8", "surrogateescape")
    after = _folded_text(segment, fold).encode("utf-8", "surrogateescape")
    if before == after:
        return before, np.arange(len(before), dtype=np.int64) * 4
    places = np.full(len(before), side if after else 0, dtype=np.int64)
    places[0] = 0
    return after, places


def _folded_text(text: str, fold: Fold) -> str:
    if fold.mark:
        text = text.replace(_MARK, " ")
    if fold.compose or fold.compatible or fold.no_accents:
        text = unicodedata.normalize("NFKD" if fold.compatible else "NFD", text)
    if fold.no_accents:
        text = "".join(character for character in text if unicodedata.category(character) != "Mn")
    if fold.lower:
        text = text.lower()
    if fold.clean or fold.no_blanks:
        text = "".join(" " if _is_blank(character) else character for character in text)
    if fold.clean:
        text = "".join(character for character in text if unicodedata.category(character) not in ("Cc", "Cf", "Cn", "Co"))
        text = text.replace("\ufffd", "")
    if fold.no_blanks:
        text = text.replace(" ", "")
    if fold.compose or fold.compatible or fold.no_accents:
        text = unicodedata.normalize("NFKC" if fold.compatible else "NFC", text)
    return text


def _is_blank(character: str) -> bool:
    return character in "\t\n\r" or (character.isspace() and unicodedata.category(character) != "Cc")


def _segments(cluster: str) -> list[str]:
    """Split at the characters that no normal form joins with what is before them."""
    segments: list[str] = []
    start = 0
    for position in range(1, len(cluster)):
        if not _joins(cluster[position]):
            segments.append(cluster[start:position])
            start = position
    segments.append(cluster[start:])
    return segments


@lru_cache(maxsize=1 << 16)
def _joins(character: str) -> bool:
    first = unicodedata.normalize("NFKD", character)[0]
    return (
        unicodedata.combining(first) != 0
        or unicodedata.category(first)[0] == "M"
        or 0x1160 <= ord(first) <= 0x11FF
        or 0xD7B0 <= ord(first) <= 0xD7FF
    )


def _without_blanks(
    content: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], fold: Fold, sections: list[int]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Take blanks out that some tokenizers don't keep."""
    blank = content == _BLANK
    stays = ~blank if fold.no_blanks else np.ones(len(content), dtype=np.bool_)
    if fold.one_blank:
        stays[1:] &= ~(blank[1:] & blank[:-1])
        end = len(content)
        while end and blank[end - 1]:
            end -= 1
        stays[end:] = False
    if fold.no_prefix or fold.one_blank:
        starts = np.array([section for section in sections if section < len(content)], dtype=np.int64)
        stays[starts[blank[starts]]] = False
    if stays.all():
        return content, places
    kept_before = np.zeros(len(content) + 1, dtype=np.int64)
    np.cumsum(stays, out=kept_before[1:])
    moved = 4 * kept_before[places // 4] + places % 4
    # A place inside of a character that is gone now is where the next one begins.
    return content[stays], np.minimum.accumulate(moved[::-1])[::-1]
