"""`zephon-flows bank info|verify|lookup|nearest|diff`: look into finished banks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zephon_core.console import FOUND_WANTING, JsonOption, VerboseOption, choose_progress, command_errors, emit
from zephon_core.progress import format_amount

if TYPE_CHECKING:
    from zephon_core.bank.reader import FeatureBank

__all__ = ["add_commands"]

BankArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A bank's folder.")]
_SHOWN_CHARACTERS = 160


def add_commands(app: typer.Typer) -> None:
    """Add the commands that look into banks to the `bank` command."""
    for command in (info, verify, lookup, nearest, diff):
        app.command()(command)


def info(bank: BankArgument, as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Show what a bank holds and how it was made."""
    with command_errors(verbose=verbose):
        from zephon_core.bank.manifest import read_manifest

        manifest = read_manifest(bank)
        emit(manifest, as_json=as_json, render=lambda: _show_manifest(bank, manifest))


def verify(
    bank: BankArgument,
    level: Annotated[str, typer.Option(help="sizes, checksums or reencode; each includes the ones before.")] = "checksums",
    sample: Annotated[int, typer.Option(help="Rows to encode again at the level reencode, at least 1.")] = 64,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Check that a bank is what it says. Exit code 3 if it isn't."""
    with command_errors(verbose=verbose):
        from zephon_core.bank.encode import row_encoder
        from zephon_core.bank.manifest import MANIFEST_NAME, manifest_spec, read_manifest
        from zephon_core.bank.verify import Level, verify_bank
        from zephon_core.errors import SpecError

        if level not in set(Level):
            raise SpecError("--level", f"is {level!r}", wanted="sizes, checksums or reencode")
        if sample < 1:
            raise SpecError("--sample", f"is {sample}", wanted="how many rows to encode again, at least 1")
        manifest = read_manifest(bank)
        reencode = level == Level.REENCODE
        encode = row_encoder(manifest_spec(manifest, str(bank / MANIFEST_NAME)).encode) if reencode else None
        progress = choose_progress(as_json=as_json, verbose=verbose)
        checks = verify_bank(bank, Level(level), encode=encode, sample=sample, progress=progress)
        ok = all(check.ok for check in checks)
        emit({"ok": ok, "checks": [check.to_json() for check in checks]}, as_json=as_json, render=lambda: _show_checks(checks))
        if not ok:
            raise typer.Exit(FOUND_WANTING)


def lookup(
    bank: BankArgument,
    text: Annotated[str, typer.Argument(help="A text, its SHA-1 in hex, or row:N.")],
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Find a text's row. Exit code 3 if the bank doesn't hold it."""
    with command_errors(verbose=verbose):
        from zephon_core.bank.reader import FeatureBank, text_digest

        opened = FeatureBank.open(bank, partial=True)
        row = _row_of(opened, text)
        if row is None:
            emit({"found": False, "sha1": text_digest(text).hex()}, as_json=as_json, render=lambda: typer.echo("not in the bank"))
            raise typer.Exit(FOUND_WANTING)
        found = _describe(opened, row)
        emit({"found": True, **found}, as_json=as_json, render=lambda: _show_pairs(found))


def nearest(
    bank: BankArgument,
    text: Annotated[str, typer.Argument(help="A text; it need not be in the bank.")],
    count: Annotated[int, typer.Option("-k", "--count", min=1, help="How many to show.")] = 5,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show the texts most like another: the quickest way to see that a bank makes sense."""
    with command_errors(verbose=verbose):
        from zephon_core.bank.compare import nearest_rows
        from zephon_core.bank.query import encode_text
        from zephon_core.bank.reader import FeatureBank

        opened = FeatureBank.open(bank, partial=True)
        found = nearest_rows(opened, encode_text(opened, text), count)
        rows = [{"row": item.row, "similarity": round(item.similarity, 6), "text": opened.text(item.row)} for item in found]
        searched = {"searched": int(opened.valid.sum()), "rows": len(opened)}
        emit({"query": text, **searched, "nearest": rows}, as_json=as_json, render=lambda: _show_nearest(rows, **searched))


def diff(
    first: Annotated[Path, typer.Argument(metavar="DIR")],
    second: Annotated[Path, typer.Argument(metavar="DIR")],
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Compare two banks: texts, features of shared texts, settings."""
    with command_errors(verbose=verbose):
        from zephon_core.bank.compare import diff_banks
        from zephon_core.bank.reader import FeatureBank

        difference = diff_banks(FeatureBank.open(first, partial=True), FeatureBank.open(second, partial=True)).to_json()
        emit(difference, as_json=as_json, render=lambda: _show_pairs(difference))


def _row_of(bank: FeatureBank, text: str) -> int | None:
    if text.startswith("row:") and text[4:].isdecimal():
        row = int(text[4:])
        return row if row < len(bank) else None
    if len(text) == 40 and all(letter in "0123456789abcdef" for letter in text):
        return bank.row_of_digest(bytes.fromhex(text))
    return bank.row(text) if text in bank else None


def _describe(bank: FeatureBank, row: int) -> dict[str, Any]:
    import numpy as np

    from zephon_core.bank.reader import text_digest

    text = bank.text(row)
    vector = bank.features[row].astype(np.float32)
    return {
        "row": row,
        "sha1": text_digest(text).hex(),
        "tokens": int(np.load(bank.path / "lengths.npy", mmap_mode="r")[row]),
        "valid": bool(bank.valid[row]),
        "norm": round(float(np.linalg.norm(vector)), 6),
        "first_features": [round(float(value), 5) for value in vector[:6]],
        "text": text,
    }


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 1] + "…"


def _show_pairs(pairs: dict[str, Any]) -> None:
    width = max(map(len, pairs))
    for name, value in pairs.items():
        typer.echo(f"{name:<{width}}  {_short(value) if isinstance(value, str) else value}")


def _show_nearest(found: list[dict[str, Any]], *, searched: int, rows: int) -> None:
    if searched < rows:
        typer.echo(f"searched {searched:,} of {rows:,} rows: the others hold no features")
    for item in found:
        typer.echo(f"{item['similarity']:.4f}  row {item['row']:<8,} {_short(item['text'])}")


def _show_checks(checks: list[Any]) -> None:
    for check in checks:
        typer.secho(f"{'ok  ' if check.ok else 'BAD '}", fg=typer.colors.GREEN if check.ok else typer.colors.RED, nl=False)
        typer.echo(f"{check.name:<10} {check.seen}")


def _show_manifest(path: Path, manifest: dict[str, Any]) -> None:
    from zephon_core.bank.manifest import empty_fields

    size = sum(file["bytes"] for file in manifest["files"].values())
    tokens = manifest["statistics"]["tokens"]
    empty = empty_fields(manifest["statistics"]["scan"])
    _show_pairs(
        {
            "bank": str(path),
            "state": "complete" if manifest["complete"] else f"{manifest['encoded_rows']:,} of {manifest['text_count']:,} rows",
            "texts": f"{manifest['text_count']:,} distinct ({', '.join(f'{n:,} {kind}' for kind, n in manifest['kinds'].items())})",
            **({"no text at": ", ".join(empty)} if empty else {}),
            "features": f"{manifest['hidden_size']} {manifest['dtype']}",
            "size": f"{format_amount(size, 'B')} in {len(manifest['files'])} files",
            "tokens": f"{tokens['tokens']:,}, {tokens['truncated']:,} texts cut off at {manifest['max_key_tokens']}",
            "model": f"{manifest['model_path']} ({manifest['precision']}, {manifest['quantization']}, {manifest['engine']})",
            "sources": ", ".join(source["name"] or source["url"] for source in manifest["sources"]),
            "fingerprint": manifest["fingerprints"]["bank"],
            "report": str(path / "report.html"),
        }
    )
