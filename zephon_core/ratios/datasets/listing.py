"""Which files a data set is made of: directories, globs, lists and URLs, expanded; nothing is opened.

Files that aren't data are passed over in directories: hidden ones, those that begin with "_" (`_SUCCESS`), and those whose
suffix no format has. A folder that MDS, LitData or Lance wrote is one container, whatever files lie in it.

Links are followed, to files and to folders anywhere, each folder once; a link to a folder that holds the listed one is not: it
would bring in what stands around the data set. What has a shard's name and is no file, such as a link that leads nowhere or a
pipe, is a problem of the data set.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, TypeVar

from zephon_core.errors import InputError, SpecError, TransientInputError, ZephonError
from zephon_core.fingerprint import fingerprint
from zephon_core.ratios.datasets.files import FoundFile, local_stamp, reading
from zephon_core.ratios.datasets.model import ShardProblem
from zephon_core.readers.sources import file_system, local_path, transport_errors

__all__ = ["Container", "Listing", "has_known_suffix", "inside", "is_unchanged", "list_files", "reason_of"]

_JSONL = (".jsonl", ".ndjson", ".json")
_SUFFIXES = (
    *(suffix + compression for suffix in _JSONL for compression in ("", ".gz", ".zst")),
    *(".parquet", ".pq", ".arrow", ".arrows", ".feather", ".ipc", ".tar"),
)
_DOCUMENT = re.compile(r"\.json(\.gz|\.zst)?$", re.IGNORECASE)
_MDS_FILE = re.compile(r"\.mds(\.[a-z0-9]+)?$")
_LITDATA_FILE = re.compile(r"^chunk-.*\.bin$")
_ETAGS = ("ETag", "etag", "md5Hash", "md5", "checksum")
_Found = TypeVar("_Found")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


@dataclass(frozen=True)
class Container:
    """A folder whose files belong together. format: mds, litdata or lance. url: the folder's, without a slash at the end."""

    url: str
    format: str
    files: tuple[FoundFile, ...]


@dataclass(frozen=True)
class Listing:
    """What a data set's paths lead to, sorted by URL, and what could not be listed."""

    files: tuple[FoundFile, ...]
    containers: tuple[Container, ...]
    problems: tuple[ShardProblem, ...]

    def key(self, format: str) -> str:
        """Return the identity of these files as they lie there now; "" where a file system doesn't tell one state from another."""
        every = [*self.files, *(file for container in self.containers for file in container.files)]
        if any(not file.stamp for file in every):
            return ""
        stamps = [[file.url, file.bytes, file.stamp] for file in every]
        containers = [[container.url, container.format] for container in self.containers]
        problems = {"problems": [[problem.url, problem.reason] for problem in self.problems]} if self.problems else {}
        return fingerprint("ratios.catalog", 1, files=stamps, containers=containers, format=format, **problems)

    def newest_ns(self) -> int:
        """Return when the youngest local file was last written to, in nanoseconds since 1970; 0 if all are remote."""
        every = [*self.files, *(file for container in self.containers for file in container.files)]
        return max((int(file.stamp.split("-")[0]) for file in every if file.is_local), default=0)


