"""Files: datums, plans, scores and advantages in Parquet, a part at a time.

parquet_rows   rows checked, with the place of each, and written again with more columns
doubts         whether ids are a tokenizer's at all
plan_files     from datums to plans, and to the teacher's tokens that are to be scored
score_files    a teacher's scores as artifacts and as a column
attach_files   from datums, plans and logprobs to datums with advantages
"""

from __future__ import annotations

from zephon_core.xtoken.files.attach_files import (
    ADVANTAGES_COLUMN,
    LOGPROBS_COLUMN,
    AttachInputs,
    attached_parts,
    read_drops,
    write_advantages,
)
from zephon_core.xtoken.files.plan_files import (
    TEACHER_TOKENS,
    Templates,
    check_datum_rows,
    late_template,
    load_templates,
    reads_messages,
    write_plans,
)
from zephon_core.xtoken.files.score_files import build_scores, check_vocabulary, forget_scores, scores_recipe

__all__ = [
    "ADVANTAGES_COLUMN",
    "LOGPROBS_COLUMN",
    "TEACHER_TOKENS",
    "AttachInputs",
    "Templates",
    "attached_parts",
    "build_scores",
    "check_datum_rows",
    "check_vocabulary",
    "forget_scores",
    "late_template",
    "load_templates",
    "read_drops",
    "reads_messages",
    "scores_recipe",
    "write_advantages",
    "write_plans",
]
