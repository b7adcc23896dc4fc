"""Shards of folders that are written as a whole: MDS, LitData, Lance."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from zephon_core.ratios.datasets.formats import ShardPlace
from zephon_core.ratios.datasets.listing import Container

__all__ = ["container_places"]


class _ContainerFormat(Protocol):
    def places(self, container: Container) -> list[ShardPlace]: ...


def container_places(container: Container) -> list[ShardPlace]:
    """Read a folder's index and say where its shards lie. Raises InputError where the index is broken."""
    module = cast(_ContainerFormat, import_module(f"zephon_core.ratios.datasets.{container.format}"))
    return module.places(container)
