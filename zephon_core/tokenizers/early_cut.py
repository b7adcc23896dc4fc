r"""Encode no more of a long text than its first ids need, with the ids unchanged.

A text may be cut at position p if the ids of text[:p] are the first ids of the whole text. That holds if each stage works on both
sides of p on its own:

1. Added tokens. They are sought first, leftmost and longest. If none of them occurs across p, those before p are found alike
   with and without the rest of the text. A token that takes white space along (lstrip, rstrip) or asks for a word boundary
   (single_word) is affected from further off: where a tokenizer has such a one, no added token may occur before p or start
   at it, and the character before p is no white space. Tokens that are sought in the normalised text can appear only there:
   with a normaliser, such tokenizers are not cut.
2. Normaliser. NFC (and the NFD within BertNormalizer) acts on both sides of p apart if the character at p has combining class 0
   and never composes with one before it: true of all characters in `_AFTER_LETTERS` and `_AFTER_ANYTHING_IN_BERT` (Unicode's
   stability policy keeps it so). All else that BertNormalizer does is done character by character.
3. Pre-tokenizer. BertPreTokenizer ends a word at white space and around each punctuation mark; BertNormalizer puts blanks around
   each CJK ideograph. In byte-level BPE with one of the split regexes listed here, p stands between a letter (`_LETTERS`)
   and a character that is no letter, mark or apostrophe (`_AFTER_LETTERS`). All that a match of these regexes may
   take after a letter is a letter, a mark, or a contraction's apostrophe: so the match that holds the letter ends at p.
   Every attempt that starts before p and reaches p fails there, on that character as on the end of the text; and the one
   look-ahead (`\s+(?!\S)`) looks past white space only, which the letter isn't. So the matches before p are the same.
   `Digits` splits by the character alone. DeepSeek's splits of digits and CJK match runs of a class, and p is never inside one.
4. Model. WordPiece and BPE (without dropout) see one pre-token at a time. SentencePiece-like BPE sees the whole text as one, with
   a word mark for each blank: there p stands between a letter and a blank, and no token of the vocabulary has a letter (or what
   stands in for an unknown one) and then a word mark. So no merge crosses p, and merges on one side don't wait for the other's.
5. Post-processor. Without special tokens, those allowed here leave the ids as they are.

The letters are of ranges assigned before Unicode 4, so that Python's `re` and the tokenizer's own tables agree on them.
Every other tokenizer structure is encoded whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_core.tokenizers.added_tokens import AddedTokens
from zephon_core.tokenizers.ragged import RaggedIds, interleaved

__all__ = ["RUN_SPLITS", "WORD_SPLITS", "EarlyCut", "FirstIds", "encode_first", "find_early_cut"]

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = _TAIL.replace(r"[\r\n]*", r"[\r\n/]*")

WORD_SPLITS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL,
    "qwen2": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL,
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "o200k": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
        r"|\p{N}{1,3}" + _CASED_TAIL
    ),
    "tekken": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}" + _CASED_TAIL,
    "deepseek": (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        + "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
}
"""Split regexes of byte-level BPE that end a match between a letter and what may follow, as tokenizer.json files have them."""

RUN_SPLITS = {"deepseek_digits": r"\p{N}{1,3}", "deepseek_cjk": "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"}
"""Split regexes that only set runs of one kind of character apart, before one of `WORD_SPLITS` goes over what is left."""

_LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9\u0410-\u044f\u05d0-\u05ea"
    "\u0621-\u063a\u0641-\u064a\u0905-\u0939\u0e01-\u0e2e\u3041-\u3094\u30a1-\u30f4\u4e00-\u9fa5\uac00-\ud7a3"
)
_MARKS_OF_END = "\u060c\u061b\u061f\u06d4\u0964\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"
_AFTER_LETTERS = r" \t\r\n0-9!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~" + _MARKS_OF_END
_AFTER_ANYTHING_IN_BERT = r" \t\r\n!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~" + _MARKS_OF_END

_WORD_MARK = "\u2581"
_WORD_MARK_NODES = (
    {"type": "Prepend", "prepend": _WORD_MARK},
    {"type": "Replace", "pattern": {"String": " "}, "content": _WORD_MARK},
    {"type": "Replace", "pattern": {"Regex": rf"\A{_WORD_MARK}"}, "content": _WORD_MARK * 2},
)

_SEARCH_CHARACTERS = 4096
_CHARACTERS_A_TOKEN = 6
_WORTH_CUTTING = 1.25


@dataclass(frozen=True)
class EarlyCut:
    """Finds where a text can be cut without changing the ids before the cut.

    boundary: a pattern of one character, whose start is a boundary of pre-tokens. added_tokens: see `AddedTokens`.
    """

    boundary: re.Pattern[str]
    added_tokens: AddedTokens

    @cached_property
    def _literals(self) -> re.Pattern[str] | None:
        return self.added_tokens.pattern()

    @cached_property
    def _contents(self) -> frozenset[str]:
        return frozenset(self.added_tokens.contents)

    def find(self, text: str, start: int) -> int | None:
        """Find the first safe position at or after `start` (in characters, at least 1); None if there is none nearby."""
        for match in self.boundary.finditer(text, start, start + _SEARCH_CHARACTERS):
            if not self._added_token_in_the_way(text, match.start()):
                return match.start()
        return None

    def _added_token_in_the_way(self, text: str, position: int) -> bool:
        if self._literals is None:
            return False
        reach = self.added_tokens.longest - 1
        if not self.added_tokens.plain:
            return self._literals.search(text, 0, position + reach + 1) is not None
        first = max(0, position - reach)
        if self._literals.search(text, first, position + reach) is None:
            return False
        across = (text[start:end] for start in range(first, position) for end in range(position + 1, start + reach + 2))
        return not self._contents.isdisjoint(across)


def find_early_cut(definition: dict[str, Any], added_tokens: AddedTokens) -> tuple[EarlyCut | None, str]:
    """Find out how texts may be cut for a tokenizer, and say in words what decided it.

    definition: a parsed tokenizer.json. None means that texts must be encoded whole.
    """
    model, normalizer = definition["model"], definition.get("normalizer")
    if model.get("dropout"):
        return None, "none: BPE dropout"
    if not _keeps_ids(definition.get("post_processor")):
        return None, "none: unknown post-processor"
    if added_tokens.normalized and not _is_nothing(normalizer):
        return None, "none: added tokens are sought in normalised text"
    pre_tokenizer = definition.get("pre_tokenizer") or {}
    if (
        model.get("type") == "WordPiece"
        and (normalizer or {}).get("type") == "BertNormalizer"
        and pre_tokenizer.get("type") == "BertPreTokenizer"
    ):
        ideographs = "\u4e00-\u9fa5" if normalizer and normalizer.get("handle_chinese_chars") else ""
        boundary, kind = rf"(?<=\S)[{_AFTER_ANYTHING_IN_BERT}{ideographs}]", "before white space and punctuation"
    elif model.get("type") == "BPE" and _is_none_or_nfc(normalizer) and _is_byte_level(pre_tokenizer):
        boundary, kind = f"(?<=[{_LETTERS}])[{_AFTER_LETTERS}]", "after a letter"
    elif model.get("type") == "BPE" and _marks_words(normalizer, pre_tokenizer) and _has_no_token_past_a_word(model):
        boundary, kind = f"(?<=[{_LETTERS}]) ", "between a letter and a blank"
    else:
        return None, "none: no structure known to split texts in places that can be told beforehand"
    return EarlyCut(re.compile(boundary), added_tokens), kind


def _is_nothing(normalizer: dict[str, Any] | None) -> bool:
    return normalizer is None or (normalizer.get("type") == "Sequence" and not normalizer.get("normalizers"))


def _is_none_or_nfc(normalizer: dict[str, Any] | None) -> bool:
    if normalizer is None or normalizer.get("type") == "NFC":
        return True
    return normalizer.get("type") == "Sequence" and all(_is_none_or_nfc(part) for part in normalizer.get("normalizers") or [])


def _is_byte_level(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether the pre-tokenizer is made of nodes known here, with one that splits words, and goes to the byte alphabet."""
    nodes = _nodes(pre_tokenizer, "pretokenizers")
    kinds = [_node_kind(node) for node in nodes]
    return "unknown" not in kinds and "words" in kinds and any(node.get("type") == "ByteLevel" for node in nodes)


