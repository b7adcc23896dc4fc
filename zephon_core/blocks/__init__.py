"""Rows that a frozen model makes, block by block, into one file, by processes that may be killed at any moment.

work        one run: what is missing, do it, finish what has become whole
units       which blocks a run works on, and which go through the model together
runner      where the model runs: worker processes, or this one
tokens      what goes in: token ids of rows
finished    a block on its way to a worker and back
writer      finished blocks into the file and the ledgers, in that order on the device
rows        the file
state       what is on disk, and what work it is
outcome     what that amounts to

What is done is what the ledgers say (`zephon_core.ledger`). The finished file has the same bytes whatever was interrupted.
"""

from __future__ import annotations

from zephon_core.blocks.finished import BlockJob, BlockResult, Finished, Flaw, flaws_of, in_halves, unless_out_of_memory
from zephon_core.blocks.outcome import Standing, is_as_before, read_standing, record_of
from zephon_core.blocks.rows import RowFile, RowLayout, block_checksum
from zephon_core.blocks.runner import BlockRunner, Facts, Handle, Here, Workers, machine_has_gpu, workers_that_fit
from zephon_core.blocks.state import BlockState
from zephon_core.blocks.tokens import TokenRows, TokenRowsWriter, probe_rows
from zephon_core.blocks.units import Share, plan_units, unit_jobs, wanted_blocks
from zephon_core.blocks.work import BlockWork, Product

__all__ = [
    "BlockJob",
    "BlockResult",
    "BlockRunner",
    "BlockState",
    "BlockWork",
    "Facts",
    "Finished",
    "Flaw",
    "Handle",
    "Here",
    "Product",
    "RowFile",
    "RowLayout",
    "Share",
    "Standing",
    "TokenRows",
    "TokenRowsWriter",
    "Workers",
    "block_checksum",
    "flaws_of",
    "in_halves",
    "is_as_before",
    "machine_has_gpu",
    "plan_units",
    "probe_rows",
    "read_standing",
    "record_of",
    "unit_jobs",
    "unless_out_of_memory",
    "wanted_blocks",
    "workers_that_fit",
]
