"""SentencePiece models, turned into a tokenizer.json; that library isn't needed.

A .model file is a protocol buffer: pieces with scores and types, and settings of the trainer and the normaliser
(sentencepiece_model.proto). BPE there merges the neighbours whose piece has the best score; so the ways to make pieces, in the
order of their scores, are the merges here. Unigram models are the same on both sides. The normaliser becomes NFKC, after what the
model's compiled map does to control characters and blanks, with the rules for blanks around it. The map as a whole isn't used:
the tokenizers library looks up the beginnings of graphemes in it, drops what follows, and may panic over it. Control symbols are
no part of texts, whatever stands in them.

Three differences are left: combining marks in an order of their own or after a character that NFKC takes apart, which it sorts
and composes, and SentencePiece leaves as they are; segmentations of equal score in Unigram models, of which either side takes what
its rounding prefers; and, in Unigram models with bytes to fall back to, `<0x41>` spelt out in a text, which is that byte's token.

What has no exact counterpart is refused: symbols defined by the user, unused pieces, models of words or characters, word marks
at the end of words, other maps of characters.
"""

from __future__ import annotations

import json
import struct
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zephon_core.errors import TokenizerError

__all__ = ["sentencepiece_to_definition"]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_UNIGRAM, _BPE = 1, 2
_MARK = "\u2581"
_MAPS = ("identity", "nfkc", "nmt_nfkc")
# What `nmt_nfkc` makes blanks of or removes; versions of the trainer differ in some of them.
_SPECIAL_CHARACTERS = (
    *range(0x01, 0x20),
    *range(0x7F, 0xA0),
    0x1680,
    *range(0x200B, 0x2010),
    0x2028,
    0x2029,
    0x2581,
    0xFEFF,
    0xFFFD,
)


@dataclass(frozen=True)
class _Piece:
    text: str
    score: float
    kind: int


@dataclass
class _Model:
    """The parts of a ModelProto that decide ids; defaults are those of the format."""

    pieces: list[_Piece] = field(default_factory=list)
    kind: int = _UNIGRAM
    byte_fallback: bool = False
    mark_is_suffix: bool = False
    map_name: str = ""
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


def sentencepiece_to_definition(content: bytes, path: Path) -> bytes:
    """Return the tokenizer.json of a .model file's content. path names it in messages.

    Raises TokenizerError for what is no SentencePiece model, and for one that can't be turned exactly.
    """
    try:
        model = _read_model(content)
    except (ValueError, struct.error, IndexError) as error:
        raise TokenizerError(
            str(path), f"is no tokenizer ({error})", wanted="a tokenizer.json, tiktoken ranks or a SentencePiece model"
        ) from error
    _refuse_inexact(model, path)
    definition: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": _normalizer(model),
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": _decoders(model)},
        "model": _bpe(model) if model.kind == _BPE else _unigram(model),
    }
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode()


def _refuse_inexact(model: _Model, path: Path) -> None:
    kinds = {piece.kind for piece in model.pieces}
    unknown = [piece for piece in model.pieces if piece.kind == _UNKNOWN]
    problem = ""
    if len(unknown) != 1:
        problem = "has no unknown piece" if model.pieces else "holds no pieces"
    elif model.kind not in (_UNIGRAM, _BPE):
        problem = "is a model of whole words or characters"
    elif _USER_DEFINED in kinds or _UNUSED in kinds:
        problem = "has symbols defined by the user" if _USER_DEFINED in kinds else "has unused pieces"
    elif model.charsmap and model.map_name not in _MAPS:
        problem = f"normalises by a map called {model.map_name!r}"
    elif model.mark_is_suffix or not model.escape_whitespaces:
        problem = "marks words in another way than by U+2581 before them"
    if problem:
        raise TokenizerError(
            str(path),
            f"{problem}, and can't be turned into a tokenizer.json exactly",
            remedy="Name the model's folder or its tokenizer.json.",
        )


def _normalizer(model: _Model) -> dict[str, Any]:
    steps = []
    if model.charsmap:
        for content, characters in _special_rules(model.charsmap).items():
            escaped = "".join(rf"\x{{{ord(character):04X}}}" for character in characters)
            steps.append(_replace({"Regex": f"[{escaped}]"}, content))
        steps.append({"type": "NFKC"})
    if model.remove_extra_whitespaces:
        steps.append(_replace({"Regex": r"\A +"}, ""))
        steps.append(_replace({"Regex": " {2,}"}, " "))
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": _MARK})
    steps.append(_replace({"String": " "}, _MARK))
    if model.remove_extra_whitespaces:
        steps.append(_replace({"Regex": rf"{_MARK}+\z"}, ""))
    return {"type": "Sequence", "normalizers": steps}


