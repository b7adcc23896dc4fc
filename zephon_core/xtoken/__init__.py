"""Cross-tokenizer chunks: what a teacher with another vocabulary thinks of what the student said, in the student's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon_core.xtoken.advantages import ChunkAdvantageStats, attach_chunk_advantages
    from zephon_core.xtoken.alignment import Conversation, build_chunk_plans
    from zephon_core.xtoken.checking import PairReport, check_pair
    from zephon_core.xtoken.datums import TrainDatum
    from zephon_core.xtoken.pictures import ViewedDatum, render_view, view_sample
    from zephon_core.xtoken.plans import ChunkPlan, ChunkSpan
    from zephon_core.xtoken.score import ScoreRun, ScoreSpec, score_sequences
    from zephon_core.xtoken.sequence_steps import score_sequence_files
    from zephon_core.xtoken.specs import ChunkAdvantagesRun, ChunkAdvantagesSpec, ScoreSequencesSpec
    from zephon_core.xtoken.steps import ChunkAdvantagesResult, build_chunk_advantages
    from zephon_core.xtoken.vocabulary import spans_in_text, tabulate, token_bytes

__all__ = [
    "ChunkAdvantageStats",
    "ChunkAdvantagesResult",
    "ChunkAdvantagesRun",
    "ChunkAdvantagesSpec",
    "ChunkPlan",
    "ChunkSpan",
    "Conversation",
    "PairReport",
    "ScoreRun",
    "ScoreSequencesSpec",
    "ScoreSpec",
    "TrainDatum",
    "ViewedDatum",
    "attach_chunk_advantages",
    "build_chunk_advantages",
    "build_chunk_plans",
    "check_pair",
    "render_view",
    "score_sequence_files",
    "score_sequences",
    "spans_in_text",
    "tabulate",
    "token_bytes",
    "view_sample",
]

_HOMES = {
    "ChunkAdvantageStats": "advantages",
    "ChunkAdvantagesResult": "steps",
    "ChunkAdvantagesRun": "specs",
    "ChunkAdvantagesSpec": "specs",
    "ChunkPlan": "plans",
    "ChunkSpan": "plans",
    "Conversation": "alignment",
    "PairReport": "checking",
    "ScoreRun": "score",
    "ScoreSequencesSpec": "specs",
    "ScoreSpec": "score",
    "TrainDatum": "datums",
    "ViewedDatum": "pictures",
    "attach_chunk_advantages": "advantages",
    "build_chunk_advantages": "steps",
    "build_chunk_plans": "alignment",
    "check_pair": "checking",
    "render_view": "pictures",
    "score_sequence_files": "sequence_steps",
    "score_sequences": "score",
    "spans_in_text": "vocabulary",
    "tabulate": "vocabulary",
    "token_bytes": "vocabulary",
    "view_sample": "pictures",
}


def __getattr__(name: str) -> Any:
    """Import a name's module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
