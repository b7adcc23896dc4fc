"""The scan against a plain line-by-line builder, and its memory at millions of texts.

    python benchmarks/scan.py --megabytes 300 --texts 10000000 --texts 20000000 --output benchmarks/results/scan.json

Both builders read the same file, one after the other, each in a fresh process: parse, strip, hash, deduplicate, write
texts.jsonl and index.json. `process` counts everything from the start of Python; `work` the second run inside one process, when
imports are done and machine code is loaded; `cpu` is that run's processor time, which a busy machine distorts less. Neither hashes
the source's identity.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from generate_texts import router_rows, short_rows, write_rows

HERE = Path(__file__).parent

SCAN = """
import json, resource, sys, time
from pathlib import Path
from zephon_core.bank.scan import scan_texts, write_index
from zephon_core.bank.specs import ScanSpec
from zephon_core.readers.sources import Source
path, out, threads, memory_mb, runs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
source = Source("", path, "jsonl", "none", Path(path).stat().st_size, "")
for _ in range(runs):
    started, cpu = time.perf_counter(), time.process_time()
    result = scan_texts(ScanSpec(sources=(path,)), [source], out, threads=threads, memory_bytes=memory_mb << 20)
    scanned = time.perf_counter()
    write_index(out, out / "index.json")
    ended, cpu = time.perf_counter(), time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"texts": result["texts"], "distinct": result["distinct"], "spilled_runs": result["spilled_runs"],
                  "scan_s": scanned - started, "seconds": ended - started, "cpu_s": cpu, "peak_rss_mib": peak / 1024}))
"""


def timed(command: list[str]) -> dict[str, Any]:
    """Run a builder; add the seconds from the start of its process to its end."""
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result | {"process_s": time.perf_counter() - started}


def scan(path: Path, out: Path, *, threads: int, memory_mb: int, runs: int) -> dict[str, Any]:
    return timed([sys.executable, "-c", SCAN, str(path), str(out), str(threads), str(memory_mb), str(runs)])


def compare(scratch: Path, megabytes: float, repeats: int, threads: int) -> dict[str, Any]:
    """Alternate both builders `repeats` times on one file; ratios of medians."""
    path = scratch / "rows.jsonl"
    size = write_rows(path, router_rows(), limit_bytes=int(megabytes * 1e6))
    plain_command = [sys.executable, str(HERE / "peers" / "plain_bank.py"), str(scratch / "plain"), str(path)]
    scan(path, scratch / "out", threads=threads, memory_mb=1024, runs=1)  # compiles, on a new machine
    plain, fresh, warm = [], [], []
    for _ in range(repeats):
        plain.append(timed(plain_command))
        fresh.append(scan(path, scratch / "out", threads=threads, memory_mb=1024, runs=1))
        warm.append(scan(path, scratch / "out", threads=threads, memory_mb=1024, runs=2))
    for name in ("texts.jsonl", "kinds.npy", "index.json"):
        if (scratch / "plain" / name).read_bytes() != (scratch / "out" / name).read_bytes():
            raise SystemExit(f"{name} differs between the two builders")
    median = statistics.median
    figures = {
        "plain_process_s": median(run["process_s"] for run in plain),
        "plain_work_s": median(run["seconds"] for run in plain),
        "scan_process_s": median(run["process_s"] for run in fresh),
        "scan_work_s": median(run["seconds"] for run in warm),
        "plain_cpu_s": median(run["cpu_s"] for run in plain),
        "scan_cpu_s": median(run["cpu_s"] for run in warm),
        "scan_without_index_s": median(run["scan_s"] for run in warm),
        "peak_rss_mib": max(run["peak_rss_mib"] for run in fresh),
    }
    return {
        "megabytes": size / 1e6,
        "texts": fresh[0]["texts"],
        "distinct": fresh[0]["distinct"],
        "repeats": repeats,
        "threads": threads,
        **{name: round(value, 3) for name, value in figures.items()},
        "plain_mb_per_s": round(size / 1e6 / figures["plain_work_s"], 1),
        "scan_mb_per_s": round(size / 1e6 / figures["scan_work_s"], 1),
        "ratio_process": round(figures["plain_process_s"] / figures["scan_process_s"], 2),
        "ratio_work": round(figures["plain_work_s"] / figures["scan_work_s"], 2),
        "ratio_cpu": round(figures["plain_cpu_s"] / figures["scan_cpu_s"], 2),
    }


def memory(scratch: Path, texts: int, threads: int, memory_mb: int) -> dict[str, Any]:
    """Scan so many distinct short texts in a fresh process."""
    path = scratch / "short.jsonl"
    size = write_rows(path, short_rows(texts))
    result = scan(path, scratch / "out", threads=threads, memory_mb=memory_mb, runs=1)
    if result["distinct"] != texts:
        raise SystemExit(f"{result['distinct']:,} distinct texts found where {texts:,} were made")
    return {"texts": texts, "megabytes": round(size / 1e6, 1), "memory_mb": memory_mb} | {
        name: round(result[name], 3) for name in ("spilled_runs", "scan_s", "seconds", "peak_rss_mib")
    }


def table(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=300.0, help="size of the file that both builders read; 0: none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--texts", type=int, action="append", default=[], help="measure memory at so many distinct texts")
    parser.add_argument("--memory-mb", type=int, default=1024, help="setting for the memory runs")
    parser.add_argument("--scratch", type=Path, help="folder for generated files; default: a temporary one")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "memory": []}
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        scratch = Path(folder)
        if options.megabytes:
            results["speed"] = compare(scratch, options.megabytes, options.repeats, options.threads)
            table([(name, str(value)) for name, value in results["speed"].items()])
        for texts in options.texts:
            results["memory"].append(memory(scratch, texts, options.threads, options.memory_mb))
            table([(name, str(value)) for name, value in results["memory"][-1].items()])
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
