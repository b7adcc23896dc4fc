"""The exact bytes of each token of a vocabulary, tabulated once.

They come from the vocabulary itself: byte-level BPE's alphabet, SentencePiece's word mark and byte fallback, WordPiece's
continuations, added tokens' literals. Character offsets have no part in it: published tokenizers report them wrongly.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from zephon_core.errors import TokenizerError
from zephon_core.tokenizers import Tokenizer
from zephon_core.tokenizers.byte_alphabet import BYTE_OF_SYMBOL
from zephon_core.xtoken.datums import offsets_of
from zephon_core.xtoken.normalised import Fold, fold_of, folded

__all__ = ["ByteSpans", "TextSpans", "Vocabulary", "spans_in_text", "tabulate", "token_bytes"]

TEXT, ADDED, UNKNOWN, ABSENT = 0, 1, 2, 3
_NO_PREFIX, _FIRST_PREFIX, _EACH_PREFIX = 0, 1, 2
# Control symbols of SentencePiece models, which a tokenizer.json made of one doesn't list apart.
_CONTROLS = frozenset(("<s>", "</s>", "<pad>", "<bos>", "<eos>", "<cls>", "<sep>", "<mask>"))
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Token bytes by id, in flat arrays: token i's are blob[offsets[i]:offsets[i + 1]].

    blob: uint8. offsets: int64 [size + 1]. kinds: uint8 [size]: a text's token, an added one (special or not: it parts texts), the
    unknown token (whose bytes can't be known), or an id without token. prefix: where the tokenizer puts a blank of its own before a
    text: nowhere (0), at the beginning (1), there and after added tokens (2). fold: what its normaliser changes. marked: it writes
    blanks as word marks.
    """

    blob: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8]
    prefix: int
    fold: Fold
    marked: bool
    content_sha256: str
    origin: str

    def __len__(self) -> int:
        return len(self.kinds)

    def checked(self, ids: Any) -> npt.NDArray[np.int64]:
        """Return ids as an array. Raises TokenizerError for one that the vocabulary has not."""
        array = np.asarray(ids)
        if not array.size:
            return np.empty(0, dtype=np.int64)
        if array.dtype.kind not in "iu":
            raise TokenizerError(self.origin, f"was asked for ids of type {array.dtype}", wanted="whole numbers")
        array = array.astype(np.int64, copy=False)
        outside = (array < 0) | (array >= len(self))
        if not outside.any():
            outside = self.kinds[array] == ABSENT
        if outside.any():
            position = int(np.argmax(outside))
            raise TokenizerError(
                self.origin,
                f"has no token {array[position]}, which stands at position {position}",
                wanted=f"ids of its own, below {len(self)}",
                remedy="Name the tokenizer that gave these ids.",
            )
        return array

    def spans(self, ids: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64] | None = None) -> ByteSpans:
        """Lay the bytes of tokens out. sequences: int64 [sequences + 1], where each begins in ids; one, unless given.

        Raises TokenizerError for an id that the vocabulary has not.
        """
        from zephon_core.xtoken.kernels import SLACK, lay_out, token_bytes_in_all

        ids = self.checked(ids)
        if sequences is None:
            sequences = np.array([0, len(ids)], dtype=np.int64)
        content = np.empty(token_bytes_in_all(ids, self.offsets) + SLACK, dtype=np.uint8)
        starts = np.zeros(len(ids) + 1, dtype=np.int64)
        lay_out(ids, sequences, self.blob, self.offsets, self.kinds, self.prefix, content, starts)
        return ByteSpans(content[: starts[-1]], starts, self.kinds[ids])


@dataclass(frozen=True, eq=False)
class ByteSpans:
    """Sequences of tokens as bytes, end to end. starts: int64 [tokens + 1], where each token begins. kinds: uint8 [tokens]."""

    content: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8]

    @property
    def unknown(self) -> npt.NDArray[np.bool_]:
        """Whether each token's bytes can't be known: bool [tokens]."""
        unknown: npt.NDArray[np.bool_] = self.kinds == UNKNOWN
        return unknown

    def sections(self) -> list[int]:
        """List the places where a text begins: at the start and after each added token. For spans of one sequence."""
        return [0, *self.starts[1:][self.kinds == ADDED].tolist()]


