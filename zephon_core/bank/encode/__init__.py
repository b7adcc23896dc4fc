"""Encode: one vector a text, by a frozen model, block by block.

encode           what others call
plan             what it will take, predicted
product          what the blocks are made into; how they are made resumably is `zephon_core.blocks`
run, unit        workers, and what one of them does with some blocks
features         from the model's float32 to what is stored; rows that can't be
receipts         how far it is from plain float32
outcome          how much there is
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
