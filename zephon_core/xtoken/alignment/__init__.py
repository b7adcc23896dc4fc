"""Alignment: tokens of two vocabularies cut into chunks at the boundaries that both share.

build        from datums and what the teacher reads to plans
align        pairs of token sequences cut into chunks, the most of them in one compiled pass
islands      stretches that both chat templates render from the same message content
difference   which stretches of two byte strings are the same text
samples      texts and conversations to try, from files
pairs        samples as both sides would read them
"""

from __future__ import annotations

from zephon_core.xtoken.alignment.align import align_pairs
from zephon_core.xtoken.alignment.build import TeacherSide, build_chunk_plans, build_plan_columns, render_teacher
from zephon_core.xtoken.alignment.islands import Conversation, Islands, Render, said_pieces
from zephon_core.xtoken.alignment.pairs import SamplePairs, tokenize_samples
from zephon_core.xtoken.alignment.samples import Sample, SampleInput, named_samples, read_samples

__all__ = [
    "Conversation",
    "Islands",
    "Render",
    "Sample",
    "SampleInput",
    "SamplePairs",
    "TeacherSide",
    "align_pairs",
    "build_chunk_plans",
    "build_plan_columns",
    "named_samples",
    "read_samples",
    "render_teacher",
    "said_pieces",
    "tokenize_samples",
]
