"""The command `zephon-flows`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zephon_core import __version__
from zephon_core.bank.commands import app as bank_app
from zephon_core.batching.commands import app as batches_app
from zephon_core.console import (
    FOUND_WANTING,
    JsonOption,
    StoreOption,
    VerboseOption,
    choose_progress,
    command_errors,
    emit,
    plain,
    unread_output,
)
from zephon_core.ratios.commands import app as ratios_app
from zephon_core.usage import CommandGroup
from zephon_core.xtoken.commands import app as xtoken_app

if TYPE_CHECKING:
    from zephon_core.upkeep import Entry

__all__ = ["main"]

app = typer.Typer(
    name="zephon-flows",
    cls=CommandGroup,
    help="Token accounting and frozen features for language-model training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
store_app = typer.Typer(name="store", help="The store of finished and unfinished work.", no_args_is_help=True)
for group in (bank_app, ratios_app, batches_app, xtoken_app, store_app):
    app.add_typer(group, cls=CommandGroup)

ArtifactArgument = Annotated[
    str, typer.Argument(metavar="ARTIFACT", help="KIND-FINGERPRINT, a fingerprint, or the beginning of one.")
]
DAY_S = 86_400.0


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"zephon-flows {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


@store_app.command("list")
def list_(store: StoreOption = None, as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """List what lies in the store: finished, in work, interrupted, damaged."""
    with command_errors(verbose=verbose, places=[store or ""]):
        from zephon_core.store import ArtifactStore
        from zephon_core.upkeep import list_entries

        entries = list_entries(ArtifactStore(store or ""))
        emit({"artifacts": [entry.to_json() for entry in entries]}, as_json=as_json, render=lambda: _show_entries(entries))


@store_app.command()
def show(
    artifact: ArtifactArgument, store: StoreOption = None, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """Show an artifact's record: inputs, options, files, statistics."""
    with command_errors(verbose=verbose, places=[store or ""]):
        from zephon_core.store import ArtifactStore
        from zephon_core.upkeep import resolve

        opened = ArtifactStore(store or "")
        record = opened.record(resolve(opened, artifact)).model_dump()
        emit(record, as_json=as_json, render=lambda: _show_json(record))


@store_app.command()
def verify(
    artifact: Annotated[list[str] | None, typer.Argument(metavar="[ARTIFACT]…", help=plain("Which ones. [default: all]"))] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Read every file of the artifacts and compare it with its recorded SHA-256."""
    with command_errors(verbose=verbose, places=[store or ""]):
        from zephon_core.errors import CorruptArtifactError
        from zephon_core.store import ArtifactRef, ArtifactStore
        from zephon_core.upkeep import list_entries, resolve

        opened = ArtifactStore(store or "")
        progress = choose_progress(as_json=as_json, verbose=verbose)
        bad = [str(entry.path) for entry in list_entries(opened) if entry.state == "damaged" and not artifact]
        if artifact:
            refs = [resolve(opened, name) for name in artifact]
        else:
            refs = [
                ArtifactRef(kind=entry.kind, fingerprint=entry.fingerprint, url=str(entry.path))
                for entry in list_entries(opened)
                if entry.state == "finished"
            ]
        for ref in refs:
            try:
                opened.verify(ref, progress=progress)
            except CorruptArtifactError as error:
                bad.append(str(error))
        result = {"ok": not bad, "verified": len(refs), "damaged": bad}
        emit(result, as_json=as_json, render=lambda: typer.echo("\n".join(bad) or f"{len(refs)} artifacts are as recorded"))
        if bad:
            raise typer.Exit(FOUND_WANTING)


@store_app.command()
def gc(
    older_than_days: Annotated[float, typer.Option(help="Choose nothing younger.")] = 30.0,
    keep_gb: Annotated[
        float | None, typer.Option(help=plain("Stop once the rest fits into so many GB. [default: choose all that is old]"))
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Really remove it; without this, only say what would go.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Remove old artifacts that are neither published nor in use. A dry run unless --delete is given."""
    with command_errors(verbose=verbose, places=[store or ""]):
        from zephon_core.errors import SpecError
        from zephon_core.progress import format_amount
        from zephon_core.store import ArtifactStore
        from zephon_core.upkeep import sweep

        for flag, value in (("--older-than-days", older_than_days), ("--keep-gb", keep_gb)):
            if value is not None and not 0 <= value < float("inf"):
                raise SpecError(flag, f"is {value}", wanted="a number from 0 on")
        keep_bytes = None if keep_gb is None else int(keep_gb * 1e9)
        chosen = sweep(ArtifactStore(store or ""), older_than_s=older_than_days * DAY_S, keep_bytes=keep_bytes, dry_run=not delete)
        total = format_amount(sum(entry.bytes for entry in chosen), "B")
        result = {
            "deleted": delete,
            "bytes": sum(entry.bytes for entry in chosen),
            "artifacts": [entry.to_json() for entry in chosen],
        }

        def render() -> None:
            _show_entries(chosen)
            typer.echo(f"{len(chosen)} artifacts, {total}, {'removed' if delete else 'would go; add --delete to remove them'}")

        emit(result, as_json=as_json, render=render)


@store_app.command()
def push(
    artifact: ArtifactArgument,
    url: Annotated[str, typer.Argument(help="An fsspec URL: s3://bucket/prefix, /mnt/shared, …")],
    store: StoreOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Copy a finished artifact elsewhere, its record last."""
    with command_errors(verbose=verbose, places=[store or ""]):
        from zephon_core.store import ArtifactStore
        from zephon_core.upkeep import push as push_artifact
        from zephon_core.upkeep import resolve

        opened = ArtifactStore(store or "")
        place = push_artifact(opened, resolve(opened, artifact), url, progress=choose_progress(as_json=as_json, verbose=verbose))
        emit({"url": place}, as_json=as_json, render=lambda: typer.echo(place))


@store_app.command()
def pull(
    url: Annotated[str, typer.Argument(help="Where `store push` put it.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Copy an artifact into the store, checking every file."""
    with command_errors(verbose=verbose, places=[store or ""]):
        from zephon_core.store import ArtifactStore
        from zephon_core.upkeep import pull as pull_artifact

        ref = pull_artifact(ArtifactStore(store or ""), url, progress=choose_progress(as_json=as_json, verbose=verbose))
        emit(ref.model_dump(), as_json=as_json, render=lambda: typer.echo(ref.url))


def _show_entries(entries: list[Entry]) -> None:
    from datetime import datetime

    from rich.console import Console
    from rich.table import Table

    from zephon_core.progress import format_amount

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("kind", "fingerprint", "state", "size", "made", "published"):
        table.add_column(heading, justify="right" if heading == "size" else "left", no_wrap=heading != "published")
    for entry in entries:
        made = datetime.fromtimestamp(entry.created_s).isoformat(" ", "minutes")
        table.add_row(
            entry.kind, entry.fingerprint[:16], entry.state, format_amount(entry.bytes, "B"), made, ", ".join(entry.published)
        )
    Console(highlight=False).print(table)


def _show_json(value: object) -> None:
    import json

    from rich.console import Console

    Console().print_json(json.dumps(value, ensure_ascii=False))


def main() -> None:
    """Run the command line."""
    with unread_output():
        app()


if __name__ == "__main__":
    main()
