"""What a source is: a file somewhere, what it is made of, and the identity of its content.

A source is written `URL` or `NAME=URL`; URL is a path, a glob, or anything that fsspec opens.
"""

from __future__ import annotations

import glob
import hashlib
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, BinaryIO, cast

from zephon_core.errors import InputError, MissingExtraError, SourceChangedError
from zephon_core.fingerprint import FileMemo, file_sha256
from zephon_core.progress import NULL_PROGRESS, Progress

__all__ = [
    "Source",
    "check_all_unchanged",
    "check_unchanged",
    "detect_format",
    "expand_source",
    "file_system",
    "local_path",
    "open_source",
    "resolve_sources",
    "transport_errors",
    "transport_words",
]

_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_COMMON_SCHEMES = ("s3", "gs", "az", "hf", "http", "https", "ftp", "sftp", "hdfs", "file")
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.+)", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")
_TRANSPORT_ERRORS = (("botocore.exceptions", "BotoCoreError"), ("botocore.exceptions", "ClientError"), ("aiohttp", "ClientError"))
_LOOK_AGAIN = "Check the path and the folder that it starts from; globs (data/*.jsonl) and URLs (s3://…) are allowed."
_CONVERT = "Convert it: one JSON object a line, or Parquet; what is compressed or packed otherwise, unpack first."
_HEAD_BYTES = 4096
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """One file, known by content.

    name: what the user calls it, "" if nothing. url: path or URL as given. format: jsonl, parquet or arrow. compression:
    none, gzip or zstd. bytes: size as stored. sha256: of the bytes as stored.
    """

    name: str
    url: str
    format: str
    compression: str
    bytes: int
    sha256: str


def resolve_sources(
    sources: Sequence[str], *, memo: FileMemo | None = None, progress: Progress = NULL_PROGRESS
) -> tuple[Source, ...]:
    """Expand globs (in sorted order), find out formats and hash contents; local files that `memo` knows are not read again.

    Raises InputError for a source that is absent, unreadable or of no known format, MissingExtraError for a file system
    whose package isn't installed.
    """
    named = [found for text in sources for found in expand_source(text)]
    sizes = [_size(url) for _, url in named]
    resolved = []
    with progress.phase("identify", total=sum(sizes), unit="B") as phase:
        for name, url in named:
            source = _identify(name, url, memo)
            phase.advance(source.bytes)
            resolved.append(source)
    return tuple(resolved)


def check_unchanged(source: Source, *, memo: FileMemo | None = None) -> None:
    """Compare a source's present content with its identity. Raises SourceChangedError if it differs, InputError if it is gone."""
    if _size(source.url) != source.bytes or _sha256(source.url, memo) != source.sha256:
        raise SourceChangedError(source.url)


def check_all_unchanged(sources: Iterable[Source], *, memo: FileMemo | None = None) -> None:
    """Do what `check_unchanged` does for each of some sources."""
    for source in sources:
        check_unchanged(source, memo=memo)


def expand_source(text: str) -> list[tuple[str, str]]:
    """Split `NAME=URL` and expand a glob: [(name, url), …], sorted by url. A path that exists as written has no name."""
    if not text.strip():
        raise InputError("source", "is empty", wanted="a path, a glob or a URL, or NAME= and one of these", remedy="Name a file.")
    if _exists(text) or (glob.has_magic(text) and _SCHEME.match(text) is None and _glob(text)):
        return [("", url) for url in _expand(text)]
    named = _NAMED.fullmatch(text)
    if named is None:
        return [("", url) for url in _expand(text)]
    return [(named[1], url) for url in _expand(named[2])]


def local_path(url: str) -> Path | None:
    """Return the path of a source on a mounted file system, None for one that fsspec must open."""
    if url.startswith("file://"):
        return Path(url.removeprefix("file://"))
    return None if _SCHEME.match(url) else Path(url)


def detect_format(url: str, head: bytes = b"") -> tuple[str, str]:
    """Tell (format, compression) by the name's suffixes, else by the first bytes. Raises InputError for what is neither."""
    suffixes = [suffix.lower() for suffix in Path(url.split("::")[0]).suffixes[-2:]]
    compression = _COMPRESSIONS.get(suffixes[-1] if suffixes else "", "")
    inner = suffixes[:-1] if compression else suffixes
    kind = _FORMATS.get(inner[-1] if inner else "", "")
    if not compression and not kind:
        compression = "gzip" if head[:2] == b"\x1f\x8b" else "zstd" if _is_zstd(head) else ""
    if compression:
        if kind not in ("", "jsonl"):
            raise InputError(
                url, f"is a {kind} file compressed as a whole", remedy="Decompress it: such files compress their own parts."
            )
        return "jsonl", compression
    return kind or _format_by_magic(url, head), "none"


def _is_zstd(head: bytes) -> bool:
    return head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50)


def _format_by_magic(url: str, head: bytes) -> str:
    if head[:4] in (b"PAR1", b"PARE"):
        return "parquet"
    if head[:6] == b"ARROW1" or head[:4] == b"\xff\xff\xff\xff":
        return "arrow"
    if b"\0" in head:
        raise InputError(url, "is of no known format", wanted="JSONL (.gz, .zst), Parquet or Arrow", remedy=_CONVERT)
    return "jsonl"