def list_files(path: str | Path | Sequence[str | Path]) -> Listing:
    """Expand paths, directories, globs and URLs; a file that several of them lead to is taken once.

    What is named and can't be listed becomes a problem of its own. Raises InputError where nothing at all is found,
    TransientInputError if that may be for the moment only, SpecError for an empty list.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path) if isinstance(path, Iterable) else []
    if not paths or not all(isinstance(each, str | os.PathLike) for each in paths):
        words = "is an empty list" if isinstance(path, Sequence) and not paths else f"is {path!r}"
        raise SpecError("path", words, wanted="files, directories, globs or URLs")
    files: dict[str, FoundFile] = {}
    containers: dict[str, Container] = {}
    problems: dict[str, ShardProblem] = {}
    last: InputError | None = None
    for each in [os.fspath(path) for path in paths]:
        try:
            for found in _list(each):
                if isinstance(found, Container):
                    containers[found.url] = found
                elif isinstance(found, ShardProblem):
                    problems[found.url] = found
                else:
                    files[found.url] = found
        except InputError as error:
            problems[each] = ShardProblem(each, reason_of(error, each), isinstance(error, TransientInputError), 0)
            last = error
    if not files and not containers:
        if last is not None:
            raise last
        if problems:
            first = next(iter(problems.values()))
            raise InputError(first.url, first.reason, remedy="Mend or remove it.")
        raise InputError(", ".join(map(str, paths[:3])), "holds no file of a known format", wanted=_known())
    return Listing(_by_url(files), _by_url(containers), _by_url(problems))


def _by_url(found: dict[str, _Found]) -> tuple[_Found, ...]:
    return tuple(found[url] for url in sorted(found))


def reason_of(error: ZephonError, url: str) -> str:
    """Say what is wrong with a file whose URL stands beside it anyway, and where in it."""
    place = error.where.removeprefix(url)
    if place.startswith(" (byte "):
        error = ZephonError(url, error.found + place, wanted=error.wanted, remedy=error.remedy)
    return str(error).removeprefix(url).lstrip(": ").rstrip(".")


def _known() -> str:
    return "JSONL (.gz, .zst), Parquet, Arrow IPC, WebDataset .tar, MDS, LitData or Lance"


def _list(text: str) -> Iterator[FoundFile | Container | ShardProblem]:
    path = local_path(text)
    if path is None:
        yield from _list_remote(text)
        return
    with reading(text):
        if not path.exists() and glob.has_magic(str(path)):
            # Path.glob can't take an absolute pattern.
            matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
            if not matches:
                raise InputError(text, "matches no file")
            for match in matches:
                odd = None if Path(match).is_dir() else _oddity(os.path.abspath(match))  # noqa: PTH100 - as in _list_local
                if odd is None:
                    yield from _list_local(Path(match), text)
                elif has_known_suffix(match):
                    yield odd
        else:
            yield from _list_local(path, text)


def _list_local(path: Path, text: str) -> Iterator[FoundFile | Container | ShardProblem]:
    status = path.stat()
    absolute = os.path.abspath(path)  # noqa: PTH100 - keeps symbolic links, as Path.absolute does, and drops ".."
    if S_ISREG(status.st_mode):
        yield FoundFile(absolute, status.st_size, local_stamp(status))
    elif S_ISDIR(status.st_mode):
        found = list(_walk(absolute))
        yield from sort_out(absolute, [each for each in found if isinstance(each, FoundFile)])
        yield from (each for each in found if isinstance(each, ShardProblem) and _is_data(each.url[len(absolute) :]))
    else:
        raise InputError(text, "is no regular file", remedy="It is read more than once: save it to a file first.")


def _oddity(path: str) -> ShardProblem | None:
    """Say what keeps something from being a file that can be read more than once; None for such a file."""
    try:
        return None if S_ISREG(Path(path).stat().st_mode) else ShardProblem(path, "is no regular file", False, 0)
    except FileNotFoundError:
        if Path(path).is_symlink():
            return ShardProblem(path, f"is a link to {Path(path).readlink()}, which isn't there", False, 0)
        return ShardProblem(path, "was taken away just now", True, 0)
    except OSError as error:  # links in a circle, permissions
        return ShardProblem(path, f"can't be reached ({error.strerror})", True, 0)


def _walk(root: str) -> Iterator[FoundFile | ShardProblem]:
    """Yield every regular file below a directory, and everything else that is no directory as a problem."""
    around = {(status.st_dev, status.st_ino) for status in (parent.stat() for parent in Path(root).resolve().parents)}
    seen: set[tuple[int, int]] = around
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        status = Path(directory).stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    if entry.is_dir():
                        waiting.append(entry.path)
                        continue
                    if entry.is_file():
                        status = entry.stat()
                        yield FoundFile(entry.path, status.st_size, local_stamp(status))
                        continue
                except OSError:
                    pass
                if odd := _oddity(entry.path):
                    yield odd


def _list_remote(text: str) -> Iterator[FoundFile | Container]:
    system, path = file_system(text)
    system.invalidate_cache()  # it may remember an earlier state
    with reading(text):
        if glob.has_magic(path) and not (text.startswith("http") and "*" not in text):
            matches = system.glob(path, detail=True)
            if not matches:
                raise InputError(text, "matches no file")
            listed = list(matches.values())
        else:
            listed = [system.info(path)]
        for info in listed:
            if info["type"] == "directory":
                below = system.find(info["name"], detail=True).values()
                root = str(system.unstrip_protocol(info["name"])).rstrip("/")
                yield from sort_out(root, [_remote_file(system, each) for each in below if each["type"] == "file"])
            else:
                yield _remote_file(system, info)


def _remote_file(system: Any, info: dict[str, Any]) -> FoundFile:
    etag = next((str(info[name]) for name in _ETAGS if info.get(name)), "").strip('"')
    time = next((str(info[name]) for name in _TIMES if info.get(name)), "")
    url = str(system.unstrip_protocol(info["name"]))
    if info.get("size") is None:
        raise InputError(url, "has a size that its server doesn't tell", remedy="Copy it to where sizes are known.")
    return FoundFile(url, int(info["size"]), etag or time, etag)


def is_unchanged(file: FoundFile) -> bool:
    """Tell whether a file is still as its listing showed it, as far as its file system says now."""
    try:
        if file.is_local:
            status = Path(file.url).stat()
            return (status.st_size, local_stamp(status)) == (file.bytes, file.stamp)
        system, path = file_system(file.url)
        system.invalidate_cache()
        return _remote_file(system, system.info(path)) == file
    except InputError:
        return False
    except transport_errors():
        return False


def sort_out(root: str, files: Iterable[FoundFile]) -> Iterator[FoundFile | Container]:
    """Tell data from the rest below a directory, and put together what MDS, LitData and Lance wrote.

    Files called .json are data only where nothing else is: beside shards of other formats they describe them.
    """
    every = {file.url: file for file in files}
    owned: dict[str, list[FoundFile]] = {}
    kinds = dict(_containers(every))
    data: list[FoundFile] = []
    for url in sorted(every):
        home = _home(url, kinds)
        if home:
            owned.setdefault(home, []).append(every[url])
        elif _is_data(url[len(root) :]):
            data.append(every[url])
    if kinds or any(not _DOCUMENT.search(file.url) for file in data):
        data = [file for file in data if not _DOCUMENT.search(file.url)]
    yield from data
    for home in sorted(owned):
        yield Container(home, kinds[home], tuple(owned[home]))


def _containers(every: dict[str, FoundFile]) -> Iterator[tuple[str, str]]:
    """Yield (folder, format) of every container; what is inside another one comes along and does no harm."""
    for url in every:
        folder, _, name = url.rpartition("/")
        if folder.endswith("/_versions"):
            yield folder.removesuffix("/_versions"), "lance"
        elif f"{folder}/index.json" in every:
            if _MDS_FILE.search(name):
                yield folder, "mds"
            elif _LITDATA_FILE.search(name):
                yield folder, "litdata"


def _home(url: str, kinds: dict[str, str]) -> str:
    """Return the outermost container that a file lies in, "" if it lies in none. MDS and LitData don't own subfolders."""
    folder = url.rpartition("/")[0]
    home = folder if folder in kinds else ""
    while folder := folder.rpartition("/")[0]:
        if kinds.get(folder) == "lance":
            home = folder
    return home


def _is_data(relative: str) -> bool:
    parts = [part for part in relative.split("/") if part]
    return not any(part.startswith((".", "_")) for part in parts) and has_known_suffix(relative)


def inside(folder: str, name: str) -> str:
    """Return the URL of a file that an index names. Raises InputError for a name that leads out of the folder."""
    if not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise InputError(folder, f"has an index that names a file {name!r}", wanted="names of files in the folder")
    return f"{folder}/{name}"


def has_known_suffix(url: str) -> bool:
    """Tell whether a name alone says of what format a file is."""
    return url.lower().endswith(_SUFFIXES)
