"""`zephon-flows bank …`: build, look at and check feature banks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zephon_core.bank.look import add_commands
from zephon_core.console import (
    Flag,
    JsonOption,
    StoreOption,
    VerboseOption,
    choose_progress,
    command_errors,
    emit,
    plain,
    spec_and_run,
    validated,
    with_parameters,
)
from zephon_core.progress import format_amount

if TYPE_CHECKING:
    from zephon_core.bank.build import BankResult
    from zephon_core.bank.specs import BankSpec, RunOptions

__all__ = ["app"]

app = typer.Typer(
    name="bank", help="Feature banks: every distinct text encoded once by a frozen transformer.", no_args_is_help=True
)

_FLAGS = (
    Flag("--source", "spec.scan.sources", list[str], "A file, glob or URL of rows; repeat it.", "[NAME=]URL"),
    Flag("--model", "spec.encode.model.path", str, "The frozen transformer.", "DIR|package.module:factory"),
    Flag("--output", "run.output", str, "Where the bank is published. [default: nowhere, it lies in the store]", "DIR"),
    Flag("--fields", "spec.scan.fields", str, "Field paths with commas. [default: query,candidates[].text]"),
    Flag("--tokenizer", "spec.tokenize.tokenizer", str, "The tokenizer; a factory brings none. [default: the model's]", "DIR|FILE"),
    Flag("--max-key-tokens", "spec.tokenize.max_key_tokens", int, "Tokens kept of a text. [default: 256]"),
    Flag("--max-batch", "spec.encode.max_batch", int, "Most rows in a block. [default: 128]"),
    Flag("--token-budget", "spec.encode.token_budget", int, "Most tokens in a block. [default: 8192]"),
    Flag("--pooling", "spec.encode.pooling", str, "model, mean, last or cls. [default: model]"),
    Flag("--dtype", "spec.encode.model.dtype", str, "float32, bfloat16 or float16. [default: float32]"),
    Flag("--quantization", "spec.encode.model.quantization", str, "none, 4bit or 8bit. [default: none]"),
    Flag("--backbone", "spec.encode.model.backbone", str, "inner or outer. [default: inner]"),
    Flag("--engine", "spec.encode.model.engine", str, "torch or openvino. [default: torch]"),
    Flag("--grouping", "spec.encode.grouping", str, "exact_token_length, packed or padded. [default: exact_token_length]"),
    Flag("--on-bad-row", "spec.scan.on_bad_row", str, "error or quarantine. [default: error]"),
    Flag(
        "--allow-poison",
        "spec.encode.allow_poison",
        bool,
        "Complete a bank in spite of poison rows. [default: no]",
        off="--no-allow-poison",
    ),
    Flag("--base", "spec.base", str, "A bank to extend: its rows stay, and only texts that it lacks are encoded.", "DIR"),
    Flag("--name", "spec.name", str, "What people call this bank. [default: bank]"),
    Flag("--index", "spec.write_index", bool, "Write index.json. [default: yes]", off="--no-index"),
    Flag("--device", "run.device", str, "auto, cpu, cuda or cuda:N. [default: auto]"),
    Flag("--gpu-memory-gb", "run.gpu_memory_gb", float, "Never use more of a GPU's memory. [default: no limit]"),
    Flag("--threads", "run.workers", int, "Workers a step. [default: one a core]"),
    Flag("--memory-mb", "run.memory_mb", int, "Scan memory before it spills to disk. [default: 1024]"),
    Flag("--limit-texts", "run.limit_texts", int, "Encode only the first N rows now; the bank stays incomplete. [default: all]"),
    Flag("--rows", "run.rows", str, "Encode only this range of the length-sorted order. [default: all]", "START:END"),
    Flag("--parts", "run.parts", int, "Split the encode into N parts. [default: 1]"),
    Flag("--part", "run.part", int, "Encode only this part, from 0. [default: all]"),
    Flag("--refresh", "run.refresh", bool, "Recompute what is there, and compare. [default: no]", off="--no-refresh"),
    Flag("--store", "run.store", str, "Where artifacts are kept. [default: $ZEPHON_STORE or the user cache]", "DIR"),
)


@app.command()
@with_parameters(_FLAGS)
def build(*, values: dict[str, Any], as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Build a bank, or finish an interrupted one: scan → tokenize → encode → manifest."""
    spec, run = _parameters(values)
    from zephon_core.bank.build import build_bank

    result = build_bank(spec, run, progress=choose_progress(as_json=as_json, verbose=verbose))
    emit(result.to_json(), as_json=as_json, render=lambda: _show_result(result))


