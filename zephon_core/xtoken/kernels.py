"""The inner loops: over tokens, chunks and bytes. Compiled; import this module where it is used, since numba takes a while."""

from __future__ import annotations

from typing import Any

import numpy as np

from zephon_core.compiled import compiled

__all__ = [
    "SLACK",
    "align",
    "align_same",
    "chunk_gaps",
    "give",
    "lay_out",
    "same_bytes",
    "same_ranges",
    "tally",
    "token_bytes_in_all",
]

SLACK = 8
MOST_GAP = 1e100
"""No sum of such gaps or of their squares is infinite."""


@compiled
def copy_eight(source: Any, begin: Any, out: Any, position: Any) -> None:
    """Copy eight bytes: all are read before any is written, so that it is one load and one store."""
    one = np.uint64(1)
    b0, b1, b2, b3 = source[begin], source[begin + one], source[begin + 2 * one], source[begin + 3 * one]
    b4, b5, b6, b7 = source[begin + 4 * one], source[begin + 5 * one], source[begin + 6 * one], source[begin + 7 * one]
    out[position], out[position + one], out[position + 2 * one], out[position + 3 * one] = b0, b1, b2, b3
    out[position + 4 * one], out[position + 5 * one], out[position + 6 * one], out[position + 7 * one] = b4, b5, b6, b7


@compiled
def token_bytes_in_all(ids: Any, offsets: Any) -> int:
    """Add up how many bytes tokens have."""
    total = 0
    for token in range(len(ids)):
        entry = np.uint64(ids[token])
        total += offsets[entry + np.uint64(1)] - offsets[entry]
    return total


@compiled
def lay_out(ids: Any, sequences: Any, blob: Any, offsets: Any, kinds: Any, prefix: int, out: Any, starts: Any) -> None:
    """Write the bytes of each sequence's tokens end to end, and where each token's begin.

    prefix: 0, no blank is put before a text; 1, before one that begins a sequence; 2, before each that follows an added token
    too. Such a blank is left out: it is the tokenizer's own. starts has one element more than there are tokens, and out SLACK
    bytes more than the tokens: eight are copied at once, whatever a token has, and what is too much is written over.
    """
    position = np.uint64(0)
    whole = len(blob) - SLACK
    for sequence in range(len(sequences) - 1):
        fresh = prefix > 0
        for token in range(sequences[sequence], sequences[sequence + 1]):
            starts[token] = position
            entry = np.uint64(ids[token])
            begin, end = offsets[entry], offsets[entry + np.uint64(1)]
            if kinds[entry] != 0:
                fresh = prefix == 2 or (fresh and prefix > 0)
            elif fresh and begin < end:
                if blob[begin] == 32:
                    begin += 1
                fresh = False
            done = np.uint64(begin)
            if begin <= whole:
                copy_eight(blob, done, out, position)
                done += np.uint64(8)
            for byte in range(done, np.uint64(end)):
                out[position + byte - np.uint64(begin)] = blob[byte]
            position += np.uint64(end - begin)
    starts[len(starts) - 1] = position


@compiled
def same_bytes(first: Any, first_start: int, first_end: int, second: Any, second_start: int, second_end: int) -> bool:
    """Tell whether two stretches hold the same bytes."""
    length = first_end - first_start
    if second_end - second_start != length:
        return False
    done = 0
    while done + 64 <= length:
        different = 0
        for byte in range(done, done + 64):
            different |= first[first_start + byte] ^ second[second_start + byte]
        if different:
            return False
        done += 64
    different = 0
    for byte in range(done, length):
        different |= first[first_start + byte] ^ second[second_start + byte]
    return different == 0


