"""Cutting: from an order and lengths to batches, and which of them share a step. Compiled loops over arrays.

cut        the greedy cut: contiguous batches, each as long as its budget allows
buckets    a stream of batches: contiguous ones, or ones of neighbouring lengths
balance    which batches share a step
sorting    a stable sort and a seeded shuffle, the same on every machine
loops      loops that the compiler makes vectors of
"""

from __future__ import annotations

from zephon_core.batching.cutting.balance import deal_batches, even_parts
from zephon_core.batching.cutting.buckets import BatchStream, form_batches
from zephon_core.batching.cutting.cut import CutBatches, cut_batches, cut_stretch, lengths_of, look_up
from zephon_core.batching.cutting.sorting import generator_state

__all__ = [
    "BatchStream",
    "CutBatches",
    "cut_batches",
    "cut_stretch",
    "deal_batches",
    "even_parts",
    "form_batches",
    "generator_state",
    "lengths_of",
    "look_up",
]
