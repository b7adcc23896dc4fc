"""The quicktok encoder, made to give the ids of the Hugging Face encoder.

quicktok merges byte pairs by the id of what they become, looks a whole pre-token up in the vocabulary first, and has a
hand-written scanner for each split regex. That gives what a list of merges gives under three conditions, which are met here:

- The list is in the order of its results' ids. Else the tokenizer is refused.
- Every token of the vocabulary is in order: its own bytes, merged, become it, by merges of rising ids. Then two neighbours
  that make up a token got there the one way that leads to it, listed or not: merges across its borders can't have happened,
  and those within it happen in the same order everywhere. Llama 3 has 695 tokens that aren't. They are kept from quicktok, and
  texts that have their bytes anywhere are left to the Hugging Face encoder.
- Both go by the same Unicode tables, and see no added tokens. Texts for which that may not hold are left to it as well.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import struct
import tempfile
import warnings
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon_core.errors import MissingExtraError, TokenizerError
from zephon_core.tokenizers.added_tokens import AddedTokens
from zephon_core.tokenizers.byte_alphabet import BYTE_OF_SYMBOL, SYMBOL_OF_BYTE
from zephon_core.tokenizers.byte_matcher import ByteMatcher, utf8_prefixes
from zephon_core.tokenizers.ragged import RaggedIds, interleaved

if TYPE_CHECKING:
    from zephon_core.tokenizers.huggingface import Backend
    from zephon_core.tokenizers.load import Tokenizer

__all__ = ["IMPORT_VERSION", "QuicktokBackend", "import_into"]

IMPORT_VERSION = 1

# Where encoders go by different versions of Unicode. The tokenizers library normalises by Unicode 9, quicktok by a later one: so
# combining marks of the basic plane newer than that; and of the planes above all but music, mathematics, pictographs and CJK.
_UNSETTLED = (
    (0x07FD, 0x07FD),
    (0x0897, 0x089F),
    (0x08CA, 0x08D3),
    (0x09FE, 0x09FE),
    (0x0C3C, 0x0C3C),
    (0x0D3B, 0x0D3C),
    (0x0EBA, 0x0EBA),
    (0x0ECE, 0x0ECE),
    (0x1715, 0x1715),
    (0x1ABF, 0x1AFF),
    (0x1DF6, 0x1DFA),
    (0xA82C, 0xA82C),
    (0x10000, 0x1CFFF),
    (0x1D800, 0x1EFFF),
    (0x1FB00, 0x1FFFF),
    (0x30000, 0x10FFFF),
)

_ENCODING_NAME = "imported"
_DISORDERLY_NAME = "disorderly.json"
_MOST_DISORDERLY = 4096
_REMEDY = "Set tokenizer_backend: auto, or huggingface."


class QuicktokBackend:
    """Encodes with quicktok what quicktok is known to encode right, and leaves the rest to `reference`.

    folder: one that `import_into` filled for this tokenizer.
    """

    name = "quicktok"

    def __init__(self, tokenizer: Tokenizer, reference: Backend, folder: Path) -> None:
        import quicktok

        self._engine = quicktok.Tokenizer(_ENCODING_NAME, str(folder))
        self._reference = reference
        disorderly: list[str] = json.loads((folder / _DISORDERLY_NAME).read_bytes())
        self._is_for_reference = ByteMatcher(
            [
                *(content.encode() for content in tokenizer.added_tokens.contents),
                *(prefix for block in _UNSETTLED for prefix in utf8_prefixes(*block)),
                *(bytes(BYTE_OF_SYMBOL[symbol] for symbol in token) for token in disorderly),
            ]
        )

    def encode(self, texts: Sequence[str]) -> RaggedIds:
        """See `Backend.encode`."""
        left_out = self._is_for_reference.texts_with(texts)
        if not left_out.any():
            return self._encode_plain(texts)
        parts = []
        lengths = np.empty(len(texts), dtype=np.int64)
        for encode, chosen in ((self._encode_plain, ~left_out), (self._reference.encode, left_out)):
            rows = np.flatnonzero(chosen)
            part = encode([texts[row] for row in rows.tolist()])
            lengths[rows] = part.lengths
            parts.append((rows, part))
        return RaggedIds(interleaved(parts, lengths), lengths.astype(np.int32))

    def _encode_plain(self, texts: Sequence[str]) -> RaggedIds:
        ids, offsets = self._engine.encode_batch(texts, 1, False)
        return RaggedIds(ids, np.diff(offsets).astype(np.int32))


def import_into(folder: Path, tokenizer: Tokenizer) -> None:
    """Fill an empty folder with what quicktok needs to encode for this tokenizer.

    Raises MissingExtraError where quicktok isn't installed, and TokenizerError with the reason where it can't encode for it.
    """
    definition = tokenizer.definition()
    unfit = _unfit(definition)
    disorderly = set() if unfit else _disorderly(definition)
    elsewhere = disorderly.difference(tokenizer.added_tokens.contents)
    if len(disorderly) > _MOST_DISORDERLY or (elsewhere and definition.get("normalizer")):
        unfit = f"{len(disorderly):,} tokens are not made by merges of rising ids"
    if unfit:
        raise TokenizerError(tokenizer.origin, f"is none that quicktok encodes ({unfit})", remedy=_REMEDY)
    _import(_without(definition, disorderly), folder, tokenizer.origin)
    (folder / _DISORDERLY_NAME).write_text(json.dumps(sorted(disorderly)), encoding="ascii")


def _disorderly(definition: dict[str, Any]) -> set[str]:
    """Find the tokens whose own bytes, merged, don't become them, or not by merges of rising ids."""
    from tokenizers.models import BPE

    vocabulary, merges = definition["model"]["vocab"], _merges(definition["model"])
    merging = BPE(vocab=vocabulary, merges=merges)
    disorderly = {token for token in vocabulary if len(merging.tokenize(token)) != 1 and BYTE_OF_SYMBOL.keys() >= set(token)}
    one_way_each = len({left + right for left, right in merges}) == len(merges)
    if not one_way_each or any(max(vocabulary[left], vocabulary[right]) > vocabulary[left + right] for left, right in merges):
        ranks = {pair: rank for rank, pair in enumerate(merges)}
        disorderly.update(token for token in vocabulary if len(token) > 2 and not _rises(token, vocabulary, ranks))
    return disorderly


