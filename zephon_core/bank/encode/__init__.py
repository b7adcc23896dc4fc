"""Encode: one vector a text, by a frozen model, block by block.

encode           what others call
work             one run: what is missing, encode it, finish what has become whole
plan             what it will take, predicted
run, unit        workers, and what one of them does with some blocks
features         from the model's float32 to what is stored; rows that can't be
block_writer     results into the matrix and the ledgers, in that order on the device
matrix           the file of features
receipts         how far it is from plain float32
state, outcome   what is on disk, and what that amounts to
"""

from __future__ import annotations

from zephon_core.bank.encode.encode import (
    ENCODE_VERSION,
    EncodeOutcome,
    encode_identity,
    encode_tokens,
    read_outcome,
    row_encoder,
    valid_rows,
)

__all__ = [
    "ENCODE_VERSION",
    "EncodeOutcome",
    "encode_identity",
    "encode_tokens",
    "read_outcome",
    "row_encoder",
    "valid_rows",
]