@app.command()
@with_parameters(_FLAGS)
def plan(*, values: dict[str, Any], as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Say what a build would do: blocks, tokens, FLOPs, bytes, peak memory. Scans and tokenizes; loads no model."""
    spec, run = _parameters(values)
    from zephon_core.bank.build import plan_bank

    result = plan_bank(spec, run, progress=choose_progress(as_json=as_json, verbose=verbose))
    emit(result, as_json=as_json, render=lambda: _show_plan(result))


@app.command()
def extend(
    bank: Annotated[Path, typer.Argument(metavar="DIR", help="The bank's folder; the extended bank takes its place.")],
    source: Annotated[
        list[str], typer.Option("--source", metavar="[NAME=]URL", help="A file, glob or URL of new rows; repeat it.")
    ],
    output: Annotated[
        str, typer.Option("--output", metavar="DIR", help="Publish the extended bank here instead.", show_default=False)
    ] = "",
    threads: Annotated[int, typer.Option("--threads", help=plain("Workers a step. [default: one a core]"), show_default=False)] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    store: StoreOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Add new sources to a bank: old rows stay where they are, and only new texts are encoded."""
    with command_errors(verbose=verbose, places=[store or "", output or str(bank)]):
        from zephon_core.bank.build import build_bank
        from zephon_core.bank.manifest import read_manifest
        from zephon_core.bank.specs import BankSpec, RunOptions

        made = read_manifest(bank)["spec"]
        values = {**made, "base": str(bank), "scan": {**made["scan"], "sources": source}}
        run = {"output": output or str(bank), "workers": threads, "device": device, "store": store or ""}
        result = build_bank(
            validated(BankSpec.model_validate, values, where="configuration", prefix="spec"),
            validated(RunOptions.model_validate, run, where="configuration", prefix="run"),
            progress=choose_progress(as_json=as_json, verbose=verbose),
        )
        emit(result.to_json(), as_json=as_json, render=lambda: _show_result(result))


add_commands(app)


def _parameters(values: dict[str, Any]) -> tuple[BankSpec, RunOptions]:
    """Check the configuration once and whole."""
    from zephon_core.bank.specs import BankSpec, RunOptions

    return spec_and_run(values, BankSpec, RunOptions, flags=_FLAGS, sections=("scan", "encode"))


def _show_result(result: BankResult) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    for heading in ("step", "", "seconds"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    for step, seconds in result.seconds.items():
        table.add_row(step, "cached" if result.cached.get(step) else "", f"{seconds:.1f}")
    console.print(table)
    if result.complete:
        console.print(f"[bold green]complete[/]  {result.text_count:,} texts  {result.fingerprint[:16]}")
    else:
        console.print(f"[bold yellow]incomplete[/]  {result.encoded_rows:,} of {result.text_count:,} rows; run it again to go on")
    for path in result.empty_fields:
        console.print(f"[bold yellow]no text[/]   no row of any source holds one at {escape(path)}: check the path", soft_wrap=True)
    if result.bank:
        console.print(f"bank      {result.bank}", soft_wrap=True)
        console.print(f"report    {Path(result.bank) / 'report.html'}", soft_wrap=True)


def _show_plan(plan: dict[str, Any]) -> None:
    pairs = {
        "texts": f"{plan['rows']:,} of up to {plan['longest']:,} tokens, {plan['distinct_lengths']:,} different lengths",
        "tokens": f"{plan['tokens']:,} ({plan['padded_tokens']:,} with padding)",
        "blocks": f"{plan['blocks']:,}",
        "model": f"{format_amount(plan['parameters'], 'parameters')}, {plan['hidden_size']} features",
        "work": format_amount(plan["flops"], "FLOP"),
        "disk": format_amount(plan["disk_bytes"], "B"),
        "memory": f"{format_amount(plan['peak_memory_bytes'], 'B')} a worker",
    }
    for name, value in pairs.items():
        typer.echo(f"{name:<8}{value}")
