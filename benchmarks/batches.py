"""Token-budget batches: planning, stepping and restoring beside numpy's own passes over the lengths, and beside other batchers.

    python benchmarks/batches.py [--examples 100000000] [--peer-examples 300000 3000000] [--peers FOLDER|none]
                                 [--only stepping …] [--json result.json]

Lengths are drawn from a log-normal distribution with a long tail (mean about 370 tokens, none above the budget of 8,192).

    cuts        the packed and the padded cut of the whole table in its order, against numpy's cumulative sum of it
    epoch       a shuffled epoch from nothing (order, gather, cut), against numpy's permutation and gather alone
    stepping    batch by batch through a rank's sampler and a plan's cursor, against plain Python loops that fill the batches
                (plain_batches.py); also with lengths of a mean of about 90, as the texts of router rows have, and so four times
                the examples in a batch
    restoring   in the middle of an epoch of 10 million, against numpy's sum of the lengths
    memory      peak of a fresh process, less what it took with its code loaded and no table, against the table's bytes
    plan        GlobalBatchPlan with buckets: build, statistics, save, open, the size of its state
    peers       planning, padding waste and restoring on the same lengths, each peer in an environment of its own
                (peers/batch_environments.py makes them, in FOLDER or the user's cache); planning with all cores and with one,
                as none of the peers uses more, of lengths that are known, as in every epoch but a table's first, and "anew": read
                for the first time, checked and identified (SHA-256), which no peer does

Rounds alternate between the contestants; figures are medians, ratios are taken within a round. Quote the ratios.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from zephon_core.batching import (
    GlobalBatchCursor,
    GlobalBatchPlan,
    LengthTable,
    StatefulShardSampler,
    StatefulTokenBatchSampler,
    TokenBatchOptions,
    cut_batches,
    epoch_order,
)

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from plain_batches import PlainLoop  # noqa: E402

BUDGET = 8192
WORLD_SIZE = 8
BUCKET_WIDTH = 64
STEPPED = 20_000_000
MOST_OF_A_PEER = {"lhotse": 300_000}
PACKED = TokenBatchOptions(maximum_tokens=BUDGET)
PADDED = TokenBatchOptions(maximum_tokens=BUDGET, layout="padded")

MEMORY = """
import json, re, sys
from pathlib import Path
import numpy as np
from zephon_core.batching import GlobalBatchPlan, LengthTable, TokenBatchOptions, cut_batches, epoch_order
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
options = TokenBatchOptions(maximum_tokens=8192, layout="padded")
small = LengthTable.of(np.full(1000, 9, np.int32))
GlobalBatchPlan.build(small, options, world_size=8, bucket_width=64)
cut_batches(small, epoch_order(1000, seed=0, epoch=0), options)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = peak()
table = LengthTable.of(np.load(sys.argv[1]))
if sys.argv[2] == "plan":
    held = GlobalBatchPlan.build(table, options, world_size=8, bucket_width=64)
else:
    order = epoch_order(table.count, seed=0, epoch=0)
    held = order, cut_batches(table, order, options)
json.dump({"table bytes": table.values.nbytes, "peak bytes": peak() - before}, sys.stdout)
"""


def drawn_lengths(count: int, seed: int = 0, middle: float = 5.3) -> np.ndarray:
    """Return int32 [count], drawn in blocks so that no array of floats is larger than the result; e**middle is their median."""
    rng = np.random.default_rng(seed)
    lengths = np.empty(count, np.int32)
    for first in range(0, count, 1 << 22):
        block = lengths[first : first + (1 << 22)]
        block[:] = np.minimum(np.exp(rng.standard_normal(len(block), np.float32) * 1.1 + middle) + 1, BUDGET)
    return lengths


def alternate(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time each once a round, after a round that warms up; a contestant that returns a float has measured itself."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(repeats + 1):
        for name, work in contestants.items():
            started = time.perf_counter()
            result = work()
            seconds = result if isinstance(result, float) else time.perf_counter() - started
            del result
            if round_number:
                times[name].append(seconds)
    return times


def against(times: dict[str, list[float]], name: str, reference: str) -> dict[str, float]:
    """Return the medians of both, and the median over the rounds of how many times the reference's seconds `name` took."""
    ratios = [mine / its for mine, its in zip(times[name], times[reference], strict=True)]
    return {
        "seconds": statistics.median(times[name]),
        f"{reference} seconds": statistics.median(times[reference]),
        f"times {reference}": statistics.median(ratios),
    }


