"""Which stretches of two byte strings are the same text, in order: a diff in linear time.

Long stretches first. In what is still open between two matches, every n bytes that occur equally often on both sides are paired,
first with first, second with second; the heaviest chain of pairs in the same order on both sides is kept (Hunt and Szymanski,
1977, over runs instead of single bytes), and grown while bytes agree; then n is halved. What occurs more often on one side than on
the other pairs with nothing until its surroundings tell which is which, so that a repeated reply can't match another turn's. A
match must be long for the room it is found in: short ones in large rooms are chance. Last, what stands right before an added
token, up to the beginning of its line: answers of one word. Each round sees each byte once; sorting concerns runs, not bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zephon_core.compiled import compiled

__all__ = ["heaviest_chain", "matching_blocks"]

_GRAMS = (32, 16, 8, 5)
_SAMPLED_ROOM = 1 << 13
_SHORT_GRAM, _SMALL_ROOM = 8, 200
_TAIL = 64


@compiled
def _gram_hashes(content: Any, begin: int, end: int, gram: int, mask: int) -> Any:
    """Hash every `gram` bytes; keep those whose hash has no bit of the mask: the same on both sides. Gives (places, hashes)."""
    base = np.uint64(0x9E3779B97F4A7C15)
    power = np.uint64(1)
    for _ in range(gram):
        power *= base
    places = np.empty(max(end - begin - gram + 1, 0), dtype=np.int64)
    hashes = np.empty(len(places), dtype=np.uint64)
    value, kept = np.uint64(0), 0
    for place in range(begin, end):
        value = value * base + np.uint64(content[place]) + np.uint64(1)
        first = place - gram + 1
        if first < begin:
            continue
        if first > begin:
            value -= power * (np.uint64(content[first - 1]) + np.uint64(1))
        mixed = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        if mixed & np.uint64(mask):
            continue
        places[kept] = first
        hashes[kept] = mixed
        kept += 1
    return places[:kept], hashes[:kept]


@compiled
def _tail_hashes(content: Any, begin: int, end: int, marks: Any) -> Any:
    """Hash what stands before each added token, on its line: (places, lengths, hashes). marks: int64 [., 2], from and to."""
    places = np.empty(len(marks), dtype=np.int64)
    lengths = np.empty(len(marks), dtype=np.int64)
    hashes = np.empty(len(marks), dtype=np.uint64)
    kept, floor = 0, begin
    for mark in range(len(marks)):
        stop = marks[mark, 0]
        if stop > end:
            break
        if stop >= begin:
            start = stop
            while start > floor and start > stop - _TAIL and content[start - 1] != 10:
                start -= 1
            value, seen = np.uint64(14695981039346656037), False
            for place in range(start, stop):
                value = (value ^ np.uint64(content[place])) * np.uint64(1099511628211)
                seen |= content[place] > 32
            if seen:
                places[kept], lengths[kept], hashes[kept] = start, stop - start, value
                kept += 1
        floor = max(floor, marks[mark, 1])
    return places[:kept], lengths[:kept], hashes[:kept]


@compiled
def _pairs(first: Any, second: Any) -> Any:
    """Find each hash's counterpart in `second`, the nth occurrence for the nth, where it occurs equally often; else -1."""
    size = 16
    while size < 2 * len(first):
        size *= 2
    keys = np.zeros(size, dtype=np.uint64)
    counts = np.zeros((size, 2), dtype=np.int32)
    slots, ranks = np.empty(len(first), dtype=np.int64), np.empty(len(first), dtype=np.int32)
    low = np.uint64(size - 1)
    for item in range(len(first)):
        slot = np.int64(first[item] & low)
        while counts[slot, 0] and keys[slot] != first[item]:
            slot = (slot + 1) & (size - 1)
        keys[slot] = first[item]
        slots[item], ranks[item] = slot, counts[slot, 0]
        counts[slot, 0] += 1
    other = np.empty(len(second), dtype=np.int64)
    for item in range(len(second)):
        slot = np.int64(second[item] & low)
        while counts[slot, 0] and keys[slot] != second[item]:
            slot = (slot + 1) & (size - 1)
        other[item] = slot if counts[slot, 0] else -1
        if counts[slot, 0]:
            counts[slot, 1] += 1
    begins = np.full(size, -1, dtype=np.int64)
    total = 0
    for entry in range(size):
        if counts[entry, 0] and counts[entry, 0] == counts[entry, 1]:
            begins[entry] = total
            total += counts[entry, 0]
    counterparts = np.empty(total, dtype=np.int64)
    filled = np.zeros(size, dtype=np.int32)
    for item in range(len(second)):
        slot = other[item]
        if slot >= 0 and begins[slot] >= 0:
            counterparts[begins[slot] + filled[slot]] = item
            filled[slot] += 1
    matches = np.full(len(first), -1, dtype=np.int64)
    for item in range(len(first)):
        if begins[slots[item]] >= 0:
            matches[item] = counterparts[begins[slots[item]] + ranks[item]]
    return matches


