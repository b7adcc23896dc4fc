"""The page that a person looks at after priming: self-contained HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zephon_core.html import Bar, Range, bars, page, ranges, section, table, tiles
from zephon_core.progress import format_amount
from zephon_core.ratios.estimation import GUESS_SPREAD, TokenRatio
from zephon_core.ratios.mixture import Mixture
from zephon_core.ratios.prime import Priming

__all__ = ["REPORT_NAME", "render_report"]

REPORT_NAME = "report.html"


def render_report(
    name: str, priming: Priming, mixture: Mixture | None, *, target_rel_error: float, confidence: float, refused: str = ""
) -> str:
    """Return the report of a mixture's ratios as one HTML document. refused: why there is no mixture, though one was wanted."""
    guesses = [each for each, ratio in priming.ratios.items() if ratio.source == "fallback"]
    body = [
        _figures(priming),
        _intervals(priming.ratios, confidence),
        _precision(priming.ratios, target_rel_error),
        _fallbacks(priming.ratios),
        _reading(priming),
        _time(priming),
        _cost_of_error(priming.ratios, mixture),
        _mixture(mixture, confidence) or (section("Mixture", f"None could be worked out: {refused}") if refused else ""),
        _details(priming, target_rel_error),
    ]
    return page(
        name,
        [part for part in body if part],
        badge=f"{len(guesses)} of {len(priming.ratios)} are guesses" if guesses else "every ratio is known",
        good=not guesses,
        subtitle="Tokens a byte of each data set, as the training will see it.",
    )


def _measured(priming: Priming) -> dict[str, Any]:
    return {name: outcome.document for name, outcome in priming.outcomes.items()}


def _figures(priming: Priming) -> str:
    documents = _measured(priming).values()
    there = sum(int(document.dataset.get("stored_bytes", 0)) for document in documents)
    read = sum(document.ratio.bytes_read for document in documents)
    values = [(f"{len(priming.ratios):,}", "data sets"), (f"{len(documents):,}", "of them measured, now or before")]
    if there:
        values.append((f"{format_amount(read, 'B')}", f"read of {format_amount(there, 'B')}: {read / there:.2%}"))
        values.append((f"{sum(document.seconds for document in documents):,.1f} s", "spent on measuring them"))
    return tiles(values)


def _words(ratio: TokenRatio) -> str:
    if ratio.source != "measured" or ratio.interval is None:
        return f"{ratio.tokens_per_byte:.4f}, {ratio.source}"
    low, high = ratio.interval
    if low == high:
        return f"{ratio.tokens_per_byte:.4f}, counted whole"
    return f"{ratio.tokens_per_byte:.4f}, {low:.4f} to {high:.4f} (±{(high - low) / 2 / ratio.tokens_per_byte:.2%})"


def _intervals(ratios: Mapping[str, TokenRatio], confidence: float) -> str:
    values = []
    for name, ratio in ratios.items():
        low, high = ratio.interval or (ratio.tokens_per_byte, ratio.tokens_per_byte)
        values.append(Range(name, low, ratio.tokens_per_byte, high, _words(ratio), accent=ratio.source == "fallback"))
    words = f"Tokens a byte. The bar is the interval that holds the true ratio {confidence:.0%} of the time; guesses stand out."
    return section("Ratios", words, ranges(values, describe="ratio and interval of each data set"))


def _precision(ratios: Mapping[str, TokenRatio], target_rel_error: float) -> str:
    values = []
    for name, ratio in ratios.items():
        if ratio.interval is None or ratio.source != "measured":
            continue
        low, high = (end / ratio.tokens_per_byte - 1 for end in ratio.interval)
        words = "counted whole" if low == high else f"{low:+.2%} to {high:+.2%}, {ratio.draws:,} draws"
        values.append(Range(name, low, 0.0, high, words, accent=(high - low) / 2 > target_rel_error))
    if not values:
        return ""
    words = f"The intervals as a share of each ratio. Lines mark the ±{target_rel_error:.2%} asked for; wider ones stand out."
    limits = (-target_rel_error, target_rel_error)
    return section("Precision", words, ranges(values, describe="interval of each data set over its ratio", limits=limits))