@compiled
def align(
    student: Any,
    student_from: int,
    student_count: int,
    teacher: Any,
    teacher_from: int,
    teacher_count: int,
    blocks: Any,
    loss: Any,
    student_unknown: Any,
    teacher_unknown: Any,
    out: Any,
    done: int,
) -> int:
    """Cut one pair of sequences wherever both end a token at the same place of a block, and write the chunks from `done` on.

    student, teacher: where each token begins, and the last ends; the sequence's part starts at `_from` and has `_count` tokens.
    blocks: int64 [blocks, 3], in order: stretches that are the same on both sides (from, from, length), in the same coordinates.
    loss: of the student's tokens, one each from `student_from` on. unknown: tokens whose bytes are not known.
    out: int64 [., 4]. A chunk is written if it lies on loss positions, has no unknown token, and holds position 0 of neither side.
    Tokens without bytes open no chunk. Returns how many chunks there are now.
    """
    s, t = 0, 0
    for block in range(len(blocks)):
        begin, end = blocks[block, 0], blocks[block, 0] + blocks[block, 2]
        shift = begin - blocks[block, 1]
        while s < student_count and student[student_from + s] < begin:
            s += 1
        while t < teacher_count and teacher[teacher_from + t] + shift < begin:
            t += 1
        while s < student_count and t < teacher_count:
            # Both go to a place where a token begins on both sides.
            s_start, t_start = student[student_from + s], teacher[teacher_from + t] + shift
            if s_start >= end or t_start >= end:
                break
            if s_start < t_start or student[student_from + s + 1] == s_start:
                s += 1
                continue
            if t_start < s_start or teacher[teacher_from + t + 1] + shift == t_start:
                t += 1
                continue
            s_first, t_first = s, t
            good = s > 0 and t > 0
            closed = False
            s_end, t_end = student[student_from + s + 1], teacher[teacher_from + t + 1] + shift
            good &= loss[student_from + s] and not student_unknown[student_from + s] and not teacher_unknown[teacher_from + t]
            while s_end <= end and t_end <= end:
                if s_end == t_end:
                    closed = True
                    break
                if s_end < t_end:
                    s += 1
                    if s == student_count:
                        break
                    s_end = student[student_from + s + 1]
                    good &= loss[student_from + s] and not student_unknown[student_from + s]
                else:
                    t += 1
                    if t == teacher_count:
                        break
                    t_end = teacher[teacher_from + t + 1] + shift
                    good &= not teacher_unknown[teacher_from + t]
            if not closed:
                s, t = s_first, t_first
                break
            s += 1
            t += 1
            if good:
                out[done, 0], out[done, 1], out[done, 2], out[done, 3] = s_first, s, t_first, t
                done += 1
    return done


@compiled
def align_same(
    student_bytes: Any,
    student: Any,
    student_sequences: Any,
    teacher_bytes: Any,
    teacher: Any,
    teacher_sequences: Any,
    loss: Any,
    student_unknown: Any,
    teacher_unknown: Any,
    counts: Any,
    out: Any,
) -> None:
    """Align each pair of sequences that are the same bytes and have no unknown token; counts: chunks, -1 for the other pairs.

    The chunks of the pairs that were aligned are written to out, one after the other.
    """
    done = 0
    block = np.empty((1, 3), dtype=np.int64)
    for pair in range(len(counts)):
        counts[pair] = -1
        s_from, s_to = student_sequences[pair], student_sequences[pair + 1]
        t_from, t_to = teacher_sequences[pair], teacher_sequences[pair + 1]
        unknown = False
        for token in range(s_from, s_to):
            unknown |= student_unknown[token]
        for token in range(t_from, t_to):
            unknown |= teacher_unknown[token]
        begin, end = student[s_from], student[s_to]
        if unknown or not same_bytes(student_bytes, begin, end, teacher_bytes, teacher[t_from], teacher[t_to]):
            continue
        block[0, 0], block[0, 1], block[0, 2] = begin, teacher[t_from], end - begin
        before = done
        done = align(
            student, s_from, s_to - s_from, teacher, t_from, t_to - t_from, block, loss, student_unknown, teacher_unknown, out, done
        )
        counts[pair] = done - before


