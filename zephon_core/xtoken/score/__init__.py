"""Score sequences with a teacher: the logprob of every token, by a frozen causal language model.

score      what others call
plan       what it will take, predicted
product    what the blocks are made into; how they are made resumably is `zephon_core.blocks`
unit       what a worker does with some blocks
spec       what decides the scores, and how a run makes them
"""

from __future__ import annotations

from zephon_core.xtoken.score.plan import ScorePlan, predict_score
from zephon_core.xtoken.score.score import (
    ScoreOutcome,
    Scores,
    open_scores,
    read_scored,
    score_plan,
    score_sequences,
    score_tokens,
    write_token_rows,
)
from zephon_core.xtoken.score.spec import ScoreRun, ScoreSpec

__all__ = [
    "ScoreOutcome",
    "ScorePlan",
    "ScoreRun",
    "ScoreSpec",
    "Scores",
    "open_scores",
    "predict_score",
    "read_scored",
    "score_plan",
    "score_sequences",
    "score_tokens",
    "write_token_rows",
]
