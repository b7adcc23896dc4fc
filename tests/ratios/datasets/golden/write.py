"""Write the golden MDS and LitData folders anew: python write.py mds|litdata DIRECTORY.

Run with mosaicml-streaming 0.13.0 (brotli and python-snappy beside it), or litdata 0.2.76 (zstd and pyarrow beside it), each in an
environment of its own. The tests need neither: they read what lies here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

MDS_COLUMNS = {
    "text": "str",
    "id": "int",
    "tokens": "ndarray:uint16",
    "any": "ndarray",
    "meta": "json",
    "blob": "bytes",
    "half": "float32",
    "pickled": "pkl",
    "fixed": "ndarray:int32:3",
    "large": "str_int",
    "decimal": "str_decimal",
    "small": "uint8",
}


def mds_sample(number: int) -> dict[str, Any]:
    """Sample `number`, with a column of every kind of encoding."""
    return {
        "text": "héllo " * number,
        "id": number,
        "tokens": np.arange(number + 1, dtype=np.uint16),
        "any": np.ones((2, number + 1), np.float32),
        "meta": {"a": [number, "x"]},
        "blob": b"\xff" * number,
        "half": np.float32(number / 2),
        "pickled": {1: 2},
        "fixed": np.arange(3, dtype=np.int32),
        "large": 10**20 + number,
        "decimal": Decimal("1.5"),
        "small": np.uint8(number),
    }


def litdata_item(number: int) -> dict[str, Any]:
    """Item `number`, with a leaf of every format that is decoded; arrays as numpy arrays."""
    turns = [{"role": "user", "content": "hé" * number}, {"role": "assistant", "content": "y", "n": 1}]
    return {
        "text": "héllo " * number,
        "id": number,
        "half": number / 2,
        "flag": True,
        "raw": b"\xff" * number,
        "ids": np.arange(number, dtype=np.int64),
        "row": np.arange(number, dtype=np.int32) + 1,
        "table": np.ones((2, 3), np.float32),
        "grid": np.ones((3, number + 1), np.float64),
        "nested": {"a": "x", "turns": turns},
        "pair": ("a", [1, 2]),
    }


def chat_row(number: int) -> dict[str, Any]:
    """Row `number` of nothing but texts, numbers and lists, which litdata keeps as Arrow."""
    turns = [{"role": "user", "content": "hé" * number}, {"role": "assistant", "content": "y"}]
    return {"id": number, "text": "wörd " * number, "messages": turns * (1 + number % 3)}


def write_mds(folder: Path) -> None:
    from streaming import MDSWriter

    for compression in (None, "zstd", "gz", "bz2", "br", "snappy"):
        out = str(folder / (compression or "plain"))
        with MDSWriter(out=out, columns=MDS_COLUMNS, compression=compression, size_limit=1000, hashes=["sha1"]) as writer:
            for number in range(6):
                writer.write(mds_sample(number))


def write_litdata(folder: Path) -> None:
    import litdata
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    def items(kind: str) -> Iterator[Any]:
        for number in range(7):
            if kind == "dict":
                tensors = ("ids", "table")
                item = litdata_item(number)
                yield {name: torch.from_numpy(value) if name in tensors else value for name, value in item.items()}
            elif kind == "str":
                yield "wörd " * number
            else:
                yield torch.arange(number + 1, dtype=torch.int32)

    for kind in ("dict", "str", "tokens"):
        for level in (None, "batch", "sample", "chunk"):
            if kind == "tokens" and level not in (None, "chunk"):
                continue
            out = folder / f"{kind}-{level or 'plain'}"
            out.mkdir()
            writer = BinaryWriter(
                str(out),
                chunk_bytes=None if kind == "tokens" else 1200,
                chunk_size=12 if kind == "tokens" else None,
                compression="zstd" if level else None,
                compression_level=level,
                compression_batch_size=2 if level == "batch" else None,
                item_loader=TokensLoader() if kind == "tokens" else None,
            )
            for number, item in enumerate(items(kind)):
                writer.add_item(number, item)
            writer.done()
            writer.merge()
    for compression in (None, "zstd"):
        out = folder / f"chat-{compression or 'plain'}"
        litdata.optimize(
            fn=chat_row, inputs=list(range(7)), output_dir=str(out), chunk_size=4, num_workers=1, compression=compression
        )


if __name__ == "__main__":
    {"mds": write_mds, "litdata": write_litdata}[sys.argv[1]](Path(sys.argv[2]))
