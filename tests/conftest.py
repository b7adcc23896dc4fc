"""What all tests share: where the test data are, hypothesis settings, and plain restatements of what fast code must compute."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# The first call of compiled code takes seconds, and tests share their machine: no example is judged by its time.
settings.register_profile("zephon", deadline=None, print_blob=True)
settings.load_profile("zephon")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of test data: $ZEPHON_TEST_DATA, else ../shared/data beside the checkout."""
    folder = Path(os.environ.get("ZEPHON_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("no test data; set ZEPHON_TEST_DATA to their folder")
    return folder


@dataclass
class ExpectedScan:
    """What a scan must write, worked out row by row in plain Python."""

    texts: list[bytes] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    bad: list[tuple[int, int, int | None, str]] = field(default_factory=list)
    rows: int = 0
    total: int = 0

    def files(self) -> dict[str, bytes]:
        """The bytes of every file."""
        lines = [json.dumps(text.decode(), ensure_ascii=False).encode() + b"\n" for text in self.texts]
        digests = [hashlib.sha1(text).digest() for text in self.texts]
        order = sorted(range(len(digests)), key=lambda row: digests[row])
        arrays = {
            "digests.npy": np.array([list(digests[row]) for row in order], np.uint8).reshape(-1, 20),
            "rows.npy": np.array(order, np.uint32),
            "kinds.npy": np.array(self.kinds, np.uint8),
            "text_offsets.npy": np.cumsum([0, *map(len, lines)], dtype=np.uint64),
        }
        index = json.dumps({digest.hex(): row for row, digest in enumerate(digests)}).encode()
        return {"texts.jsonl": b"".join(lines), "index.json": index} | {name: npy(array) for name, array in arrays.items()}


def npy(array: np.ndarray) -> bytes:
    """The bytes of an array's .npy file."""
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture(scope="session")
def expected_scan() -> Callable[..., ExpectedScan]:
    """A function (sources' rows, fields) -> ExpectedScan; see `_expected_scan`."""
    return _expected_scan


def _expected_scan(
    sources: Sequence[bytes | Iterable[object]],
    fields: Sequence[str] = ("query", "candidates[].text"),
    max_row_bytes: int = 64 << 20,
) -> ExpectedScan:
    """Scan sources by the reference: bytes are JSONL as stored without compression, anything else yields parsed rows."""
    from zephon_core.bank.scan.fields import compile_fields
    from zephon_core.bank.scan.reference import line_texts, row_texts
    from zephon_core.bank.specs import FieldSpec
    from zephon_core.readers.rows import RowProblem

    table = compile_fields([FieldSpec.model_validate(path) for path in fields])
    expected = ExpectedScan()
    seen = set()
    for number, source in enumerate(sources):
        offset = 0
        items: Iterable[object] = source
        if isinstance(source, bytes):
            offset = 3 if source.startswith(b"\xef\xbb\xbf") else 0
            items = source[offset:].split(b"\n")
        last = len(items) - 1 if isinstance(items, list) else -1
        for position, item in enumerate(items):
            start, size = offset, len(item) + 1 if isinstance(item, bytes) else 0
            offset += size
            try:
                if isinstance(item, bytes):
                    texts = line_texts(item.removesuffix(b"\r") if position < last else item, table, max_row_bytes)
                    if texts is None:
                        continue
                else:
                    texts = row_texts(item, table)
            except RowProblem as problem:
                expected.rows += 1
                expected.bad.append((number, position + 1, start if isinstance(item, bytes) else None, problem.reason))
                continue
            expected.rows += 1
            expected.total += len(texts)
            for position_field, text in texts:
                if text not in seen:
                    seen.add(text)
                    expected.texts.append(text)
                    expected.kinds.append(int(table.kinds[position_field]))
    return expected