@dataclass(frozen=True, eq=False)
class TextSpans:
    """Where tokens lie in a text's UTF-8 bytes.

    starts: int64 [tokens + 1]. exact: whether their bytes are the text's. Where they aren't, a token that begins inside of a
    character that was changed is given that character's begin, and known is False for it (bool [tokens + 1]).
    """

    starts: npt.NDArray[np.int64]
    known: npt.NDArray[np.bool_]
    exact: bool


_tabulated: WeakKeyDictionary[Tokenizer, Vocabulary] = WeakKeyDictionary()


def tabulate(tokenizer: Tokenizer | Vocabulary) -> Vocabulary:
    """Return the vocabulary of a tokenizer, worked out at the first call."""
    if isinstance(tokenizer, Vocabulary):
        return tokenizer
    vocabulary = _tabulated.get(tokenizer)
    if vocabulary is None:
        vocabulary = _tabulated[tokenizer] = _tabulate(tokenizer)
    return vocabulary


def token_bytes(tokenizer: Tokenizer | Vocabulary, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> list[bytes]:
    """Return the bytes of each token of a whole text: together they are the text's UTF-8, unless a normaliser changed it.

    A blank that the tokenizer itself put before the text is left out. The unknown token has no bytes.
    Raises TokenizerError for an id that the vocabulary has not.
    """
    spans = tabulate(tokenizer).spans(np.asarray(ids))
    content, starts = spans.content.tobytes(), spans.starts.tolist()
    return [content[start:end] for start, end in itertools.pairwise(starts)]


def spans_in_text(tokenizer: Tokenizer | Vocabulary, ids: Sequence[int], text: str) -> TextSpans:
    """Tell where in a text its tokens lie: exactly, or through what the tokenizer's normaliser changes.

    Raises TokenizerError where the tokens aren't the text's even then, naming the first position at which they differ.
    """
    vocabulary = tabulate(tokenizer)
    spans = vocabulary.spans(np.asarray(ids))
    content, tokens = text.encode("utf-8"), spans.content.tobytes()
    if spans.unknown.any():
        position = int(np.argmax(spans.unknown))
        raise TokenizerError(
            vocabulary.origin, f"has no token for what stands at position {position}", wanted="a text without unknowns"
        )
    if content == tokens:
        return TextSpans(spans.starts, np.ones(len(spans.starts), dtype=np.bool_), exact=True)
    mine = folded(tokens, vocabulary.fold, side=1, sections=spans.sections())
    theirs = folded(content, vocabulary.fold, side=2)
    if not np.array_equal(mine.content, theirs.content):
        raise _differs(vocabulary, spans, mine.content, mine.places, theirs.content, theirs.places, content)
    places = mine.places[spans.starts]
    starts = np.searchsorted(theirs.places, places - places % 4, side="right") - 1
    starts = np.where(theirs.places[starts] == places, starts, np.searchsorted(theirs.places, places - places % 4))
    starts[0] = 0
    return TextSpans(starts.astype(np.int64), theirs.places[starts] == places, exact=False)


def _differs(
    vocabulary: Vocabulary, spans: ByteSpans, mine: Any, places: Any, theirs: Any, text_places: Any, text: bytes
) -> TokenizerError:
    shared = min(len(mine), len(theirs))
    unequal = mine[:shared] != theirs[:shared]
    first = int(np.argmax(unequal)) if unequal.any() else shared
    token = int(np.searchsorted(places[spans.starts], 4 * first, side="right")) - 1
    byte = int(np.searchsorted(text_places, 4 * first, side="right")) - 1
    begin = int(np.searchsorted(places, 4 * first, side="right")) - 1
    return TokenizerError(
        f"byte {byte:,} of the text, token {token:,}",
        f"the tokens go on with {spans.content[begin : begin + 16].tobytes()!r}",
        wanted=f"{text[byte : byte + 16]!r}, as the text does",
        remedy=f"Tokenize the text with {vocabulary.origin} anew, or name the tokenizer that gave the tokens.",
    )


def _tabulate(tokenizer: Tokenizer) -> Vocabulary:
    definition = tokenizer.definition()
    model = definition["model"]
    contents: dict[int, bytes] = {}
    decode = _decoder(definition)
    vocab = model["vocab"]
    entries = vocab.items() if isinstance(vocab, dict) else ((entry[0], number) for number, entry in enumerate(vocab))
    numbers = {}
    for token, number in entries:
        contents[number] = decode(token)
        numbers[token] = number
    kinds = np.full(tokenizer.vocab_size, ABSENT, dtype=np.uint8)
    kinds[list(contents)] = TEXT
    marked = _mark_of(definition) is not None
    for token in definition.get("added_tokens") or []:
        number, content = token["id"], token["content"]
        if not token.get("special") and marked and numbers.get(content) == number:
            continue  # a run of word marks among a vocabulary's own tokens stands for blanks, although it is listed as added too
        contents[number] = content.encode("utf-8")
        kinds[number] = ADDED
    if marked and not definition.get("added_tokens"):
        for token, number in numbers.items():
            if token.removeprefix(" ") in _CONTROLS or token.startswith(" "):
                contents[number], kinds[number] = token.removeprefix(" ").encode("utf-8"), ADDED
    unknown = _unknown(model, numbers)
    if unknown is not None:
        contents[unknown] = b""
        kinds[unknown] = UNKNOWN
    ordered = [contents.get(number, b"") for number in range(tokenizer.vocab_size)]
    lengths = np.fromiter(map(len, ordered), dtype=np.int64, count=len(ordered))
    return Vocabulary(
        blob=np.frombuffer(bytearray(b"".join(ordered)), dtype=np.uint8),
        offsets=offsets_of(lengths),
        kinds=kinds,
        prefix=_prefix(definition),
        fold=fold_of(definition),
        marked=marked,
        content_sha256=tokenizer.content_sha256,
        origin=tokenizer.origin,
    )


def _unknown(model: dict[str, Any], numbers: dict[str, int]) -> int | None:
    if model.get("type") == "Unigram":
        unknown: int | None = model.get("unk_id")
        return unknown
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in numbers for byte in range(256)):
        return None  # it never gives the unknown token: where that stands, the text spells it
    token = model.get("unk_token")
    return None if token is None else numbers.get(token)


