# ruff: noqa: RUF001
"""A student and a teacher of different vocabularies, trained here on a few lines, and datums in files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import AddedToken, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFace

from zephon_core.tokenizers import Tokenizer, load_tokenizer

LINES = (
    "The quick brown fox jumps over the lazy dog. It's what they'd said; we're sure you'll agree, isn't it?",
    "def tokenize(texts):\n    for text in texts:\n        print(text, len(text) // 4)\n\n",
    "Zürich, café, naïve: Größe, Straße, œuvre. 1234567890 3.14159",
    "今天天气很好！你好，世界。 👩‍👩‍👧 مرحبا بالعالم",
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}<|im_start|>tools {{ tools | tojson }}{% endif %}"
)
BARE = (
    "{% for message in messages %}{% if message.role == 'clown' %}{{ raise_exception('no clowns!') }}{% endif %}"
    "{{ '[A]' if message.role == 'assistant' else '[U]' }} {{ message.content | trim }}\n{% endfor %}"
)
SPECIALS = ("<|im_start|>", "<|im_end|>", "[A]", "[U]")
MODEL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
    "initializer_range": 0.2,
}


@cache
def definition(vocabulary: int, lines: tuple[str, ...]) -> str:
    """The tokenizer.json of a byte-level BPE of up to so many tokens, trained on these lines."""
    tokenizer = HuggingFace(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(list(lines) * 2, trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    text: str = tokenizer.to_str()
    return text


def write_side(folder: Path, vocabulary: int, template: str, *lines: str) -> Tokenizer:
    """Write a folder with a tokenizer and a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(definition(vocabulary, lines or LINES))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(template)
    return load_tokenizer(folder)


def write_model(folder: Path, vocabulary: int, seed: int = 0) -> None:
    """Write a small causal language model of random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    Qwen3ForCausalLM(Qwen3Config(vocab_size=vocabulary, **MODEL)).save_pretrained(folder)


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode_batch([text]).ids.tolist()
    return ids


def said(rng: np.random.Generator, words: int) -> str:
    """A text of some words of the lines."""
    every = " ".join(LINES).split(" ")
    return " ".join(every[number] for number in rng.integers(0, len(every), words))


def datum_rows(student: Tokenizer, teacher: Tokenizer, count: int, *, messages: bool, seed: int = 0) -> list[dict[str, Any]]:
    """Datums of a question and an answer each, which carries loss. A few are odd: without tokens, without loss."""
    rng, rows = np.random.default_rng(seed), []
    for number in range(count):
        question, answer = said(rng, int(rng.integers(1, 12))), said(rng, int(rng.integers(1, 40)))
        before = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" if messages else f"{question}\n"
        after = "<|im_end|>\n" if messages else ""
        ids, first = encoded(student, before + answer + after), len(encoded(student, before))
        last = len(ids) - (len(encoded(student, after)) if after else 0)
        if number % 11 == 5:
            ids, first, last = [], 0, 0
        mask = [float(first <= place < last and number % 11 != 7) for place in range(len(ids))]
        side: dict[str, Any] = {"teacher_tokens": encoded(teacher, question + "\n" + answer)}
        if messages:
            side = {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        rows.append(
            {
                "trial_name": f"trial {number // 3}",
                "fragment_index": number % 3,
                "model_input_tokens": ids,
                "loss_mask": mask,
                "sampled_logprobs": [-float(rng.exponential()) * value for value in mask],
                **side,
            }
        )
    return rows


def logprob_rows_of(lengths: list[int], seed: int = 1) -> list[list[float | None]]:
    """A teacher's logprobs for sequences of these lengths."""
    rng = np.random.default_rng(seed)
    return [[None, *(-rng.exponential(size=length - 1)).tolist()] if length else [] for length in lengths]


def write_rows(path: Path, rows: list[dict[str, Any]], *, row_group: int = 7, **types: pa.DataType) -> Path:
    """Write rows as Parquet, in small row groups. types: of columns that can't be told by their values."""
    kinds = {
        "model_input_tokens": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.float32()),
        "sampled_logprobs": pa.list_(pa.float64()),
        "teacher_tokens": pa.list_(pa.int64()),
        "teacher_logprobs": pa.list_(pa.float64()),
        **types,
    }
    columns = {name: pa.array([row[name] for row in rows], kinds.get(name)) for name in rows[0]}
    pq.write_table(pa.table(columns), path, row_group_size=row_group)
    return path


def as_json(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows with their messages as JSON texts."""
    return [{**row, "messages": json.dumps(row["messages"], ensure_ascii=False)} for row in rows]
