"""One ratio map for all ranks and nodes: whoever measures first puts it down, and everybody reads what lies there.

    <URL>/<identity of the mixture's settings>.json

The name covers data sets by place, what is counted and how surely, and pins: runs that differ never read each other's. The
first map down counts, for those as well that couldn't reach a data set which its writer could, and for those that could reach
one which its writer couldn't, as long as that is a short time ago. Once the content of a data set has changed, it is replaced.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from zephon_core.atomic import fsync_directory, temporary_name
from zephon_core.errors import InputError, TransientInputError
from zephon_core.fingerprint import fingerprint
from zephon_core.ratios.documents import RatioDocument
from zephon_core.ratios.estimation import TokenRatio
from zephon_core.readers.sources import file_system, local_path, transport_errors, transport_words

__all__ = ["map_url", "mixture_identity", "publish_map", "read_map"]

MAP_VERSION = 1
_JUST_NOW_S = 60.0
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}

Documents = Mapping[str, RatioDocument]


def mixture_identity(keys: Mapping[str, str], pinned: Mapping[str, float]) -> str:
    """Return what a mixture's numbers are known by (64 hex digits): keys of documents, and pinned ratios, both by name."""
    return fingerprint("ratio mixture", MAP_VERSION, keys=dict(keys), pinned=dict(pinned))


def map_url(folder_url: str, settings: Mapping[str, Any]) -> str:
    """Return where the map of a mixture lies. settings: what decides its ratios, apart from content, as canonical JSON values."""
    return f"{folder_url.rstrip('/')}/{fingerprint('ratio map', MAP_VERSION, **settings)}.json"


def read_map(url: str, keys: Mapping[str, str | None], *, failures_ttl_s: float) -> dict[str, RatioDocument] | None:
    """Return the documents of the map at `url` (of `map_url`), None where there is no whole one that counts for these keys.

    keys: by name of the data set; None where its content isn't known here: then the map's word is taken.
    failures_ttl_s: how old a guess may be that somebody had to make.
    Raises TransientInputError where the place can't be reached.
    """
    value = _load(url)
    if not isinstance(value, dict) or value.get("v") != MAP_VERSION or not isinstance(value.get("documents"), dict):
        return None
    documents = {}
    for name, key in keys.items():
        document = RatioDocument.from_json(value["documents"].get(name))
        if document is None or not _counts(document, key, failures_ttl_s):
            return None
        documents[name] = document
    return documents


def _counts(document: RatioDocument, key: str | None, failures_ttl_s: float) -> bool:
    if not document.retryable:
        return key in (None, document.key)
    return 0 <= time.time() - datetime.fromisoformat(document.created).timestamp() < failures_ttl_s


def publish_map(
    url: str, documents: Documents, pinned: Mapping[str, float], *, failures_ttl_s: float, replace: bool = False
) -> dict[str, RatioDocument]:
    """Put a map down at `url` (of `map_url`) unless one that counts lies there already; return what lies there in the end.

    Of several writers one wins, and all get the winner's. replace: the last one does. failures_ttl_s: see `read_map`.
    Raises InputError where it can't be written, TransientInputError where it can't be read back.
    """
    keys = {name: None if document.retryable else document.key for name, document in documents.items()}
    content = _content(documents, pinned)
    if replace or not _create(url, content):
        if not replace and (there := read_map(url, keys, failures_ttl_s=failures_ttl_s)) is not None:
            return there
        _overwrite(url, content)
    return read_map(url, keys, failures_ttl_s=max(failures_ttl_s, _JUST_NOW_S)) or dict(documents)


def _content(documents: Documents, pinned: Mapping[str, float]) -> bytes:
    pins = {name: [*TokenRatio(ratio, "pinned").to_state(), ""] for name, ratio in pinned.items()}
    measured = {name: list(next(iter(document.ratios.values()))) for name, document in documents.items()}
    value = {
        "v": MAP_VERSION,
        "ratios": pins | measured,
        "documents": {name: document.to_json() for name, document in documents.items()},
    }
    return orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n"


def _load(url: str) -> Any:
    path = local_path(url)
    try:
        if path is not None:
            return orjson.loads(path.read_bytes())
        system, name = file_system(url)
        return orjson.loads(system.cat_file(name))
    except FileNotFoundError:
        return None
    except ValueError:  # cut short, or something else altogether
        return None
    except transport_errors() as error:
        raise TransientInputError(url, f"can't be read ({transport_words(error)})") from error


def _create(url: str, content: bytes) -> bool:
    """Write a new object whole; False if there is one already."""
    path = local_path(url)
    try:
        if path is not None:
            return _write_local(path, content, replace=False)
        system, name = file_system(url)
        system.makedirs(name.rpartition("/")[0], exist_ok=True)
        system.pipe_file(name, content, mode="create")
    except FileExistsError:
        return False
    except transport_errors() as error:
        raise InputError(url, f"can't be written ({transport_words(error)})") from error
    return True


def _overwrite(url: str, content: bytes) -> None:
    path = local_path(url)
    try:
        if path is not None:
            _write_local(path, content, replace=True)
        else:
            system, name = file_system(url)
            system.pipe_file(name, content)
    except transport_errors() as error:
        raise InputError(url, f"can't be written ({transport_words(error)})") from error


def _write_local(path: Path, content: bytes, *, replace: bool) -> bool:
    """Give content, once it is on the device, the name `path`; False if that is taken and isn't to be replaced."""
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from error
    try:
        with temporary.open("xb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        if replace:
            temporary.replace(path)
        else:
            _name_once(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_directory(path.parent)
    return True


def _name_once(temporary: Path, path: Path) -> None:
    """Give a file its name, unless that is taken; file systems without hard links can only look first."""
    try:
        path.hardlink_to(temporary)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if path.exists():
            raise FileExistsError(str(path)) from None
        temporary.replace(path)
