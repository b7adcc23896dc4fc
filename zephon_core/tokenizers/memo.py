"""Remember what tokenizers are: parsing and digesting a large vocabulary takes seconds, hashing its bytes a few milliseconds."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from zephon_core.atomic import write_bytes
from zephon_core.tokenizers.identity import IDENTITY_VERSION

__all__ = ["IdentityMemo"]

_SHA256 = re.compile(rb"[0-9a-f]{64}")


class IdentityMemo:
    """Content identities by the SHA-256 of the files that they were found from, in a folder of small files.

    Nothing here can grow stale: other bytes have another name, and so has another version of the identity.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, *contents: bytes) -> str:
        """Return what the tokenizer that these files make is known by (64 hex digits), "" if that isn't known."""
        try:
            known = self._file(contents).read_bytes()
        except OSError:
            return ""
        return known.decode() if _SHA256.fullmatch(known) else ""

    def put(self, sha256: str, *contents: bytes) -> None:
        """Remember it; a folder that can't be written to costs finding it again."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_bytes(self._file(contents), sha256.encode())
        except OSError:
            return

    def _file(self, contents: tuple[bytes, ...]) -> Path:
        name = "-".join(hashlib.sha256(content).hexdigest() for content in contents)
        return self._folder / f"{IDENTITY_VERSION}-{name}"