@compiled
def _runs(a: Any, b: Any, a_places: Any, b_places: Any, matches: Any, lengths: Any) -> Any:
    """Put pairs that continue each other together: int64 [runs, 3] (place, place, length), by the first side's place."""
    runs = np.empty((len(matches), 3), dtype=np.int64)
    count = 0
    for item in range(len(matches)):
        if matches[item] < 0:
            continue
        i, j, length = a_places[item], b_places[matches[item]], lengths[item]
        same = True
        for step in range(length):
            if a[i + step] != b[j + step]:
                same = False
                break
        if not same:  # two contents, one hash
            continue
        if count and i - j == runs[count - 1, 0] - runs[count - 1, 1] and i <= runs[count - 1, 0] + runs[count - 1, 2]:
            runs[count - 1, 2] = i + length - runs[count - 1, 0]
        else:
            runs[count, 0], runs[count, 1], runs[count, 2] = i, j, length
            count += 1
    return runs[:count]


@compiled
def heaviest_chain(runs: Any) -> Any:
    """Choose the runs that go up on both sides and weigh most together. runs: int64 [runs, 3 or more], the third is the weight."""
    order = np.argsort(runs[:, 1])
    rank = np.empty(len(runs), dtype=np.int64)
    distinct: Any = 0
    for position in range(len(order)):
        if position == 0 or runs[order[position], 1] != runs[order[position - 1], 1]:
            distinct += 1
        rank[order[position]] = distinct
    best = np.full(distinct + 1, -1, dtype=np.int64)  # a Fenwick tree of the heaviest chain's last run
    weight, before = np.zeros(len(runs), dtype=np.int64), np.full(len(runs), -1, dtype=np.int64)
    heaviest = -1
    for run in range(len(runs)):
        node = rank[run] - 1
        while node > 0:
            if best[node] >= 0 and (before[run] < 0 or weight[best[node]] > weight[before[run]]):
                before[run] = best[node]
            node -= node & -node
        weight[run] = runs[run, 2] + (weight[before[run]] if before[run] >= 0 else 0)
        node = rank[run]
        while node <= distinct:
            if best[node] < 0 or weight[best[node]] < weight[run]:
                best[node] = run
            node += node & -node
        if heaviest < 0 or weight[run] > weight[heaviest]:
            heaviest = run
    length, run = 0, heaviest
    while run >= 0:
        length += 1
        run = before[run]
    chain = np.empty((length, runs.shape[1]), dtype=np.int64)
    run = heaviest
    while run >= 0:
        length -= 1
        chain[length] = runs[run]
        run = before[run]
    return chain


@compiled
def _grown(a: Any, b: Any, chain: Any, room: Any, least: int, out: Any, count: int) -> int:
    """Write the runs of a chain as blocks: without overlap, grown while bytes agree, none shorter than `least`."""
    i_floor, j_floor = room[0], room[2]
    for run in range(len(chain)):
        i, j, length = chain[run, 0], chain[run, 1], chain[run, 2]
        cut = max(i_floor - i, j_floor - j, 0)
        i, j, length = i + cut, j + cut, length - cut
        if length <= 0:
            continue
        i_end, j_end = i + length, j + length
        i_ceiling, j_ceiling = room[1], room[3]
        if run + 1 < len(chain):
            i_ceiling, j_ceiling = max(chain[run + 1, 0], i_end), max(chain[run + 1, 1], j_end)
        while i > i_floor and j > j_floor and a[i - 1] == b[j - 1]:
            i -= 1
            j -= 1
        while i_end < i_ceiling and j_end < j_ceiling and a[i_end] == b[j_end]:
            i_end += 1
            j_end += 1
        if i_end - i < least:
            continue
        out[count, 0], out[count, 1], out[count, 2] = i, j, i_end - i
        count += 1
        i_floor, j_floor = i_end, j_end
    return count


