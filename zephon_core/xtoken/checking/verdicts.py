"""What is good and what is bad about a pair of tokenizers, in sentences that say what to do about it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from zephon_core.tokenizers import Tokenizer
from zephon_core.xtoken.advantages import ENOUGH_COVERAGE
from zephon_core.xtoken.alignment import Islands
from zephon_core.xtoken.alignment.islands import Key, RenderedPieces, SaidPiece
from zephon_core.xtoken.alignment.pairs import FRAMING, Refusal, SideTokens
from zephon_core.xtoken.checking.gaps import Cause
from zephon_core.xtoken.normalised import Fold
from zephon_core.xtoken.pictures.charts import many, percent
from zephon_core.xtoken.vocabulary import ADDED, TEXT, UNKNOWN, Vocabulary, tabulate

__all__ = ["Level", "SideFacts", "SideTally", "Verdict", "judge"]

GOOD_COVERAGE = 0.995
COSTLY_SHARE = 0.01
"""What costs more of the loss tokens than this is bad."""

_MARK = re.compile(r"<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>|<(?:start|end)_of_\w+>|<[be]os>")
_SPELLED_PART = re.compile(r"\{'type': 'text', 'text': ['\"]\0|\{'text': ['\"]\0['\"], 'type': 'text'")
"""A part of content as Python shows it, with \0 for its text: what a template makes of a list that it takes for a text."""
_MOST_NAMED = 3
_NOTHING = "There is no text: nothing to judge by."
_FIELDS = {"call": "tool calls"}


class Level(StrEnum):
    """How bad something is. A note is worth knowing and no reason to stop."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


class Verdict(BaseModel):
    """One finding: about what, how bad, in words, and what to do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: str
    level: Level
    found: str
    remedy: str = ""


class SideFacts(BaseModel):
    """What one side's tokenizer is, and what it and its template made of the samples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    origin: str
    content_sha256: str
    model: str = Field(description="BPE, Unigram, WordPiece, …")
    vocab_size: int
    spells_any_byte: bool = Field(description="Whether it has a token for each byte: no text is unknown to it.")
    changes: str = Field(description="What its normaliser does to texts, in words; empty if nothing.")
    begins_with: str = Field(description="What it puts before a text itself where special tokens are wanted, as for example <s>.")
    tokens: int
    bytes: int = Field(description="Bytes of the texts.")
    altered: int = Field(description="Samples without unknown tokens of which its tokens are other bytes than the text's.")
    unknown_tokens: int
    unknown_samples: int
    special_tokens: dict[str, int] = Field(description="Special tokens that stand within content, and how often.")
    refused: int = Field(description="Conversations that its template refuses.")
    refusal: str = Field(description="The first of these, and why.")
    left_out: dict[str, int] = Field(description="What the assistant says that its template doesn't write once, by field: pieces.")
    said_bytes: int = Field(description="Bytes of what the assistant says.")
    left_out_bytes: int = Field(description="Of these, bytes that its template doesn't write once, reasoning aside.")
    forgotten_bytes: int = Field(description="Bytes of reasoning that its template doesn't write once.")
    broken_marks: dict[str, int] = Field(description="Marks of its template that are no token of its vocabulary: conversations.")
    spelled_parts: int = Field(description="Conversations whose lists of parts its template writes as Python shows a list.")
    without_begin: int = Field(description="Conversations that its template doesn't begin with what its tokenizer puts first.")
    begun_twice: int = Field(description="Conversations that begin with it twice.")


