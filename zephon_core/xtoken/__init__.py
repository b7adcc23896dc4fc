"""Cross-tokenizer chunks: what a teacher with another vocabulary thinks of what the student said, in the student's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon_core.xtoken.advantages import ChunkAdvantageStats, attach_chunk_advantages
    from zephon_core.xtoken.build import build_chunk_plans
    from zephon_core.xtoken.datums import TrainDatum
    from zephon_core.xtoken.islands import Conversation
    from zephon_core.xtoken.plans import ChunkPlan, ChunkSpan
    from zephon_core.xtoken.score import score_sequences
    from zephon_core.xtoken.vocabulary import spans_in_text, tabulate, token_bytes

__all__ = [
    "ChunkAdvantageStats",
    "ChunkPlan",
    "ChunkSpan",
    "Conversation",
    "TrainDatum",
    "attach_chunk_advantages",
    "build_chunk_plans",
    "score_sequences",
    "spans_in_text",
    "tabulate",
    "token_bytes",
]

_HOMES = {
    "ChunkAdvantageStats": "advantages",
    "ChunkPlan": "plans",
    "ChunkSpan": "plans",
    "Conversation": "islands",
    "TrainDatum": "datums",
    "attach_chunk_advantages": "advantages",
    "build_chunk_plans": "build",
    "score_sequences": "score",
    "spans_in_text": "vocabulary",
    "tabulate": "vocabulary",
    "token_bytes": "vocabulary",
}


def __getattr__(name: str) -> Any:
    """Import a name's module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
