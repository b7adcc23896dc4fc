"""Readers: rows and blocks of rows with their origin, one module a format."""

from zephon_core.readers.rows import Origin, Row, iter_rows
from zephon_core.readers.sources import Source, check_unchanged, resolve_sources

__all__ = ["Origin", "Row", "Source", "check_unchanged", "iter_rows", "resolve_sources"]
