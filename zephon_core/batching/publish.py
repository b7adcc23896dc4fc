"""Put a plan's folder where a trainer wants it: the plan's files and its report."""

from __future__ import annotations

from pathlib import Path

from zephon_core.publish import PublishedKind
from zephon_core.store import ArtifactRef, ArtifactStore

__all__ = ["MANIFEST_NAME", "check_output", "publish_plan"]

MANIFEST_NAME = "batches.json"

_BATCHES = PublishedKind(MANIFEST_NAME, "planned batches")


def check_output(output: str) -> None:
    """Raise SpecError for a place where no plan can be published, before any work is done."""
    _BATCHES.check_output(output)


def publish_plan(store: ArtifactStore, name: str, plan: ArtifactRef, report: ArtifactRef, output: Path) -> Path:
    """Make `output` this plan, in one step; return its absolute path. A folder that is this plan already is left alone.

    Raises SpecError for a folder that holds something else than a plan.
    """
    return _BATCHES.publish(store, name, {"plan": plan, "report": report}, output)