def cuts(lengths: np.ndarray, repeats: int) -> dict[str, Any]:
    table = LengthTable.of(lengths)
    times = alternate(
        {
            "cumsum": lambda: np.cumsum(lengths),
            "packed": lambda: cut_batches(table, None, PACKED),
            "padded": lambda: cut_batches(table, None, PADDED),
        },
        repeats,
    )
    return {f"{name} cut": against(times, name, "cumsum") for name in ("packed", "padded")}


def epochs(lengths: np.ndarray, repeats: int) -> dict[str, Any]:
    table, rng = LengthTable.of(lengths), np.random.default_rng(0)

    def ours(options: TokenBatchOptions) -> None:
        order = epoch_order(table.count, seed=0, epoch=0)
        cut_batches(table, order, options)

    times = alternate(
        {
            "permutation and gather": lambda: lengths[rng.permutation(len(lengths))].sum(),
            "packed": lambda: ours(PACKED),
            "padded": lambda: ours(PADDED),
            "plan": lambda: build(lengths),
        },
        repeats,
    )
    named = {"packed": "packed epoch", "padded": "padded epoch", "plan": "global plan, padded, buckets"}
    return {title: against(times, name, "permutation and gather") for name, title in named.items()}


def stepping(lengths: np.ndarray, repeats: int) -> dict[str, Any]:
    """Nanoseconds a batch, batch by batch, each committed; all begin with nothing, so making the order is in their time.

    Beside `PlainLoop`, which looks up each length; "gathered": with the lengths looked up by numpy; "as lists": ours made lists of,
    as the loop's batches are. The cursor steps through a plan with buckets: one that lies there already, and one that is made
    first; both against the loop that sorts windows of as many examples.
    """
    table = LengthTable.of(lengths)
    sizes = lengths.tolist()
    gc.freeze()  # lists so long slow down every collection of garbage
    plan = GlobalBatchPlan.build(table, PADDED, world_size=1, bucket_width=BUCKET_WIDTH)
    window = len(lengths) * BUCKET_WIDTH // plan.steps
    counts: dict[str, int] = {}

    def stepped(name: str, batches: Iterable[Any], commit: Callable[[], object]) -> None:
        count = 0
        for _ in batches:
            commit()
            count += 1
        counts[name] = count

    def loop(method: str, *arguments: int) -> Callable[[], None]:
        def run() -> None:
            one = PlainLoop(lengths, sizes, BUDGET)
            stepped(method, getattr(one, method)(*arguments), one.commit)

        return run

    def sampler(options: TokenBatchOptions) -> StatefulTokenBatchSampler:
        return StatefulTokenBatchSampler(StatefulShardSampler("bench", len(lengths), 0, 1, shuffle_seed=0), table, options)

    def ours(name: str, make: Callable[[], StatefulTokenBatchSampler | GlobalBatchCursor]) -> Callable[[], None]:
        def run() -> None:
            one = make()
            stepped(name, one, one.commit)

        return run

    def as_lists() -> None:
        one = sampler(PACKED)
        stepped("packed, as lists", (plan.indices.tolist() for plan in one), one.commit)

    works = {
        "packed": ours("packed", lambda: sampler(PACKED)),
        "packed, as lists": as_lists,
        "padded": ours("padded", lambda: sampler(PADDED)),
        "buckets, plan at hand": ours("buckets, plan at hand", lambda: GlobalBatchCursor(plan, 0)),
        "buckets, planned first": ours("buckets, planned first", lambda: GlobalBatchCursor(plan.next_epoch(), 0)),
    }
    loops = {"packed": loop("packed"), "gathered": loop("gathered"), "padded": loop("padded"), "bucketed": loop("bucketed", window)}
    times = alternate({**works, **{f"{name} loop": run for name, run in loops.items()}}, repeats)
    gc.unfreeze()
    result: dict[str, Any] = {"examples": len(lengths), "mean length": float(lengths.mean())}
    for name in works:
        mine, count = times[name], counts[name]
        result[name] = {"examples a batch": len(lengths) / count, "nanoseconds a batch": statistics.median(mine) / count * 1e9}
        for peer in {"pac": ["packed", "gathered"], "pad": ["padded"], "buc": ["bucketed"]}[name[:3]]:
            its = times[f"{peer} loop"]
            result[name] |= {
                f"{peer} loop, nanoseconds a batch": statistics.median(its) / counts[peer] * 1e9,
                f"times faster than the {peer} loop": statistics.median(b / a for a, b in zip(mine, its, strict=True)),
            }
    return result