@compiled
def _ends_grown(a: Any, b: Any, blocks: Any, least: int) -> Any:
    """Grow given blocks while bytes agree, and match how both sides begin and end if that is `least` bytes or more."""
    out = np.empty((len(blocks) + 2, 3), dtype=np.int64)
    out[0] = 0
    count = 1
    for block in range(len(blocks)):
        out[count] = blocks[block]
        count += 1
    out[count, 0], out[count, 1], out[count, 2] = len(a), len(b), 0
    count += 1
    for block in range(count - 1):
        i, j = out[block, 0] + out[block, 2], out[block, 1] + out[block, 2]
        while i < out[block + 1, 0] and j < out[block + 1, 1] and a[i] == b[j]:
            i, j = i + 1, j + 1
        out[block, 2] = i - out[block, 0]
        while out[block + 1, 0] > i and out[block + 1, 1] > j and a[out[block + 1, 0] - 1] == b[out[block + 1, 1] - 1]:
            out[block + 1, 0] -= 1
            out[block + 1, 1] -= 1
            out[block + 1, 2] += 1
    if out[0, 2] < least:
        out[0, 2] = 0
    if out[count - 1, 2] < least:
        out[count - 1, 0], out[count - 1, 1], out[count - 1, 2] = len(a), len(b), 0
    return out


@compiled
def _filled(a: Any, b: Any, blocks: Any, gram: int, a_marks: Any, b_marks: Any) -> Any:
    """Look for matches in the rooms between blocks; gram 0: before added tokens."""
    longest = 2 * len(blocks)
    for block in range(len(blocks) - 1):
        longest += blocks[block + 1, 0] - blocks[block, 0] - blocks[block, 2]
    out = np.empty((longest, 3), dtype=np.int64)
    count = 0
    room = np.empty(4, dtype=np.int64)
    a_mark, b_mark = 0, 0
    for block in range(len(blocks)):
        out[count] = blocks[block]
        count += 1
        if block + 1 == len(blocks):
            break
        room[0], room[1] = blocks[block, 0] + blocks[block, 2], blocks[block + 1, 0]
        room[2], room[3] = blocks[block, 1] + blocks[block, 2], blocks[block + 1, 1]
        a_room, b_room = room[1] - room[0], room[3] - room[2]
        if min(a_room, b_room) < max(gram, 1) or (gram > _SHORT_GRAM and max(a_room, b_room) < _SMALL_ROOM):
            continue
        if gram:
            mask = 7 if a_room + b_room > _SAMPLED_ROOM and gram == 32 else 0
            a_places, a_hashes = _gram_hashes(a, room[0], room[1], gram, mask)
            b_places, b_hashes = _gram_hashes(b, room[2], room[3], gram, mask)
            lengths = np.full(len(a_places), gram, dtype=np.int64)
            least = 4 + int(np.log(a_room * b_room) / np.log(4.0))  # at two bits a byte, chance in one room of 256
        else:
            while a_mark < len(a_marks) and a_marks[a_mark, 1] < room[0]:
                a_mark += 1
            while b_mark < len(b_marks) and b_marks[b_mark, 1] < room[2]:
                b_mark += 1
            a_places, lengths, a_hashes = _tail_hashes(a, room[0], room[1], a_marks[a_mark:])
            b_places, _, b_hashes = _tail_hashes(b, room[2], room[3], b_marks[b_mark:])
            least = 1
        if len(a_places) == 0 or len(b_places) == 0:
            continue
        runs = _runs(a, b, a_places, b_places, _pairs(a_hashes, b_hashes), lengths)
        if len(runs):
            count = _grown(a, b, heaviest_chain(runs), room, least, out, count)
    return out[:count]


def matching_blocks(a: Any, b: Any, known: Any = None, a_marks: Any = None, b_marks: Any = None) -> Any:
    """Find what two byte strings have in common, in order: int64 [blocks, 3] (place, place, length), sorted, disjoint, not empty.

    a, b: uint8. known: blocks that are known already, between and around which to look.
    a_marks, b_marks: int64 [., 2], from and to of added tokens, in order.
    """
    a, b = (np.require(side, np.uint8, ["C", "W"]) for side in (a, b))  # compiled once, for arrays that can be written
    nothing = np.empty((0, 2), dtype=np.int64)
    blocks = _ends_grown(a, b, np.empty((0, 3), dtype=np.int64) if known is None else known, _GRAMS[1])
    for gram in (*_GRAMS, 0):
        blocks = _filled(a, b, blocks, gram, nothing if a_marks is None else a_marks, nothing if b_marks is None else b_marks)
    blocks = _ends_grown(a, b, blocks[blocks[:, 2] > 0], 1)
    return _merged(blocks[blocks[:, 2] > 0])


def _merged(blocks: Any) -> Any:
    """Put blocks together that continue each other."""
    if len(blocks) < 2:
        return blocks
    ends = blocks[:-1, :2] + blocks[:-1, 2:]
    fresh = np.append(True, (ends != blocks[1:, :2]).any(axis=1))
    merged = blocks[fresh]
    merged[:, 2] = np.add.reduceat(blocks[:, 2], np.flatnonzero(fresh))
    return merged