def _fallbacks(ratios: Mapping[str, TokenRatio]) -> str:
    rows = [[name, f"{ratio.tokens_per_byte:.4g}", ratio.reason] for name, ratio in ratios.items() if ratio.source == "fallback"]
    if not rows:
        return ""
    words = f"These couldn't be measured. Each may be off by {GUESS_SPREAD:g} times either way, and the mixture with it."
    return section("Guesses", words, table(["data set", "tokens a byte", "why"], rows))


def _reading(priming: Priming) -> str:
    values = []
    for name, document in _measured(priming).items():
        there = int(document.dataset.get("stored_bytes", 0))
        read = document.ratio.bytes_read
        share = read / there if there else 0.0
        values.append(Bar(name, share, f"{format_amount(read, 'B')} of {format_amount(there, 'B')} ({share:.2%})"))
    if not values:
        return ""
    return section("What was read", "Bytes off the disk or wire, of bytes there.", bars(values, describe="share of bytes read"))


def _time(priming: Priming) -> str:
    values = [Bar(name, document.seconds, f"{document.seconds:,.2f} s") for name, document in _measured(priming).items()]
    if not values:
        return ""
    return section("Time", "Seconds that each measurement took when it was made.", bars(values, describe="seconds a data set"))


def _cost_of_error(ratios: Mapping[str, TokenRatio], mixture: Mixture | None) -> str:
    """Show what one ratio taken for all would do: what each data set would get of its wanted tokens."""
    if len(ratios) < 2:
        return ""
    mean = sum(ratio.tokens_per_byte for ratio in ratios.values()) / len(ratios)
    shares = mixture.shares if mixture else {name: 1 / len(ratios) for name in ratios}
    got = {name: share * ratios[name].tokens_per_byte / mean for name, share in shares.items()}
    total = sum(got.values())
    rows = [[name, f"{shares[name]:.2%}", f"{got[name] / total:.2%}", f"{got[name] / total / shares[name]:.2f}"] for name in shares]
    words = "Were the same ratio taken for every data set, they would get these shares of the tokens in place of the wanted ones."
    if mixture is None:
        words += " Equal shares are taken as wanted, since no others were named."
    return section("What bad ratios would cost", words, table(["data set", "wanted", "delivered", "times what is wanted"], rows))


def _mixture(mixture: Mixture | None, confidence: float) -> str:
    if mixture is None:
        return ""
    values = [
        Range(
            name,
            weight.share_interval[0] / weight.share - 1,
            0.0,
            weight.share_interval[1] / weight.share - 1,
            f"{weight.share:.2%} wanted, {weight.share_interval[0]:.2%} to {weight.share_interval[1]:.2%} delivered",
            accent=name == mixture.calibrate_next,
        )
        for name, weight in mixture.datasets.items()
    ]
    rows: list[Sequence[object]] = [
        [
            name,
            f"{weight.probability:.6f}",
            f"{weight.tokens_per_sample:,.1f}",
            "" if weight.tokens is None else format_amount(weight.tokens, "tokens"),
            "" if weight.epochs is None else f"{weight.epochs:,.2f}",
            f"{weight.blame:.0%}",
        ]
        for name, weight in mixture.datasets.items()
    ]
    words = f"How far a delivered share of the tokens may lie from the wanted one, by the ratios' intervals at {confidence:.0%}."
    if mixture.calibrate_next:
        words += f" A better ratio of {mixture.calibrate_next} would tighten the mixture most."
    headings = ["data set", "probability of a sample", "tokens a sample", "tokens there", "epochs", "of the uncertainty"]
    return section("Mixture", words, ranges(values, describe="share of the tokens of each data set"), table(headings, rows))


def _details(priming: Priming, target_rel_error: float) -> str:
    rows = []
    for name, ratio in priming.ratios.items():
        document = priming.outcomes[name].document if name in priming.outcomes else None
        met = "" if ratio.interval is None else "yes" if _half_width(ratio) <= target_rel_error else "no"
        rows.append(
            [name, ratio.source, ratio.design, ratio.draws, ratio.units, met, document.key[:16] if document else "", ratio.reason]
        )
    headings = ["data set", "source", "design", "draws", "units", f"within ±{target_rel_error:.2%}", "document", "remark"]
    return section("How each was obtained", "Equal documents, equal numbers.", table(headings, rows))


def _half_width(ratio: TokenRatio) -> float:
    low, high = ratio.interval or (ratio.tokens_per_byte, ratio.tokens_per_byte)
    return (high - low) / 2 / ratio.tokens_per_byte