class SideTally:
    """Gathers what there is to say of one side, while samples go by."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = tabulate(tokenizer)
        self._begin_ids, self._begin_words = _begin(tokenizer)
        added = tokenizer.structure.get("added_tokens") or []
        self._special = {
            int(token["id"]): str(token["content"])
            for token in added
            if token.get("special") and self._vocabulary.kinds[token["id"]] == ADDED
        }
        self._literals = frozenset(tokenizer.added_tokens.contents)
        self._tokens = self._bytes = self._altered = self._unknown = self._unknown_samples = 0
        self._without_begin = self._begun_twice = 0
        self._spelled_parts = self._said = self._left_out_bytes = self._forgotten = 0
        self._within: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._broken: Counter[str] = Counter()
        self._refusals: list[Refusal] = []
        self._refused = 0

    def refuse(self, refusal: Refusal) -> None:
        """Count a conversation that the template refuses; the first is remembered."""
        self._refused += 1
        if not self._refusals:
            self._refusals.append(refusal)

    def special(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell which tokens are special ones."""
        return np.isin(ids, list(self._special))

    def add(
        self,
        side: SideTokens,
        rendered: Sequence[RenderedPieces | None],
        islands: Sequence[Islands | None],
        said: Sequence[Mapping[Key, SaidPiece]],
    ) -> None:
        """Count a batch. rendered: this side's renderings. said: what the assistant says in each sample."""
        kinds = self._vocabulary.kinds[side.ids]
        self._tokens += len(side.ids)
        self._unknown += int(np.count_nonzero(kinds == UNKNOWN))
        content = side.ids[side.pieces != FRAMING]
        for token_id in np.unique(content).tolist() if self._special else ():
            if token_id in self._special:
                self._within[self._special[token_id]] += int(np.count_nonzero(content == token_id))
        for sample, text in enumerate(side.texts):
            self._bytes += len(text)
            tokens = side.of(sample)
            unknown = bool((kinds[tokens] == UNKNOWN).any())
            self._unknown_samples += unknown
            self._altered += not unknown and side.spans(sample).content.tobytes() != text
            both, mine = islands[sample], rendered[sample]
            if both is not None and mine is not None:
                self._conversation(side.ids[tokens].tolist()[: 2 * len(self._begin_ids)], both, mine, said[sample])

    def _conversation(self, first_ids: list[int], both: Islands, mine: RenderedPieces, said: Mapping[Key, SaidPiece]) -> None:
        begin = self._begin_ids
        self._without_begin += bool(begin) and first_ids[: len(begin)] != begin
        self._begun_twice += bool(begin) and first_ids == 2 * begin
        spoken = both.student.spoken | both.teacher.spoken
        missing = {key[:2] for key in spoken if not any(_related(key, other) for other in mine.pieces)}
        self._left_out.update(_FIELDS.get(str(field), str(field)) for _, field in missing)
        for key, piece in said.items():
            self._said += piece.size
            if not any(_related(key, other) for other in mine.pieces):
                self._forgotten += piece.size * piece.thought
                self._left_out_bytes += piece.size * (not piece.thought)
        framing = _framing(mine)
        self._broken.update(set(_MARK.findall(framing)) - self._literals)
        self._spelled_parts += _SPELLED_PART.search(framing) is not None

    def facts(self) -> SideFacts:
        """Put together what was found."""
        described = self._tokenizer.describe()
        return SideFacts(
            origin=self._tokenizer.origin,
            content_sha256=described["content_sha256"],
            model=described["model"],
            vocab_size=described["vocab_size"],
            spells_any_byte=_spells_any_byte(self._vocabulary),
            changes=_changes(self._vocabulary.fold),
            begins_with=self._begin_words,
            tokens=self._tokens,
            bytes=self._bytes,
            altered=self._altered,
            unknown_tokens=self._unknown,
            unknown_samples=self._unknown_samples,
            special_tokens=dict(self._within.most_common()),
            refused=self._refused,
            refusal="".join(f"{refusal.place}: {refusal.reason}" for refusal in self._refusals),
            left_out=dict(self._left_out.most_common()),
            said_bytes=self._said,
            left_out_bytes=self._left_out_bytes,
            forgotten_bytes=self._forgotten,
            broken_marks=dict(self._broken.most_common()),
            spelled_parts=self._spelled_parts,
            without_begin=self._without_begin,
            begun_twice=self._begun_twice,
        )


def _begin(tokenizer: Tokenizer) -> tuple[list[int], str]:
    """Find what the tokenizer puts before a text where special tokens are wanted: its ids, and in words."""
    whole = tokenizer.huggingface.encode("a")
    bare = tokenizer.huggingface.encode("a", add_special_tokens=False).ids
    length = next((n for n in range(len(whole.ids)) if whole.ids[n : n + len(bare)] == bare), 0)
    return list(whole.ids[:length]), " ".join(whole.tokens[:length])


