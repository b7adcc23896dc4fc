"""What the `ratios` commands show on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from zephon_core.progress import format_amount

if TYPE_CHECKING:
    from zephon_core.ratios.documents import RatioDocument
    from zephon_core.ratios.drift import Drift
    from zephon_core.ratios.run import RatioResult

__all__ = ["show_counts", "show_documents", "show_drifts", "show_json", "show_mixture", "show_primed", "summary"]


def summary(document: RatioDocument) -> dict[str, Any]:
    """Return what `ratios show` tells of a document, as plain values."""
    from zephon_core.ratios.prime import ratio_json

    name = next(iter(document.ratios))
    return {"name": name, **ratio_json(document.ratio, document.key), "created": document.created}


def _table(*headings: str, numbers: tuple[str, ...] = ()) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=heading not in ("", "remark"))
    return table


def _print(renderable: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(renderable)


def _precision(ratio: dict[str, Any], interval: str = "interval", value: str = "tokens_per_byte") -> str:
    if not ratio[interval]:
        return ""
    low, high = ratio[interval]
    return "exact" if low == high else f"±{(high - low) / 2 / ratio[value]:.2%}" if ratio[value] else ""


_LONGEST_REMARK = {"fallback": 60, "measured": 120}


def _remark(ratio: dict[str, Any]) -> str:
    """Shorten a reason: of a guess, a warning has told it in full; of the others, `ratios show` does."""
    reason = str(ratio.get("reason") or "")
    most = _LONGEST_REMARK.get(ratio["source"], len(reason))
    return reason if len(reason) <= most else f"{reason[: most - 1].rstrip()}…"


def _loss(ratios: dict[str, Any]) -> tuple[str, ...]:
    """Return the headings of the second ratio, if a data set has one."""
    return ("loss/byte", " ") if any(ratio.get("loss_tokens_per_byte") is not None for ratio in ratios.values()) else ()


def _loss_figures(ratio: dict[str, Any]) -> tuple[str, str]:
    value = ratio.get("loss_tokens_per_byte")
    if value is None:
        return "", ""
    return f"{value:.6f}", _precision(ratio, "loss_interval", "loss_tokens_per_byte") if "loss_interval" in ratio else ""


def _show_ratios(result: dict[str, Any]) -> None:
    loss = _loss(result["ratios"])
    headings = ("data set", "tokens/byte", "", *loss, "source", "draws", "read", "remark")
    table = _table(*headings, numbers=("tokens/byte", "", *loss, "draws", "read"))
    for name, ratio in result["ratios"].items():
        read = format_amount(ratio["bytes_read"], "B") if ratio["bytes_read"] else ""
        source = "cached" if ratio["cached"] and ratio["source"] == "measured" else ratio["source"]
        figures = (f"{ratio['tokens_per_byte']:.6f}", _precision(ratio), *(_loss_figures(ratio) if loss else ()))
        table.add_row(name, *figures, source, f"{ratio['draws']:,}", read, _remark(ratio))
    _print(table)
    typer.echo(f"{result['seconds']:.1f} s")


def show_primed(result: RatioResult) -> None:
    """Print ratios, and the mixture if there is one."""
    _show_ratios(result.to_json())
    if result.mixture is not None:
        typer.echo()
        show_mixture(result)
    else:
        _show_files(result)


def _show_files(result: RatioResult) -> None:
    if not result.output:
        return
    typer.echo(f"report    {result.output}/report.html")
    reasons: dict[str, list[str]] = {}
    for loader, reason in result.left_out.items():
        reasons.setdefault(reason, []).append(loader)
    for reason, loaders in reasons.items():
        typer.echo(f"no export for {', '.join(loaders)}: {reason}")
    for note in result.notes:
        typer.echo(note)


def show_counts(result: dict[str, Any]) -> None:
    """Print exact counts, and how far off estimates were."""
    ratios = result["ratios"]
    loss = _loss(ratios)
    held = ("estimate",) if any("estimate" in ratio for ratio in ratios.values()) else ()
    headings = ("data set", "tokens/byte", *loss[:1], "counted", *held, "read", "remark")
    table = _table(*headings, numbers=("tokens/byte", *loss[:1], "counted", "read"))
    for name, ratio in ratios.items():
        value = ratio["tokens_per_byte"]
        counted = "all" if ratio["design"] == "exact" else f"{min(ratio['counted_share'], 0.9999):.2%}"
        figures = ("none" if value is None else f"{value:.6f}", *(_loss_figures(ratio)[:1] if loss else ()), counted)
        estimate = (_holding(ratio.get("estimate")),) if held else ()
        table.add_row(name, *figures, *estimate, format_amount(ratio["bytes_read"], "B"), _remark(ratio))
    _print(table)
    for name, ratio in ratios.items():
        told = sum(ratio.get("unreadable", {}).values())  # as warnings, when the data set was opened
        for problem in ratio.get("problems", [])[told : told + _PROBLEMS_SHOWN]:
            typer.echo(f"{name}: {problem}")
    typer.echo(f"{result['seconds']:.1f} s")


_PROBLEMS_SHOWN = 5


def _holding(estimate: dict[str, Any] | None) -> str:
    """Say how far off an estimate was, and whether its interval holds the truth."""
    if not estimate or estimate["error"] is None:
        return ""
    return f"{estimate['error']:+.2%}, {'holds' if estimate['holds'] else 'misses'}"


def show_mixture(result: RatioResult) -> None:
    """Print a mixture; the ratios alone where none could be worked out."""
    found = result.mixture
    if found is None:
        _show_ratios(result.to_json())
        _show_files(result)
        return
    headings = ("data set", "share", "delivered", "probability", "tokens/row", "epochs", "doubt")
    table = _table(*headings, numbers=headings[1:])
    for name, weight in found.datasets.items():
        low, high = weight.share_interval
        epochs = "" if weight.epochs is None else f"{weight.epochs:,.2f}"
        figures = (f"{weight.probability:.6f}", f"{weight.tokens_per_sample:,.1f}", epochs, f"{weight.blame:.0%}")
        table.add_row(name, f"{weight.share:.2%}", f"{low:.2%} to {high:.2%}", *figures)
    _print(table)
    if found.budget_tokens:
        for name, weight in found.datasets.items():
            if weight.epochs is not None and weight.epochs > 1:
                budget = format_amount(found.budget_tokens, "tokens")
                typer.echo(f"this mixture passes {name} {weight.epochs:,.1f} times in {budget}")
    if found.calibrate_next:
        typer.echo(f"a better ratio of {found.calibrate_next}, where most of the doubt comes from, would tighten it most")
    _show_files(result)


def show_documents(documents: list[RatioDocument]) -> None:
    """Print a line a document."""
    table = _table("data set", "tokens/byte", "", "source", "made", "key", numbers=("tokens/byte", ""))
    for document in documents:
        plain = summary(document)
        figures = (f"{plain['tokens_per_byte']:.6f}", _precision(plain), plain["source"])
        table.add_row(plain["name"], *figures, document.created[:16].replace("T", " "), document.key[:16])
    _print(table)


def show_json(value: object) -> None:
    """Print a value as JSON, for people."""
    import json

    from rich.console import Console

    Console().print_json(json.dumps(value, ensure_ascii=False))


def show_drifts(drifts: list[Drift]) -> None:
    """Print what was delivered beside what was promised."""
    table = _table("data set", "promised", "delivered", "of its share", "", numbers=("promised", "delivered", "of its share"))
    for each in drifts:
        promised = f"{each.promised[0]:.5f} to {each.promised[1]:.5f}"
        table.add_row(each.dataset, promised, f"{each.observed:.5f}", f"{each.share_factor:.1%}", "ALARM" if each.alarm else "")
    _print(table)
