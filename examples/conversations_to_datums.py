"""Turn conversations into datums for chunk advantages: the student's tokens, where they carry loss, and its logprobs of them.

    python -m examples.conversations_to_datums conversations.jsonl --student FOLDER [--teacher FOLDER] --output datums.parquet

A row of the input (JSONL, Parquet or Arrow) is {"messages": [{"role": …, "content": …}, …], "tools": […]}. The student's folder
holds its model, tokenizer and chat template. Loss is on what the assistant says. Datums that were sampled in a training have their
sampler's logprobs already; texts from elsewhere get the student's own, as if it had just said them. With a teacher's folder, datums
carry its token ids in place of messages.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zephon_core.errors import InputError, ZephonError
from zephon_core.tokenizers import Tokenizer, load_tokenizer
from zephon_core.tokenizers.chat_template import ChatTemplate, load_chat_template
from zephon_core.xtoken import Conversation, score_sequences, spans_in_text
from zephon_core.xtoken.alignment import read_samples

SCHEMA = pa.schema(
    {
        "trial_name": pa.string(),
        "fragment_index": pa.int64(),
        "model_input_tokens": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.float64()),
        "sampled_logprobs": pa.list_(pa.float64()),
        "messages": pa.string(),
        "tools": pa.string(),
        "teacher_tokens": pa.list_(pa.int32()),
    }
)


# --8<-- [start:tokens]
def tokens_and_mask(conversation: Conversation, tokenizer: Tokenizer, template: ChatTemplate) -> tuple[list[int], list[float]]:
    """Return a conversation's tokens, and 1.0 for each that lies wholly in what the assistant says."""
    rendered = template.render_marked(conversation.messages, conversation.options)
    said = [(len(rendered.text[:start].encode()), len(rendered.text[:end].encode())) for start, end in rendered.spans]
    ids: list[int] = tokenizer.encode_batch([rendered.text]).ids.tolist()
    places = spans_in_text(tokenizer, ids, rendered.text).starts.tolist()
    return ids, [float(any(a <= i < j <= b for a, b in said)) for i, j in itertools.pairwise(places)]


# --8<-- [end:tokens]


def datums(conversations: Sequence[tuple[str, Conversation]], student: str, teacher: str = "") -> Iterator[dict[str, Any]]:
    """Yield a datum for each conversation and its name; see the module on `teacher`."""
    tokenizer, template = load_tokenizer(student), load_chat_template(student, None)
    sequences = [tokens_and_mask(conversation, tokenizer, template) for _, conversation in conversations]
    sides = teacher_columns([conversation for _, conversation in conversations], teacher)
    scores = score_sequences(student, [ids for ids, _ in sequences])
    for (name, _), (ids, mask), side, logprobs in zip(conversations, sequences, sides, scores, strict=True):
        yield {
            "trial_name": name,
            "fragment_index": 0,
            "model_input_tokens": ids,
            "loss_mask": mask,
            "sampled_logprobs": np.where(mask, logprobs, 0.0).tolist(),
            **side,
        }


def teacher_columns(conversations: Sequence[Conversation], teacher: str) -> list[dict[str, Any]]:
    """Return what the teacher is to read: its token ids if its folder is named, else messages and tools."""
    if not teacher:
        return [{"messages": _text(each.messages), "tools": _text(each.options.get("tools"))} for each in conversations]
    tokenizer, template = load_tokenizer(teacher), load_chat_template(teacher, None)
    texts = [template.render(each.messages, each.options) for each in conversations]
    return [{"teacher_tokens": tokenizer.encode_batch([text]).ids.tolist()} for text in texts]


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def conversations_of(source: str) -> Iterator[tuple[str, Conversation]]:
    """Yield the conversations of a source, each with its file's name and row. Raises InputError for a row that is none."""
    for place, content in read_samples(source):
        if not isinstance(content, Conversation):
            raise InputError(place, "holds no messages", wanted="conversations")
        yield Path(place).name, content


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("conversations", help="file, glob or URL")
    parser.add_argument("--student", required=True, help="folder of the student: model, tokenizer, chat template")
    parser.add_argument("--teacher", default="", help="folder of the teacher: tokenizer, chat template")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    try:
        conversations = list(conversations_of(options.conversations))
        if not conversations:
            raise InputError(options.conversations, "is empty", wanted="conversations")
        made = list(datums(conversations, options.student, options.teacher))
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    schema = pa.schema([field for field in SCHEMA if field.name in made[0]])
    pq.write_table(pa.Table.from_pylist(made, schema=schema), options.output, compression="zstd")
    loss = sum(sum(datum["loss_mask"]) for datum in made)
    total = sum(len(datum["loss_mask"]) for datum in made)
    print(f"{len(made):,} datums of {total:,} tokens, {loss:,.0f} of them with loss, in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