def _special_rules(charsmap: bytes) -> dict[str, str]:
    """Group the special characters that a map changes by what it makes of them, which NFKC would not."""
    rules: dict[str, str] = {}
    for character in map(chr, _SPECIAL_CHARACTERS):
        content = _look_up(charsmap, character.encode())
        if content is not None and content != unicodedata.normalize("NFKC", character):
            rules[content] = rules.get(content, "") + character
    return rules


def _look_up(charsmap: bytes, key: bytes) -> str | None:
    """Return what a compiled map makes of a key; None if it has no rule for it.

    The map is the size of a double-array trie (uint32), the trie (uint32 units, as Darts-clone has them), and texts that end
    with a zero.
    """
    (size,) = struct.unpack_from("<I", charsmap)
    units = memoryview(charsmap)[4 : 4 + size].cast("I")
    position = 0
    unit = units[0]
    for byte in key:
        position ^= _offset(unit) ^ byte
        unit = units[position]
        if unit & 0x800000FF != byte:
            return None
    if not unit >> 8 & 1:
        return None
    begin = 4 + size + (units[position ^ _offset(unit)] & 0x7FFFFFFF)
    return charsmap[begin : charsmap.index(b"\0", begin)].decode()


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _decoders(model: _Model) -> list[dict[str, Any]]:
    steps = [_replace({"String": _MARK}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if model.add_dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return steps


def _bpe(model: _Model) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": next(piece.text for piece in model.pieces if piece.kind == _UNKNOWN),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": {piece.text: number for number, piece in enumerate(model.pieces)},
        "merges": _merges(model.pieces),
    }


def _merges(pieces: Sequence[_Piece]) -> list[list[str]]:
    """List every way to make a piece of two others, best score first."""
    scores = {piece.text: piece.score for piece in pieces if piece.kind == _NORMAL}
    numbers = {piece.text: number for number, piece in enumerate(pieces)}
    merges = []
    for text, score in scores.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in scores and right in scores:
                merges.append((-score, numbers[text], numbers[left], numbers[right], left, right))
    return [[left, right] for *_, left, right in sorted(merges)]


def _unigram(model: _Model) -> dict[str, Any]:
    return {
        "type": "Unigram",
        "unk_id": next(number for number, piece in enumerate(model.pieces) if piece.kind == _UNKNOWN),
        # Blanks have become marks by then: a piece that begins with one is never found.
        "vocab": [
            [piece.text if piece.kind not in (_CONTROL, _UNKNOWN) else f" {piece.text}", piece.score] for piece in model.pieces
        ],
        "byte_fallback": model.byte_fallback,
    }


def _read_model(content: bytes) -> _Model:
    model = _Model()
    for number, value in _fields(content):
        if number == 1:
            model.pieces.append(_read_piece(_message(value)))
        elif number == 2:
            for inner, setting in _fields(_message(value)):
                if inner == 3:
                    model.kind = _integer(setting)
                elif inner == 24:
                    model.mark_is_suffix = bool(setting)
                elif inner == 35:
                    model.byte_fallback = bool(setting)
        elif number == 3:
            for inner, setting in _fields(_message(value)):
                if inner == 1:
                    model.map_name = _message(setting).decode("utf-8", "replace")
                elif inner == 2:
                    model.charsmap = _message(setting)
                elif inner == 3:
                    model.add_dummy_prefix = bool(setting)
                elif inner == 4:
                    model.remove_extra_whitespaces = bool(setting)
                elif inner == 5:
                    model.escape_whitespaces = bool(setting)
    return model


def _read_piece(content: bytes) -> _Piece:
    text, score, kind = "", 0.0, _NORMAL
    for number, value in _fields(content):
        if number == 1:
            text = _message(value).decode("utf-8")
        elif number == 2:
            (score,) = struct.unpack("<f", _message(value))
        elif number == 3:
            kind = _integer(value)
    return _Piece(text, score, kind)


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a protocol buffer message; the value is a number, or bytes of whatever lies there."""
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ValueError(f"field 0 at byte {position}")
        if wire == 0:
            value, position = _varint(content, position)
            yield number, value
            continue
        if wire == 2:
            length, position = _varint(content, position)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {position}")
        if position + length > len(content):
            raise ValueError(f"it ends before byte {position + length}")
        yield number, content[position : position + length]
        position += length


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError(f"a number without end at byte {position}")


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number in the place of a message")
    return value


def _integer(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a message in the place of a number")
    return value