@compiled
def chunk_gaps(
    plans: Any, ranges: Any, datums: Any, loss: Any, logprobs: Any, rows: Any, row_values: Any, drops: Any, gaps: Any
) -> None:
    """Sum both sides of each chunk of the datums that are not dropped yet, and drop those that can't be summed.

    plans, datums, rows: where each one's chunks, tokens and teacher logprobs begin. drops: as `advantages.Drop` numbers them.
    A gap that is larger than any that could be added up and squared counts as infinite.
    """
    for datum in range(len(drops)):
        if drops[datum]:
            continue
        tokens = slice(datums[datum], datums[datum + 1])
        said, ours, theirs = loss[tokens], logprobs[tokens], row_values[rows[datum] : rows[datum + 1]]
        drop = 0
        for chunk in range(plans[datum], plans[datum + 1]):
            # Unsigned, since places that may be negative are looked at twice; the first by itself, since most have but one.
            start, stop = np.uint64(ranges[chunk, 0]), np.uint64(ranges[chunk, 1])
            other, end = np.uint64(ranges[chunk, 2]), np.uint64(ranges[chunk, 3])
            if not (start < stop <= np.uint64(len(ours)) and other < end <= np.uint64(len(theirs))):
                drop = 3
                break
            student, on_loss = ours[start], said[start]
            for position in range(start + np.uint64(1), stop):
                student += ours[position]
                on_loss &= said[position]
            if not on_loss:
                drop = 4
                break
            teacher = theirs[other]
            for position in range(other + np.uint64(1), end):
                teacher += theirs[position]
            gaps[chunk] = teacher - student
            if not abs(gaps[chunk]) <= MOST_GAP:  # NaN isn't, either
                drop = 6
        drops[datum] = drop


@compiled
def tally(plans: Any, ranges: Any, datums: Any, loss: Any, drops: Any, gaps: Any, clip: float, counts: Any, sums: Any) -> None:
    """Add up what the kept datums' chunks come to, in order, on top of what those before them did.

    counts: int64, chunks, clipped chunks, scored tokens, loss tokens. sums: float64, of the totals bounded to ±clip a token, and of
    the gaps.
    """
    clipped, scored, losses = 0, 0, 0
    totals, all_gaps = sums[0], sums[1]
    for datum in range(len(drops)):
        if drops[datum]:
            continue
        for said in loss[datums[datum] : datums[datum + 1]]:
            losses += said
        counts[0] += plans[datum + 1] - plans[datum]
        for chunk in range(plans[datum], plans[datum + 1]):
            length = ranges[chunk, 1] - ranges[chunk, 0]
            value = gaps[chunk] / length
            bounded = min(max(value, -clip), clip)
            clipped += bounded != value
            scored += length
            totals += bounded * length
            all_gaps += gaps[chunk]
    counts[1] += clipped
    counts[2] += scored
    counts[3] += losses
    sums[0], sums[1] = totals, all_gaps


@compiled
def give(
    plans: Any,
    ranges: Any,
    datums: Any,
    drops: Any,
    gaps: Any,
    clip: float,
    center: bool,
    mean_total: float,
    mean: float,
    values: Any,
    out: Any,
    squares: Any,
) -> None:
    """Give each token of a chunk of the kept datums its share of the chunk's gap, bounded to ±clip, and centred over the totals.

    values: what each chunk's tokens got. out: the tokens, zeros before. squares: float64 [1], to which the squared deviations of
    tokens from `mean` are added, in order.
    """
    squared = squares[0]
    for datum in range(len(drops)):
        if drops[datum]:
            continue
        tokens = out[datums[datum] : datums[datum + 1]]
        for chunk in range(plans[datum], plans[datum + 1]):
            length = ranges[chunk, 1] - ranges[chunk, 0]
            value = min(max(gaps[chunk] / length, -clip), clip)
            if center:
                value = (value * length - mean_total) / length
            values[chunk] = value
            squared += length * (value - mean) ** 2
            for position in range(np.uint64(ranges[chunk, 0]), np.uint64(ranges[chunk, 1])):
                tokens[position] = value
    squares[0] = squared


@compiled
def same_ranges(student_bytes: Any, student: Any, teacher_bytes: Any, teacher: Any, ranges: Any, exact: Any) -> None:
    """Tell of each chunk whether both sides are the same bytes."""
    for chunk in range(len(ranges)):
        exact[chunk] = same_bytes(
            student_bytes,
            student[ranges[chunk, 0]],
            student[ranges[chunk, 1]],
            teacher_bytes,
            teacher[ranges[chunk, 2]],
            teacher[ranges[chunk, 3]],
        )
