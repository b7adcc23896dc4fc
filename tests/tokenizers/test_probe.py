"""The probe holds what it says it holds, the same each time."""

from __future__ import annotations

import unicodedata

from zephon_core.tokenizers.byte_alphabet import SYMBOL_OF_BYTE
from zephon_core.tokenizers.probe import probe_texts

DEFINITION = {
    "model": {
        "vocab": {
            "".join(SYMBOL_OF_BYTE[byte] for byte in token): i for i, token in enumerate((b" word", b"\xe4\xb8\xad", b"\xe4"))
        }
    },
    "added_tokens": [{"content": "<|end|>"}],
}


def test_it_is_the_same_each_time_and_short_enough() -> None:
    texts = list(probe_texts(DEFINITION))
    assert texts == list(probe_texts(DEFINITION))
    assert 15_000 < len(texts) < 50_000
    assert max(map(len, texts)) < 10_000


def test_it_covers_unicode() -> None:
    characters = set("".join(probe_texts(DEFINITION)))
    categories = {unicodedata.category(character) for character in characters}
    assert categories == {unicodedata.category(chr(code)) for code in range(0x110000)} - {"Cs"}
    uniform = [range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0xAC00, 0xD7A4), range(0xD800, 0xF900)]
    assert not [code for code in range(0x10000) if chr(code) not in characters and not any(code in block for block in uniform)]
    assert all(chr(0x1F000 + offset) in characters for offset in range(0xB00))
    assert all(any(chr(code) in characters for code in range(plane << 16, (plane + 1) << 16)) for plane in range(17))
    assert {" \n", "\r\n", "\u3000\u00a0"} <= {text[i : i + 2] for text in probe_texts(DEFINITION) for i in range(len(text) - 1)}
    assert any(unicodedata.normalize("NFC", text) != text for text in probe_texts(DEFINITION))


def test_it_covers_the_vocabulary_and_special_tokens() -> None:
    texts = set(probe_texts(DEFINITION))
    assert {" word", "中", "<|end|>", "<|end|", "|end|>", "a<|end|>b", "<|END|>", ""} <= texts
    assert any(text.startswith(" word") and len(text) > 5 for text in texts)
