"""Read an export as Megatron-LM reads --data-args-path, blend by it, and print how often each place came, as JSON.

draw_megatron.py FILE SAMPLES
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np

warnings.filterwarnings("ignore", message="Transformer Engine and Apex are not installed")

from megatron.core.datasets import helpers  # noqa: E402
from megatron.core.datasets.utils import get_blend_from_list, normalize  # noqa: E402

places, weights = get_blend_from_list(Path(sys.argv[1]).read_text().split())
samples = int(sys.argv[2])
drawn, position = np.zeros(samples, np.int16), np.zeros(samples, np.int64)
helpers.build_blending_indices(drawn, position, normalize(weights), len(weights), samples, False)
sys.stdout.write(json.dumps(dict(zip(places, np.bincount(drawn, minlength=len(places)).tolist(), strict=True))) + "\n")
