"""What of a row is delivered: tokens of a text, of messages, of ids, as the training's tokenize step would give them.

A spec says what is counted; `build_counter` makes what counts it, once a worker; its `plan` looks at a data set's first rows;
and the plan counts.
"""

from __future__ import annotations

from zephon_core.errors import FatalCountError, MeasureError
from zephon_core.ratios.counting.build import build_counter
from zephon_core.ratios.counting.chat import ChatTokenCountingSpec
from zephon_core.ratios.counting.plans import CountingSpec, CountPlan, TokenCounter
from zephon_core.ratios.counting.replay import Replay
from zephon_core.ratios.counting.text import TextTokenCountingSpec

__all__ = [
    "ChatTokenCountingSpec",
    "CountPlan",
    "CountingSpec",
    "FatalCountError",
    "MeasureError",
    "Replay",
    "TextTokenCountingSpec",
    "TokenCounter",
    "build_counter",
]
