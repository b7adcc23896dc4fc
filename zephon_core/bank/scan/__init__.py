"""Scan: the distinct texts of the sources, in order of first appearance.

pipeline     blocks of rows go to threads, and come back in order
files        which bytes of a source make a block
parse        a block's texts: from JSON (json_rows, grammar), from columns (columns), slowly but surely (reference)
text, sha1   what is stripped and hashed (compiled by compile; simd: the hash's instructions)
distinct     which texts are new: a table in memory (table), sorted runs on disk once it is full
tally        what was counted by the way
index        index.json and the sorted digests
drop         what a bank that is extended holds already
"""

from __future__ import annotations

from zephon_core.bank.scan.scan import SCAN_VERSION, scan_texts, write_index

__all__ = ["SCAN_VERSION", "scan_texts", "write_index"]