def _nodes(node: dict[str, Any] | None, parts: str) -> list[dict[str, Any]]:
    if not node:
        return []
    return list(node.get(parts) or []) if node.get("type") == "Sequence" else [node]


def _node_kind(node: dict[str, Any]) -> str:
    """Say what a pre-tokenizer node does to a text: words (splits it into words), runs, nothing, or unknown."""
    if node.get("type") == "ByteLevel":
        return "words" if node.get("use_regex", True) else "nothing"
    if node.get("type") == "Digits":
        return "runs"
    pattern = node.get("pattern")
    if node.get("type") != "Split" or not isinstance(pattern, dict):
        return "unknown"
    regex, handling = pattern.get("Regex"), (node.get("behavior"), bool(node.get("invert")))
    if regex in RUN_SPLITS.values() and handling == ("Isolated", False):
        return "runs"
    # Every character is in a match of these, so that keeping matches is the same as setting them apart.
    matches_kept = handling == ("Isolated", False) or (handling == ("Removed", True) and regex != WORD_SPLITS["deepseek"])
    return "words" if regex in WORD_SPLITS.values() and matches_kept else "unknown"


def _marks_words(normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any]) -> bool:
    """Whether all that happens before the model is that blanks become word marks, and that marks are put before the text."""
    before, after = _nodes(normalizer, "normalizers"), _nodes(pre_tokenizer, "pretokenizers")
    replaced = _WORD_MARK_NODES[1] in before
    metaspace = any(node.get("type") == "Metaspace" and node.get("replacement") == _WORD_MARK for node in after)
    # A split at blanks does nothing where no blank is left.
    idle = [node for node in after if replaced and node.get("type") == "Split" and node.get("pattern") == {"String": " "}]
    known = all(node in _WORD_MARK_NODES for node in before) and all(
        node.get("type") == "Metaspace" or node in idle for node in after
    )
    return known and (replaced or metaspace)


