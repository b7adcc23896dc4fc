"""What a text is, byte by byte: valid UTF-8, stripped exactly as `str.strip` strips.

Everything here reads uint8 buffers that have `PADDING` spare bytes at their end.
"""

from __future__ import annotations

from zephon_core.bank.scan.arrays import Bytes, Ints
from zephon_core.bank.scan.simd import byte_at, half_at, high_mask, trailing_zeros
from zephon_core.compiled import compiled

__all__ = ["bad_texts", "strip_texts", "valid_utf8"]


@compiled
def valid_utf8(data: Bytes, start: int, end: int) -> bool:
    """Tell whether data[start:end] is UTF-8 as Python's strict decoder has it: shortest forms, no surrogates, up to U+10FFFF."""
    i = start
    while i < end:
        four = half_at(data, i)
        if four & 0x80 == 0:
            high = high_mask(data, i)
            i += trailing_zeros(high)
        elif four & 0xC0E0 == 0x80C0:
            if four & 0x1E == 0 or i + 2 > end:
                return False
            i += 2
        elif four & 0xC0C0F0 == 0x8080E0:
            second = four & 0x200F
            if second == 0 or second == 0x200D or i + 3 > end:
                return False
            i += 3
        elif four & 0xC0C0C0F8 == 0x808080F0:
            if four & 0x3007 == 0 or (four & 0x04 and four & 0x3003) or i + 4 > end:
                return False
            i += 4
        else:
            return False
    return True


@compiled
def _is_ascii_space(byte: int) -> bool:
    return byte == 0x20 or 0x09 <= byte <= 0x0D or 0x1C <= byte <= 0x1F


@compiled
def _is_wide_space(first: int, second: int, third: int) -> bool:
    """Tell whether three bytes are U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F or U+3000."""
    if first == 0xE2:
        if second == 0x80:
            return 0x80 <= third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF
        return second == 0x81 and third == 0x9F
    return (first == 0xE3 and second == 0x80 and third == 0x80) or (first == 0xE1 and second == 0x9A and third == 0x80)


@compiled
def _strip(data: Bytes, start: int, end: int) -> tuple[int, int]:
    while start < end:
        byte = byte_at(data, start)
        if byte < 0x80:
            if not _is_ascii_space(byte):
                break
            start += 1
        elif byte == 0xC2 and (byte_at(data, start + 1) == 0x85 or byte_at(data, start + 1) == 0xA0):
            start += 2
        elif byte >= 0xE1 and _is_wide_space(byte, byte_at(data, start + 1), byte_at(data, start + 2)):
            start += 3
        else:
            break
    while start < end:
        byte = byte_at(data, end - 1)
        if byte < 0x80:
            if not _is_ascii_space(byte):
                break
            end -= 1
        elif byte_at(data, end - 2) == 0xC2 and (byte == 0x85 or byte == 0xA0):
            end -= 2
        elif end - start >= 3 and _is_wide_space(byte_at(data, end - 3), byte_at(data, end - 2), byte):
            end -= 3
        else:
            break
    return start, end


@compiled
def strip_texts(data: Bytes, starts: Ints, lengths: Ints, fields: Bytes, count: int) -> int:
    """Strip the first `count` texts in place and close the gaps that empty ones leave; return how many are left.

    data: uint8, valid UTF-8 within the texts. starts, lengths: int64 spans in bytes. fields: uint8.
    """
    kept = 0
    for i in range(count):
        start, end = _strip(data, starts[i], starts[i] + lengths[i])
        starts[kept] = start
        lengths[kept] = end - start
        fields[kept] = fields[i]
        kept += end > start
    return kept


@compiled
def bad_texts(data: Bytes, starts: Ints, lengths: Ints, found: Ints) -> int:
    """Write the indices of the texts that are no UTF-8 to `found` (int64, as long as the texts); return how many there are."""
    count = 0
    for i in range(len(starts)):
        if not valid_utf8(data, starts[i], starts[i] + lengths[i]):
            found[count] = i
            count += 1
    return count