def _decoder(definition: dict[str, Any]) -> Any:
    """Return the function that gives the bytes of a token of the model's own vocabulary."""
    model = definition["model"]
    if _has(definition, "ByteLevel"):
        suffix = model.get("end_of_word_suffix") or ""
        return lambda token: _byte_level(token.removesuffix(suffix) if suffix else token)
    mark = _mark_of(definition)
    fallback = bool(model.get("byte_fallback"))
    continuing = model.get("continuing_subword_prefix") or "" if model.get("type") in ("WordPiece", "BPE") else ""
    suffix = model.get("end_of_word_suffix") or ""

    def decode(token: str) -> bytes:
        if fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match.group(1), 16)])
        if continuing:
            token = token.removeprefix(continuing)
        if suffix:
            token = token.removesuffix(suffix)
        return (token if mark is None else token.replace(mark, " ")).encode("utf-8", "surrogatepass")

    return decode


def _byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_OF_SYMBOL[symbol] for symbol in token])
    except KeyError:  # a literal among the vocabulary's tokens, which no text's bytes give
        return token.encode("utf-8")


def _has(definition: dict[str, Any], kind: str) -> bool:
    nodes = [definition.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")]
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if node.get("type") == kind:
            return True
        nodes.extend(child for name in ("normalizers", "pretokenizers", "decoders") for child in node.get(name) or [])
    return False


def _mark_of(definition: dict[str, Any]) -> str | None:
    """Return the character that stands for a blank in the vocabulary; None if blanks are blanks, or are in none of its tokens."""
    nodes = [definition.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")]
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if node.get("type") == "Metaspace":
            return str(node.get("replacement", "\u2581"))
        if node.get("type") == "Replace" and node.get("content") == "\u2581" and node["pattern"].get("String") == " ":
            return "\u2581"
        nodes.extend(child for name in ("normalizers", "pretokenizers", "decoders") for child in node.get(name) or [])
    return None


def _prefix(definition: dict[str, Any]) -> int:
    nodes = [definition.get("normalizer"), definition.get("pre_tokenizer")]
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        kind = node.get("type")
        if kind == "Prepend" or (kind == "ByteLevel" and node.get("add_prefix_space")):
            return _EACH_PREFIX
        if kind == "Metaspace":
            scheme = node.get("prepend_scheme") or ("always" if node.get("add_prefix_space", True) else "never")
            return {"never": _NO_PREFIX, "first": _FIRST_PREFIX}.get(scheme, _EACH_PREFIX)
        nodes.extend(child for name in ("normalizers", "pretokenizers") for child in node.get(name) or [])
    return _NO_PREFIX
