"""Put a plan's folder where a trainer wants it: the plan's files and its report."""

from __future__ import annotations

import tempfile
from pathlib import Path

from zephon_core.errors import SpecError
from zephon_core.publish import PublishedKind
from zephon_core.store import ArtifactRef, ArtifactStore

__all__ = ["MANIFEST_NAME", "check_output", "publish_plan"]

MANIFEST_NAME = "batches.json"

_BATCHES = PublishedKind(MANIFEST_NAME, "planned batches")


def check_output(output: str) -> None:
    """Raise SpecError for a place where no plan can be published, before any work is done.

    That a folder can be made there is tried out: some file systems (/proc) say that it can and refuse it.
    """
    _BATCHES.check_output(output)
    path = Path(output).expanduser().absolute()
    standing = next(place for place in path.parents if place.exists())
    try:
        Path(tempfile.mkdtemp(prefix=".zephon-", dir=standing)).rmdir()
    except OSError as error:
        remedy = "Name another output, or change the folder's permissions."
        raise SpecError(
            str(standing), f"holds no new folder ({error.strerror})", wanted=f"a place for {output}", remedy=remedy
        ) from error


def publish_plan(store: ArtifactStore, name: str, plan: ArtifactRef, report: ArtifactRef, output: Path) -> Path:
    """Make `output` this plan, in one step; return its absolute path. A folder that is this plan already is left alone.

    Raises SpecError for a folder that holds something else than a plan.
    """
    return _BATCHES.publish(store, name, {"plan": plan, "report": report}, output)
