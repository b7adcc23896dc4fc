"""The sampling algebra: positions to draw, estimates from what was found there. Arrays in, arrays out; no files, no tokenizers."""

from __future__ import annotations

from zephon_core.ratios.estimate.interval import Estimate, combine_rounds, draws_needed
from zephon_core.ratios.estimate.positions import PER_STRATUM, draw_positions, generator, locate

__all__ = ["PER_STRATUM", "Estimate", "combine_rounds", "draw_positions", "draws_needed", "generator", "locate"]