def restoring(path: Path, repeats: int) -> dict[str, Any]:
    lengths = np.load(path, mmap_mode="r")
    sampler = StatefulTokenBatchSampler(
        StatefulShardSampler("bench", len(lengths), 3, WORLD_SIZE, shuffle_seed=0), LengthTable.of(path), PADDED
    )
    for _ in sampler:
        sampler.commit(1)
        if sampler.sampler.committed * 2 > sampler.sampler.length:
            break
    state = json.dumps(sampler.state(lengths="reference"))
    whole = GlobalBatchPlan.build(path, PADDED, world_size=WORLD_SIZE, bucket_width=BUCKET_WIDTH)
    cursor = GlobalBatchCursor(whole, 3)
    cursor.seek(whole.steps // 2)
    place = json.dumps(cursor.state())
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        whole.save(folder)

        def mapped() -> None:
            opened = GlobalBatchCursor(GlobalBatchPlan.open(folder, verify=False), 3)
            opened.load_state(place)
            opened.next_plan()

        times = alternate(
            {
                "sum": lambda: np.load(path, mmap_mode="r").sum(),
                "sampler": lambda: StatefulTokenBatchSampler.from_state(state).next_plan(),
                "cursor": lambda: GlobalBatchCursor.from_state(place, path, 3).next_plan(),
                "mapped": mapped,
            },
            repeats,
        )
    named = {"sampler": "sampler by reference", "mapped": "cursor, plan mapped", "cursor": "cursor, plan made again"}
    result: dict[str, Any] = {title: against(times, name, "sum") for name, title in named.items()}
    return result | {"sampler state bytes": len(state), "cursor state bytes": len(place)}


def memory(path: Path) -> dict[str, Any]:
    result = {}
    for name in ("epoch", "plan"):
        done = subprocess.run([sys.executable, "-c", MEMORY, str(path), name], stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout)
        result[name] = found | {"times the table": found["peak bytes"] / found["table bytes"]}
    return result


def plan_figures(path: Path) -> dict[str, Any]:
    """One global plan, step by step."""
    table, result = LengthTable.of(path), {}
    _ = table.sha256
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        clock = [time.perf_counter()]
        plan = GlobalBatchPlan.build(table, PADDED, world_size=WORLD_SIZE, bucket_width=BUCKET_WIDTH)
        clock.append(time.perf_counter())
        figures = plan.statistics
        clock.append(time.perf_counter())
        plan.save(folder)
        clock.append(time.perf_counter())
        GlobalBatchPlan.open(folder)
        clock.append(time.perf_counter())
        GlobalBatchPlan.open(folder, verify=False)
        clock.append(time.perf_counter())
        rest = plan.reshard(plan.steps // 2, WORLD_SIZE - 1)
        clock.append(time.perf_counter())
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    names = ("build", "statistics", "save", "open and verify", "open", "reshard in the middle")
    result = {f"{name} seconds": after - before for name, before, after in zip(names, clock, clock[1:], strict=False)}
    packed = GlobalBatchPlan.build(table, PACKED, world_size=WORLD_SIZE).statistics
    return result | {
        "file bytes": size,
        "resharded steps": rest.steps,
        "padded": figures.model_dump(mode="json", exclude={"batch_examples", "batch_slots"}),
        "packed": packed.model_dump(mode="json", exclude={"batch_examples", "batch_slots"}),
    }


def build(lengths: np.ndarray) -> GlobalBatchPlan:
    """Plan with nothing known of the lengths: they are checked and identified anew."""
    return GlobalBatchPlan.build(LengthTable.of(lengths), PADDED, world_size=WORLD_SIZE, bucket_width=BUCKET_WIDTH)


def on_one_core(work: Callable[[], object]) -> float:
    """Seconds of a piece of work on one of the cores that the process may use."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        started = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - started
        del result
        return seconds
    finally:
        os.sched_setaffinity(0, allowed)


def peers(lengths: np.ndarray, folder: Path | None, scratch: Path, repeats: int) -> dict[str, Any]:
    sys.path.insert(0, str(HERE / "peers"))
    from batch_environments import environments

    path = scratch / "peer_lengths.npy"
    np.save(path, lengths)
    result: dict[str, Any] = {}
    known = build(lengths)
    contestants: dict[str, Callable[[], object]] = {
        "all cores": known.next_epoch,
        "one core": lambda: on_one_core(known.next_epoch),
        "anew, all cores": lambda: build(lengths),
        "anew, one core": lambda: on_one_core(lambda: build(lengths)),
    }
    ours: dict[str, list[float]] = {cores: [] for cores in contestants}
    for name, python in environments(folder).items():
        if python.startswith("!"):
            result[name] = {"not measured": python[1:]}
            continue
        if len(lengths) > MOST_OF_A_PEER.get(name, len(lengths)):
            result[name] = {"not measured": f"it would take minutes and gigabytes beyond {MOST_OF_A_PEER[name]:,} examples"}
            continue
        command = [python, str(HERE / "peers" / "token_batches.py"), name, str(path), str(BUDGET), str(repeats)]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        mine = alternate(contestants, 5 * repeats)  # milliseconds each
        if done.returncode:
            result[name] = {"not measured": done.stderr.strip().splitlines()[-1]}
            continue
        result[name] = json.loads(done.stdout)
        for cores, seconds in mine.items():
            ours[cores] += seconds
            result[name][f"times our planning, {cores}"] = result[name]["plan_s"] / statistics.median(seconds)
    plan = build(lengths)
    cursor = GlobalBatchCursor(plan, 3)
    cursor.seek(plan.steps // 2)
    state = cursor.state()
    restored = alternate({"cursor": lambda: GlobalBatchCursor.from_state(state, lengths, 3).next_plan()}, repeats)["cursor"]
    measured = [value for value in result.values() if "plan_s" in value]
    best = {}
    for cores in ours:
        title = f"times our planning, {cores}"
        best[f"best peer, {title}"] = min((value[title] for value in measured), default=None)
    for value in measured:
        value["times our restoring"] = value["restore_s"] / statistics.median(restored)
    result["zephon-flows"] = {
        **{f"plan_s, {cores}": statistics.median(seconds) for cores, seconds in ours.items() if seconds},
        "restore_s": statistics.median(restored),
        "examples": len(lengths),
        "padding_waste": plan.statistics.padding_waste,
        "batches": plan.statistics.batches,
    }
    return best | result


def show(name: str, value: Any, indent: int = 0) -> None:
    if isinstance(value, dict):
        print(f"{' ' * indent}{name}")
        for key, item in value.items():
            show(key, item, indent + 2)
    else:
        shown = f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
        print(f"{' ' * indent}{name:<{max(1, 44 - indent)}}{shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100_000_000, help="of our own figures")
    parser.add_argument("--peer-examples", type=int, nargs="*", default=[300_000, 3_000_000], help="of the comparisons with peers")
    parser.add_argument("--peers", default="", help="folder of the peers' environments; default: in the user's cache")
    parser.add_argument("--only", nargs="*", help="sections to measure; default: all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for generated files; default: a temporary one")
    parser.add_argument("--json", type=Path, help="where to keep the result")
    options = parser.parse_args()
    lengths, few = drawn_lengths(options.examples), min(3, options.repeats)
    results: dict[str, Any] = {
        "benchmark": "batches",
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "examples": options.examples,
        "mean length": float(lengths.mean()),
        "budget": BUDGET,
        "world_size": WORLD_SIZE,
        "bucket_width": BUCKET_WIDTH,
    }
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        scratch = Path(name)
        path, middle = scratch / "lengths.npy", scratch / "middle.npy"
        np.save(path, lengths)
        np.save(middle, lengths[:10_000_000])
        sections: dict[str, Callable[[], Any]] = {
            "cuts": lambda: cuts(lengths, options.repeats),
            "epoch": lambda: epochs(lengths, options.repeats),
            "stepping": lambda: stepping(lengths[:STEPPED], min(options.repeats, 3)),
            "stepping, short texts": lambda: stepping(
                drawn_lengths(min(STEPPED, len(lengths)), middle=3.9), min(options.repeats, 3)
            ),
            "restoring": lambda: restoring(middle, options.repeats),
            "plan": lambda: plan_figures(path),
            "memory": lambda: memory(path),
        }
        if options.peer_examples and options.peers != "none":
            folder = Path(options.peers) if options.peers else None
            sections["peers"] = lambda: {
                f"{count:,} examples": peers(lengths[:count], folder, scratch, few) for count in options.peer_examples
            }
        for section, measure in sections.items():
            if options.only and section not in options.only:
                continue
            results[section] = measure()
            show(section, results[section])
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