def _rises(token: str, vocabulary: dict[str, int], ranks: dict[tuple[str, str], int]) -> bool:
    """Whether a token's bytes are merged by rising ids. Always so where they come to a halt: that isn't the question here."""
    parts, last = list(token), -1
    while len(parts) > 1:
        rank, at = min((ranks.get((parts[i], parts[i + 1]), len(ranks)), i) for i in range(len(parts) - 1))
        if rank == len(ranks):
            return True
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if vocabulary[parts[at]] < last:
            return False
        last = vocabulary[parts[at]]
    return True


def _unfit(definition: dict[str, Any]) -> str:
    """Say what rules a tokenizer out for an encoder that merges byte pairs by the id of their result; empty if nothing does."""
    model = definition["model"]
    if model.get("type") != "BPE" or not isinstance(model["vocab"], dict) or BYTE_OF_SYMBOL.keys() - model["vocab"].keys():
        return "no byte-level BPE"
    if model.get("dropout") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "BPE with dropout or affixes"
    if AddedTokens.of(definition).normalized and definition.get("normalizer") is not None:
        return "added tokens are sought in normalised text"
    results = [model["vocab"].get(left + right, -1) for left, right in _merges(model)]
    if -1 in results or any(later < earlier for earlier, later in itertools.pairwise(results)):
        return "merges are not in the order of their results' ids"
    return ""


def _merges(model: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return [(left, right) for left, right in pairs]


def _without(definition: dict[str, Any], tokens: AbstractSet[str]) -> dict[str, Any]:
    """Return the tokenizer with some tokens of its vocabulary put out of reach, and the merges that have to do with them left out.

    quicktok wants ids without gaps, so a token can't just go: it gets bytes that no text has (255 isn't in any UTF-8), and so
    does an id that has no token.
    """
    model = definition["model"]
    byte_255 = SYMBOL_OF_BYTE[255]
    symbols = list(BYTE_OF_SYMBOL)
    fillers = (byte_255 * 3 + "".join(rest) for rest in itertools.product(symbols, repeat=2))
    vocabulary = {next(fillers) if token in tokens else token: token_id for token, token_id in model["vocab"].items()}
    gaps = sorted(set(range(max(vocabulary.values()) + 1)).difference(vocabulary.values()))
    vocabulary |= {next(fillers): token_id for token_id in gaps[:_MOST_DISORDERLY]}
    merges = [(left, right) for left, right in _merges(model) if tokens.isdisjoint((left, right, left + right))]
    return {**definition, "model": {**model, "vocab": vocabulary, "merges": merges}}


def _import(definition: dict[str, Any], folder: Path, origin: str) -> None:
    """Have quicktok's importer write its files. It prints as it does so: nothing of that may reach standard output."""
    try:
        import quicktok
    except ImportError as error:
        raise MissingExtraError("quicktok", "is not installed", remedy="pip install 'zephon-flows[quicktok]'.") from error
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves the file to be closed by the interpreter
        file = Path(temporary) / "tokenizer.json"
        file.write_text(json.dumps(definition), encoding="ascii")  # it reads in the locale's encoding
        try:
            quicktok.import_tokenizer(str(file), _ENCODING_NAME, data_dir=str(folder))
        except (ValueError, RuntimeError, OSError, struct.error) as error:  # its refusals are ValueErrors
            reason = re.sub(r"\s+", " ", str(error)).removeprefix("REFUSED: ")[:160]
            raise TokenizerError(origin, f"is none that quicktok encodes ({reason})", remedy=_REMEDY) from error