def _related(key: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return key[: len(other)] == other or other[: len(key)] == key


def _framing(rendered: RenderedPieces) -> str:
    parts, place = [], 0
    for start, end in sorted(rendered.pieces.values()):
        parts.append(rendered.text[place:start])
        place = max(place, end)
    return b"\0".join([*parts, rendered.text[place:]]).decode("utf-8", "replace")


def _spells_any_byte(vocabulary: Vocabulary) -> bool:
    """Tell whether each byte that UTF-8 uses is a token by itself."""
    alone = (np.diff(vocabulary.offsets) == 1) & (vocabulary.kinds == TEXT)
    single = np.unique(vocabulary.blob[vocabulary.offsets[:-1][alone]])
    return bool(np.isin(np.array([*range(0xC0), *range(0xC2, 0xF5)]), single).all())


def _changes(fold: Fold) -> str:
    """Say what a fold makes equal that isn't the same text: the word mark and the blank before a text change nothing."""
    words = {
        "compatible": "compatibility composition (NFKC)",
        "compose": "composition (NFC)",
        "lower": "lower case",
        "no_accents": "no accents",
        "clean": "no controls",
        "one_blank": "one blank for several",
        "no_blanks": "no blanks",
    }
    if fold.compatible:
        del words["compose"]
    return ", ".join(word for name, word in words.items() if getattr(fold, name))


def judge(
    student: SideFacts,
    teacher: SideFacts,
    *,
    texts: int,
    conversations: int,
    empty: int,
    loss_tokens: int,
    covered_tokens: int,
    inexact_chunks: int,
    lookalike_chunks: int,
    uncovered: Mapping[Cause, int],
) -> tuple[Verdict, ...]:
    """Return the verdicts on a pair, the most telling first."""
    sides = (("student", student), ("teacher", teacher))
    costs = {cause: uncovered.get(cause, 0) / (loss_tokens or 1) for cause in Cause}
    verdicts = [_coverage(loss_tokens, covered_tokens, _unwritten(student))]
    if student.content_sha256 == teacher.content_sha256:
        found = "Both sides are the same tokenizer: a chunk is one token."
        verdicts.append(Verdict(topic="vocabulary", level=Level.NOTE, found=found, remedy="Distil token by token."))
    verdicts += [_bytes(sides, costs[Cause.UNKNOWN]), _normalisation(sides, inexact_chunks, costs[Cause.NORMALISED])]
    verdicts.append(_beginning(sides, texts, conversations, costs[Cause.BEGINNING]))
    if conversations + student.refused + teacher.refused:
        verdicts.append(_templates(sides, conversations, costs))
    verdicts.append(_special_tokens(sides, lookalike_chunks))
    if empty:
        verdicts.insert(0, _empty(empty, texts + conversations + student.refused + teacher.refused))
    return tuple(verdicts)


def _empty(empty: int, others: int) -> Verdict:
    hold = "holds" if empty == 1 else "hold"
    if not others:
        found = f"{'The only sample' if empty == 1 else f'All {empty:,} samples'} {hold} nothing: there is nothing to judge by."
        return Verdict(topic="samples", level=Level.BAD, found=found, remedy="Look at the fields messages and text of the rows.")
    are = "is" if empty == 1 else "are"
    found = f"{empty:,} of {many(empty + others, 'sample')} {hold} nothing, an empty text or no content, and {are} left out."
    return Verdict(topic="samples", level=Level.NOTE, found=found)


def _unwritten(facts: SideFacts) -> float:
    """Share of the bytes of what the assistant says that a side's template doesn't write once."""
    return (facts.left_out_bytes + facts.forgotten_bytes) / (facts.said_bytes or 1)


def _coverage(loss_tokens: int, covered_tokens: int, unwritten: float) -> Verdict:
    if not loss_tokens:
        remedy = "Give conversations in which the assistant speaks, or texts of more than a token."
        return Verdict(topic="coverage", level=Level.BAD, found="No token carries loss: there is nothing to learn.", remedy=remedy)
    rate = covered_tokens / loss_tokens
    level = Level.GOOD if rate >= GOOD_COVERAGE else Level.NOTE if rate >= ENOUGH_COVERAGE else Level.BAD
    found = f"Chunks cover {percent(rate)} of {many(loss_tokens, 'loss token')}."
    remedy = "" if level is Level.GOOD else "Nothing is learnt from the others; the causes say what they are."
    if unwritten:
        level = _worse(level, Level.NOTE)
        found += f" Not among them is {percent(unwritten)} of what the assistant says, which the student's template doesn't write."
    return Verdict(topic="coverage", level=level, found=found, remedy=remedy)


def _bytes(sides: Iterable[tuple[str, SideFacts]], cost: float) -> Verdict:
    lacking = [(side, facts) for side, facts in sides if not facts.spells_any_byte]
    unknown = [(side, facts) for side, facts in lacking if facts.unknown_tokens]
    if unknown:
        places = [(side, many(facts.unknown_tokens, "place"), many(facts.unknown_samples, "text")) for side, facts in unknown]
        words = [f"the {side} has no token for what stands at {found} of {texts}" for side, found, texts in places]
        remedy = "Nothing is learnt there. For such texts take a vocabulary with byte fallback."
        return Verdict(topic="byte fallback", level=_level(cost), found=_sentence(words), remedy=remedy)
    if lacking:
        names = " and ".join(side for side, _ in lacking)
        found = f"The {names} can't spell every text, having no byte fallback; these texts hold nothing unknown."
        return Verdict(topic="byte fallback", level=Level.NOTE, found=found, remedy="Check with the texts of the training.")
    return Verdict(topic="byte fallback", level=Level.GOOD, found="Both vocabularies spell any text, byte by byte if need be.")


def _normalisation(sides: Iterable[tuple[str, SideFacts]], inexact_chunks: int, cost: float) -> Verdict:
    sides = list(sides)
    altering = [
        f"the {side} changes {many(facts.altered, 'text')} ({facts.changes or 'not by what its normaliser says'})"
        for side, facts in sides
        if facts.altered
    ]
    if altering:
        if inexact_chunks:
            are = "is" if inexact_chunks == 1 else "are"
            altering.append(f"{many(inexact_chunks, 'chunk')} {are} the same text only once normalised")
        remedy = "There the teacher judges what the student meant, not its very bytes." if inexact_chunks else ""
        return Verdict(topic="normalisation", level=_level(cost), found=_sentence(altering), remedy=remedy)
    if not any(facts.bytes for _, facts in sides):
        return Verdict(topic="normalisation", level=Level.NOTE, found=_NOTHING)
    able = [f"the {side}'s ({facts.changes})" for side, facts in sides if facts.changes]
    found = f"Tokens are the texts' own bytes; the normaliser of {' and '.join(able)} changes none of them."
    return Verdict(
        topic="normalisation", level=Level.GOOD, found=found if able else "Neither side changes texts: tokens are their bytes."
    )


def _beginning(sides: Iterable[tuple[str, SideFacts]], texts: int, conversations: int, cost: float) -> Verdict:
    found, remedies, level = [], [], Level.GOOD
    for side, facts in sides:
        begin = facts.begins_with
        if not begin:
            continue
        if facts.begun_twice:
            level = Level.BAD
            found.append(f"the {side} reads {begin} twice at the beginning of {many(facts.begun_twice, 'conversation')}")
            remedies.append(f"Take it out of the {side}'s template.")
        elif facts.without_begin:
            level = _worse(level, Level.NOTE)
            found.append(f"the {side} reads {many(facts.without_begin, 'conversation')} without {begin}, its tokenizer's beginning")
            remedies.append(f"If the {side} was trained with it, put it into the template.")
        elif conversations:
            found.append(f"the {side}'s template begins conversations with {begin}, as its tokenizer would")
        if texts:
            found.append(f"texts were read without the {side}'s {begin}")
            remedies.append("Begin teacher_tokens that are made elsewhere with it: then a text's first token counts.")
    if cost:
        level = _worse(level, Level.NOTE)
        found.append(f"{percent(cost)} of the loss tokens share bytes with a first token, which nothing precedes")
    if not found:
        found.append("neither tokenizer puts anything before a text")
    return Verdict(topic="beginning", level=level, found=_sentence(found), remedy=" ".join(dict.fromkeys(remedies)))


def _templates(sides: Iterable[tuple[str, SideFacts]], conversations: int, costs: Mapping[Cause, float]) -> Verdict:
    sides = list(sides)
    cost = costs[Cause.LEFT_OUT] + costs[Cause.OTHERWISE] + costs[Cause.REORDERED]
    found, remedies, level = [], [], _level(cost) if cost else Level.GOOD
    for side, facts in sides:
        if facts.refused:
            level = Level.BAD
            found.append(f"the {side}'s template refuses {many(facts.refused, 'conversation')} ({facts.refusal})")
            remedies.append("Drop these conversations, or give another template.")
        if facts.left_out:
            share = facts.left_out_bytes / (facts.said_bytes or 1)
            level = _worse(level, _level(share))
            named = ", ".join(f"{field}: {count:,}" for field, count in facts.left_out.items())
            of_all = f", {percent(_unwritten(facts))} of its bytes" if _unwritten(facts) else ""
            found.append(f"the {side}'s template doesn't write all that the assistant says ({named}){of_all}")
            if share > COSTLY_SHARE:
                remedies.append("From what a template leaves out nothing is learnt: give one that writes it.")
        if facts.spelled_parts:
            level = _worse(level, Level.NOTE)
            place = many(facts.spelled_parts, "conversation")
            found.append(f"the {side}'s template writes content that is a list of parts as Python shows a list, in {place}")
            remedies.append("Give content as texts, or a template that takes parts.")
        if facts.broken_marks:
            level = _worse(level, Level.NOTE)
            named = ", ".join(list(facts.broken_marks)[:_MOST_NAMED])
            found.append(f"the {side}'s template writes {named}, which its vocabulary has to spell out")
            remedies.append("It seems to be another model's template.")
    if costs[Cause.REORDERED]:
        found.append("the teacher's template writes what is said in another order")
    if cost:
        found.append(f"{percent(cost)} of the loss tokens are lost to what the two templates write differently")
    if not found and not any(facts.said_bytes for _, facts in sides):
        found.append(f"the assistant says nothing in {many(conversations, 'conversation')}: nothing to judge by")
        level = Level.NOTE
    elif not found:
        found.append(f"both templates write all that the assistant says in {many(conversations, 'conversation')}")
    return Verdict(topic="chat template", level=level, found=_sentence(found), remedy=" ".join(dict.fromkeys(remedies)))


def _special_tokens(sides: Iterable[tuple[str, SideFacts]], lookalike_chunks: int) -> Verdict:
    sides = list(sides)
    if not any(facts.bytes for _, facts in sides):
        return Verdict(topic="special tokens", level=Level.NOTE, found=_NOTHING)
    reading = [(side, _named(facts.special_tokens)) for side, facts in sides if facts.special_tokens]
    words = [f"the {side} reads {named} within the texts as special tokens" for side, named in reading]
    if not words:
        return Verdict(topic="special tokens", level=Level.GOOD, found="No text holds what either side takes for a special token.")
    if lookalike_chunks:
        pair = "pairs" if lookalike_chunks == 1 else "pair"
        words.append(f"{many(lookalike_chunks, 'chunk')} {pair} one with the other side's plain spelling of it")
    remedy = "In a training these end turns or texts: take them out of the texts, unless they are meant."
    return Verdict(topic="special tokens", level=Level.NOTE, found=_sentence(words), remedy=remedy)


def _named(counts: Mapping[str, int]) -> str:
    named = ", ".join(f"{name} ({count:,})" for name, count in list(counts.items())[:_MOST_NAMED])
    more = len(counts) - _MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named


def _level(cost: float) -> Level:
    """Judge what was found by the share of the loss tokens that it costs."""
    return Level.BAD if cost > COSTLY_SHARE else Level.NOTE


def _worse(level: Level, other: Level) -> Level:
    return max(level, other, key=list(Level).index)


def _sentence(parts: Sequence[str]) -> str:
    joined = "; ".join(parts)
    return f"{joined[0].upper()}{joined[1:]}."
