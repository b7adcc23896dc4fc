# ruff: noqa: RUF001
"""Tool calls: what stays uncovered of them can't be covered, since a token reaches over the edge of what is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chats import chatml

from zephon_core.xtoken.alignment import SamplePairs, tokenize_samples
from zephon_core.xtoken.alignment.samples import Sample, conversation_of, named_samples, read_samples

Message = Mapping[str, Any]


def written(turn: Callable[[str], str], call: str, end: str) -> Callable[[Sequence[Message], Mapping[str, Any]], str]:
    """Return a template that writes calls in its own way, and arguments, which are JSON in a text, as they are."""

    def render(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        text = ""
        for message in messages:
            text += turn(message["role"]) + (message.get("content") or "").strip()
            for each in message.get("tool_calls") or []:
                text += call.replace("NAME", each["function"]["name"]).replace("ARGUMENTS", each["function"]["arguments"])
            text += end
        return text

    return render


TEMPLATES = {
    "chatml": chatml,
    "blocks": written(
        lambda role: f"<｜{role}｜>", "<｜call｜>NAME\n```json\nARGUMENTS\n```<｜call▁end｜>", "<｜end▁of▁sentence｜>"
    ),
    "headers": written(lambda role: f"<|{role}|>\n\n", '<|python_tag|>{"name": "NAME", "parameters": ARGUMENTS}', "<|eot_id|>"),
    "code": written(lambda role: f"<start_of_turn>{role}\n", "\n```tool_code\nNAME(**ARGUMENTS)\n```", "<end_of_turn>\n"),
}


def calls(*arguments: str) -> list[Message]:
    return [
        {"id": str(n), "type": "function", "function": {"name": "order", "arguments": each}} for n, each in enumerate(arguments)
    ]


CHATS: list[list[Message]] = [
    [
        {"role": "user", "content": "Two mochas, one with oat milk."},
        {"role": "assistant", "content": None, "tool_calls": calls('{"query": "Mocha"}', '{"milk":"oat","n": [{"of": 1}]}', "{}")},
        {"role": "tool", "content": '{"query": "Mocha"}'},
        {"role": "assistant", "content": "Ordered. Anything else?", "tool_calls": calls('{"query": "Mocha"}')},
        {"role": "user", "content": "No."},
        {"role": "assistant", "content": "That is $5.40, ready at 3pm."},
    ],
    [{"role": "user", "content": "{}"}, {"role": "assistant", "tool_calls": calls("{}", "{ }", '{"a": " }}"}')}],
]


def alignable(pairs: SamplePairs, sample: int) -> list[int]:
    """List the loss tokens in no chunk that lie between two boundaries which both sides have within a piece that both write alike.

    By looking each one up, and by nothing that the alignment does.
    """
    islands = pairs.islands[sample]
    assert islands is not None
    ours, theirs, tokens = pairs.student.spans(sample), pairs.teacher.spans(sample), pairs.student.of(sample)
    if ours.content.tobytes() != islands.student.text or theirs.content.tobytes() != islands.teacher.text:
        return []  # a mark that is written in other bytes: places in the texts are none among the tokens' bytes
    covered = np.zeros(len(ours.kinds), dtype=np.bool_)
    for first, last, _, _ in pairs.chunks.ranges[slice(*pairs.chunks.offsets[sample : sample + 2])].tolist():
        covered[first:last] = True
    found = []
    for token in np.flatnonzero(pairs.loss[tokens] & ~covered).tolist():
        start, end = ours.starts[token : token + 2].tolist()
        for key, (begin, stop) in islands.student.pieces.items():
            if key not in islands.student.spoken or key not in islands.teacher.pieces or not (begin <= start and end <= stop):
                continue
            other, other_stop = islands.teacher.pieces[key]
            if islands.student.text[begin:stop] == islands.teacher.text[other:other_stop]:
                mine = ours.starts[(ours.starts >= begin) & (ours.starts <= stop)] - begin
                shared = np.intersect1d(mine, theirs.starts[(theirs.starts >= other) & (theirs.starts <= other_stop)] - other)
                if (shared <= start - begin).any() and (shared >= end - begin).any():
                    found.append(token)
    return found


@pytest.mark.parametrize("teacher_template", TEMPLATES)
@pytest.mark.parametrize("student_template", TEMPLATES)
@pytest.mark.parametrize(
    ("student", "teacher"), [("qwen", "deepseek"), ("deepseek", "qwen"), ("cl100k", "mistral"), ("mistral", "qwen")]
)
def test_what_stays_uncovered_of_tool_calls_has_no_shared_boundary(tokenizer, student, teacher, student_template, teacher_template):
    samples = list(named_samples([conversation_of({"messages": chat}) for chat in CHATS]))
    pairs = tokenize_samples(
        samples, tokenizer(student), tokenizer(teacher), TEMPLATES[student_template], TEMPLATES[teacher_template]
    )
    assert [alignable(pairs, sample) for sample in range(len(samples))] == [[], []]
    ranges = pairs.chunks.ranges
    covered = int((ranges[:, 1] - ranges[:, 0]).sum()) / int(pairs.loss.sum())
    assert covered > 0.6 and (student_template != teacher_template or covered >= 0.8)
    for sample in range(len(samples)):
        ours, theirs = pairs.student.spans(sample), pairs.teacher.spans(sample)
        inside = slice(*pairs.chunks.offsets[sample : sample + 2])
        for (i, j, k, m), exact in zip(ranges[inside].tolist(), pairs.chunks.exact[inside].tolist(), strict=True):
            same = (
                ours.content[ours.starts[i] : ours.starts[j]].tobytes()
                == theirs.content[theirs.starts[k] : theirs.starts[m]].tobytes()
            )
            assert same or not exact


def test_real_conversations_with_tools(tokenizer, shared_data):
    file = shared_data / "chat" / "taskmaster4_tools_07.jsonl"
    samples: list[Sample] = list(read_samples(str(file)))[:40]
    for templates in (("chatml", "blocks"), ("headers", "chatml"), ("code", "blocks")):
        pairs = tokenize_samples(samples, tokenizer("qwen"), tokenizer("deepseek"), *(TEMPLATES[name] for name in templates))
        assert not any(alignable(pairs, sample) for sample in range(len(samples)))
        none = pairs.chunks._replace(offsets=np.zeros_like(pairs.chunks.offsets), ranges=np.empty((0, 4), dtype=np.int64))
        assert all(alignable(replace(pairs, chunks=none), sample) for sample in range(len(samples)))  # nor does it miss any
        assert (pairs.chunks.ranges[:, 1] - pairs.chunks.ranges[:, 0]).sum() > 0.9 * pairs.loss.sum()
