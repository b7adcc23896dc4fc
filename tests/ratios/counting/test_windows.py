# ruff: noqa: RUF001
"""Windows that partition a text add up to its tokens, wherever they are cut."""

from __future__ import annotations

import itertools
import random
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding

from zephon_core.errors import FatalCountError, SpecError
from zephon_core.ratios.counting import windows
from zephon_core.ratios.counting.windows import WindowCounter
from zephon_core.tokenizers import Tokenizer, load_tokenizer

WORDS = [
    *("the", "Fox", "jumps", "isn't", "they'd've", "naïve", "Straße", "A\u030angström", "ﬁne", "_", "a_b"),
    *("१२", "हिन्दी", "страница", "日本語の", "。", "，", "👩‍👩‍👧‍👦", "\u0301", "\u200d", "…", "--", "...", "(x)", "[0]", "=="),
    *("3.14159", "2024", "0xDEADBEEF", "<s>", "<|im_end|>", "<|im_"),
]
BLANKS = [" ", " ", " ", " ", "", "\n", "\n\n", "  ", "\t", " \n ", "\r\n", "\u00a0", "\u3000"]

texts = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(BLANKS)), max_size=60).map(
    lambda pairs: "".join(itertools.chain.from_iterable(pairs))
)


@cache
def loaded(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def partition(text: str, cuts: list[float]) -> list[int]:
    return sorted({0, len(text), *(int(cut * len(text)) for cut in cuts)})


def window_sum(counter: WindowCounter, text: str, bounds: list[int]) -> int:
    starts, stops = bounds[:-1], bounds[1:]
    return int(counter.count([text] * len(starts), starts, stops).sum())


@pytest.mark.parametrize("name", ["byte_level", "wordpiece", "sentencepiece"])
@settings(max_examples=200)
@given(text=texts, cuts=st.lists(st.floats(0, 1), max_size=6), worth_cutting=st.sampled_from([1, 20, 512]))
def test_windows_add_up_where_safe_positions_are_known(folders, name, text, cuts, worth_cutting):
    tokenizer = loaded(folders[name])
    counter = WindowCounter(tokenizer)
    assert counter.exact
    expected = len(tokenizer.huggingface.encode(text, add_special_tokens=False))
    with patch.object(windows, "_WORTH_CUTTING_CHARACTERS", worth_cutting):
        assert window_sum(counter, text, partition(text, cuts)) == expected


@settings(max_examples=100)
@given(text=texts, cuts=st.lists(st.floats(0, 1), max_size=6))
def test_windows_add_up_for_other_tokenizers_too(folders, text, cuts):
    tokenizer = loaded(folders["unigram"])
    counter = WindowCounter(tokenizer)
    assert not counter.exact
    assert window_sum(counter, text, partition(text, cuts)) == len(tokenizer.huggingface.encode(text, add_special_tokens=False))


def test_each_token_is_in_the_window_where_it_starts(folder):
    tokenizer = loaded(folder)
    counter = WindowCounter(tokenizer)
    words = random.Random(7)
    text = " ".join(words.choices(["the", "quick", "naïve", "Straße", "isn't", "भाषा", "日本", "42", "(x)"], k=400))
    encoding: Encoding = tokenizer.huggingface.encode(text, add_special_tokens=False)
    first_characters = [start for start, _ in encoding.offsets]
    for _ in range(60):
        start = words.randrange(len(text))
        stop = words.randrange(start, len(text) + 1)
        expected = sum(start <= first < stop for first in first_characters)
        assert counter.count([text], [start], [stop]).tolist() == [expected]


def test_many_windows_in_one_call(folder):
    counter = WindowCounter(loaded(folder))
    text = "Some words, and some more of them; isn't it? " * 200
    cuts = list(range(0, len(text) + 1, 90))
    together = counter.count([text] * (len(cuts) - 1), cuts[:-1], cuts[1:])
    assert together.tolist() == [int(counter.count([text], [a], [b])[0]) for a, b in itertools.pairwise(cuts)]
    assert counter.count([], [], []).tolist() == []
    assert counter.count([text, "", "ab"], [5, 0, 2], [5, 0, 2]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", ["letters", "blanks", "same", "ideographs", "marks"])
def test_without_a_safe_position_in_reach_windows_are_nearly_right(folder, kind):
    words = random.Random(3)
    text = {
        "letters": "".join(words.choices("ACGT", k=20_000)),
        "blanks": " " * 20_000,
        "same": "a" * 20_000,
        "ideographs": "".join(words.choices("日本語文字境界", k=20_000)),
        "marks": "=-" * 10_000,
    }[kind]
    tokenizer = loaded(folder)
    expected = len(tokenizer.huggingface.encode(text, add_special_tokens=False))
    counted = window_sum(WindowCounter(tokenizer), text, list(range(0, 20_001, 2000)))
    assert abs(counted - expected) <= 0.01 * expected + 10


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 6)])
def test_a_window_outside_its_text_is_refused(byte_level, start, stop):
    with pytest.raises(SpecError, match="of the text's 5 characters"):
        WindowCounter(loaded(byte_level)).count(["hello"], [start], [stop])


def test_a_lone_surrogate_is_fatal(byte_level):
    counter = WindowCounter(loaded(byte_level))
    with pytest.raises(FatalCountError, match="lone surrogate") as caught:
        counter.count(["fine", "a \udfff b"], [0, 0], [4, 3])
    assert caught.value.position == 1


@pytest.mark.parametrize("name", ["code_py", "zh_manpages", "hi_lohelp", "html_git", "json_api"])
def test_real_texts(folder, shared_data, name):
    tokenizer = loaded(folder)
    file = min((shared_data / "corpora" / name).glob("*.parquet"))
    text = max(pq.read_table(file)["text"].to_pylist(), key=len)[:30_000]
    counted = window_sum(WindowCounter(tokenizer), text, [*range(0, len(text), 2048), len(text)])
    assert counted == len(tokenizer.huggingface.encode(text, add_special_tokens=False))