def _has_no_token_past_a_word(model: dict[str, Any]) -> bool:
    """Whether no token has a letter and then a word mark. Unknown letters must leave something behind: it keeps marks apart."""
    vocabulary: dict[str, int] = model["vocab"]
    unknown: str = model.get("unk_token") or ""
    if model.get("ignore_merges") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    if unknown not in vocabulary or _WORD_MARK not in vocabulary:
        return False
    past_a_word = f"(?:[{_LETTERS}]|<0x[0-9A-F]{{2}}>|{re.escape(unknown)}){_WORD_MARK}"
    return re.search(past_a_word, "\n".join(vocabulary)) is None


def _keeps_ids(post_processor: dict[str, Any] | None) -> bool:
    kind = (post_processor or {}).get("type")
    if post_processor is None or kind in ("ByteLevel", "BertProcessing", "RobertaProcessing"):
        return True
    if kind == "Sequence":
        return all(_keeps_ids(part) for part in post_processor.get("processors") or [])
    return kind == "TemplateProcessing" and sum("Sequence" in piece for piece in post_processor.get("single") or []) == 1


class FirstIds(NamedTuple):
    """The first ids of each of many texts.

    ids: uint32 [sum of lengths]. lengths: int32 [texts], at least 1. truncated, empty: bool [texts]: it has more ids; it has
    none, and got the single id 0.
    """

    ids: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.int32]
    truncated: npt.NDArray[np.bool_]
    empty: npt.NDArray[np.bool_]


def encode_first(
    encode: Callable[[Sequence[str]], RaggedIds], texts: Sequence[str], max_tokens: int, cut: EarlyCut | None
) -> FirstIds:
    """Encode each text's first `max_tokens` ids.

    A long text is first encoded up to a safe cut; only if that gives no more than `max_tokens` ids, up to a later one, until
    it gives more or the text is at its end. So the ids, and whether there are more, are those of the whole text.
    """
    rows = np.arange(len(texts))
    goals = [max_tokens * _CHARACTERS_A_TOKEN] * len(texts)
    rounds: list[tuple[npt.NDArray[np.int64], RaggedIds]] = []
    while len(rows) or not rounds:
        prefixes, whole = _prefixes(texts, rows, goals, cut)
        encoded = encode(prefixes)
        rounds.append((rows, encoded))
        again = np.flatnonzero(~whole & (encoded.lengths <= max_tokens))
        goals = [_next_goal(len(prefixes[i]), int(encoded.lengths[i]), max_tokens) for i in again]
        rows = rows[again]
    return _gather(rounds, len(texts), max_tokens)


def _prefixes(
    texts: Sequence[str], rows: npt.NDArray[np.int64], goals: list[int], cut: EarlyCut | None
) -> tuple[list[str], npt.NDArray[np.bool_]]:
    chosen = [texts[row] for row in rows.tolist()] if len(rows) < len(texts) else list(texts)
    whole = np.ones(len(chosen), dtype=np.bool_)
    if cut is not None:
        for i, goal in enumerate(goals):
            if len(chosen[i]) > goal * _WORTH_CUTTING:
                position = cut.find(chosen[i], goal)
                if position is not None:
                    chosen[i] = chosen[i][:position]
                    whole[i] = False
    return chosen, whole


def _next_goal(characters: int, tokens: int, max_tokens: int) -> int:
    return max(2 * characters, characters * (max_tokens + 1) // max(tokens, 1) * 5 // 4)


def _gather(rounds: list[tuple[npt.NDArray[np.int64], RaggedIds]], text_count: int, max_tokens: int) -> FirstIds:
    """Put the texts of all rounds together, each as its last round left it, cut to `max_tokens`."""
    found = np.zeros(text_count, dtype=np.int64)
    for rows, encoded in rounds:
        found[rows] = encoded.lengths
    truncated, empty = found > max_tokens, found == 0
    lengths = np.clip(found, 1, max_tokens)
    unchanged = len(rounds) == 1 and not truncated.any() and not empty.any()
    ids = rounds[0][1].ids if unchanged else interleaved(rounds, lengths)
    return FirstIds(ids, lengths.astype(np.int32), truncated, empty)
