"""Where the parts of a flow's step run, as an option of every capability."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["TaskRunner"]


class TaskRunner(StrEnum):
    """What runs the parts of a flow's step (Prefect's task runners)."""

    THREAD = "thread"
    PROCESS = "process"
    RAY = "ray"
    DASK = "dask"