@contextmanager
def open_source(url: str, *, buffered: bool = False) -> Iterator[BinaryIO]:
    """Open a path or URL for reading; whatever goes wrong while it is open becomes an InputError.

    buffered: let `read` return all that it is asked for, at the cost of a copy; of a local file it may return less otherwise.
    """
    path = local_path(url)
    try:
        with cast(BinaryIO, path.open("rb", buffering=-1 if buffered else 0) if path else _fsspec_open(url)) as handle:
            yield handle
    except FileNotFoundError:
        raise _absent(url) from None
    except transport_errors() as error:
        raise InputError(url, f"can't be read ({transport_words(error)})") from error


def transport_errors() -> tuple[type[Exception], ...]:
    """List what can go wrong between here and a file; of remote ones not every package says it as OSError."""
    loaded = [(sys.modules[name], kind) for name, kind in _TRANSPORT_ERRORS if name in sys.modules]
    return (OSError, *(getattr(module, kind) for module, kind in loaded))


def transport_words(error: Exception) -> str:
    """Say on one line what went wrong between here and a file."""
    return " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())[:200]


def _identify(name: str, url: str, memo: FileMemo | None) -> Source:
    with open_source(url) as handle:
        head = bytes(handle.read(_HEAD_BYTES))
    kind, compression = detect_format(url, head)
    return Source(name, url, kind, compression, _size(url), _sha256(url, memo))


def _sha256(url: str, memo: FileMemo | None) -> str:
    path = local_path(url)
    if path is None:
        digest = hashlib.sha256()
        with open_source(url) as handle:
            while chunk := handle.read(_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()
    try:
        return memo.sha256(path) if memo else file_sha256(path)
    except OSError as error:
        raise InputError(url, f"can't be read ({transport_words(error)})") from error


def _size(url: str) -> int:
    path = local_path(url)
    if path is None:
        with open_source(url) as handle:
            return handle.seek(0, io.SEEK_END)
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(url, f"can't be read ({transport_words(error)})") from error


def _mode(path: Path) -> int:
    """Return the st_mode of what is at a path, 0 if nothing is or the path can't be one."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def _exists(text: str) -> bool:
    return _SCHEME.match(text) is None and _mode(Path(text)) != 0


def _glob(pattern: str) -> list[str]:
    # Path.glob would write "./a" as "a", and can't take an absolute pattern.
    return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207


def _expand(url: str) -> list[str]:
    path = local_path(url)
    if path is None:
        return _expand_remote(url)
    mode = _mode(path)
    if S_ISDIR(mode):
        raise InputError(url, "is a directory", wanted="files", remedy=f"Name them, or write {url.rstrip('/')}/*.jsonl.")
    if S_ISREG(mode):
        return [url]
    if mode:
        raise InputError(url, "is no regular file", remedy="A source is read more than once: save it to a file first.")
    if not glob.has_magic(str(path)):
        raise _absent(url)
    found = [match for match in _glob(str(path)) if S_ISREG(_mode(Path(match)))]
    if not found:
        raise _no_match(url)
    return found


def _absent(url: str) -> InputError:
    return InputError(url, "does not exist", remedy=_LOOK_AGAIN)


def _no_match(url: str) -> InputError:
    return InputError(url, "matches no file", remedy=_LOOK_AGAIN)


def _expand_remote(url: str) -> list[str]:
    if not glob.has_magic(url.split("://", 1)[-1]) or (url.startswith("http") and "*" not in url):
        return [url]
    system, pattern = file_system(url)
    try:
        found = sorted(match for match in system.glob(pattern) if system.isfile(match))
    except transport_errors() as error:
        raise InputError(url, f"can't be listed ({transport_words(error)})") from error
    if not found:
        raise _no_match(url)
    return [str(system.unstrip_protocol(match)) for match in found]


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system that a URL belongs to, and its path there. Raises InputError or MissingExtraError."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtraError(url, f"needs a package that isn't installed ({error})", remedy=_install(url)) from error
    except ValueError as error:
        scheme = url.partition("://")[0].rpartition("::")[2]
        if scheme not in fsspec.available_protocols():
            known = ", ".join(f"{name}://" for name in _COMMON_SCHEMES)
            raise InputError(
                url,
                f"is in a file system that fsspec doesn't know ({scheme}://)",
                wanted=f"a path or one of {known}, …",
                remedy=_LOOK_AGAIN,
            ) from error
        raise InputError(url, f"can't be opened ({error})", remedy=_LOOK_AGAIN) from error
    return system, str(path)


def _install(url: str) -> str:
    scheme = url.partition("://")[0].rpartition("::")[2]
    return "pip install 'zephon-flows[s3]'" if scheme in ("s3", "s3a") else "Install it with pip."


def _fsspec_open(url: str) -> Any:
    system, path = file_system(url)
    return system.open(path, "rb", block_size=8 * _CHUNK_BYTES, cache_type="readahead")
