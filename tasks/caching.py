"""Prefect's cache as a projection of the artifact store. The only module that knows how Prefect caches.

Prefect decides on the client whether a task run is a hit: it asks the cache policy for a key, the policy's key storage for
the record of that key, and the result storage for the result that the record names. Here the key is the artifact's own
(`<kind>-<fingerprint>`), and the key storage answers from the artifact store: a record exists exactly where a valid artifact
does, whoever made it. So

- an artifact that is gone or cut short is made again, although Prefect has seen it before;
- an artifact that Prefect has never seen (another server, a wiped database, the command line) is a hit.

What is kept for Prefect is one small file an artifact, `<store>/prefect/<key>.json`, written anew when it is missing; the
folder may be deleted at any time. No Prefect locks are used, since a killed holder would leave one behind for ever: of two
runs of one fingerprint the store lets one work and the other wait.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE, CachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.filesystems import WritableFileSystem
from prefect.results import ResultRecord, ResultRecordMetadata
from prefect.serializers import JSONSerializer
from prefect.settings import get_current_settings
from prefect.tasks import exponential_backoff

from zephon_core.atomic import write_bytes
from zephon_core.errors import ZephonError
from zephon_core.ratios.documents import KIND, RatioDocuments
from zephon_core.store import ArtifactRef, ArtifactStore, Recipe

__all__ = [
    "RETRIES",
    "UNCACHED",
    "ArtifactPolicy",
    "ArtifactRecords",
    "DocumentRecords",
    "bind",
    "bind_document",
    "is_transient",
    "refreshing",
]

P = ParamSpec("P")
R = TypeVar("R")

_SERIALIZER = JSONSerializer()

# What another try can't mend, although Python calls it an operating-system error.
_LASTING = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


@dataclass
class ArtifactPolicy(CachePolicy):
    """The cache policy of a task that makes one artifact, known by key before the task runs.

    The key is a constant: Prefect logs an error raised here and then runs the task uncached, so nothing here may raise.
    """

    artifact_key: str = ""

    def compute_key(self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any) -> str:
        """Return the artifact's key."""
        return self.artifact_key


class ArtifactRecords(WritableFileSystem):
    """Key storage in which there is one record, that of one artifact, as long as the store holds a valid one."""

    _block_type_name = "Artifact records"
    _block_type_slug = "zephon-artifact-records"

    root: str
    kind: str
    fingerprint: str

    def find(self) -> ArtifactRef | None:
        """Return the artifact, None where there is no valid one."""
        return ArtifactStore(self.root).find(self.kind, self.fingerprint)

    def read_path(self, path: str, _sync: bool | None = None) -> bytes:
        """Return the record of the artifact. Raises ValueError where there is no valid one, which Prefect takes as a miss."""
        ref = self.find()
        if ref is None:
            raise ValueError(f"no valid artifact {path}")
        # Prefect's own copy of a result, `<key>`, isn't written atomically; a hit is answered from a file of ours.
        answer = _records_folder(self.root) / f"{path}.json"
        content = _SERIALIZER.dumps(ref)
        if not answer.is_file() or answer.read_bytes() != content:
            answer.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(answer, content)
        return ResultRecordMetadata(storage_key=str(answer), serializer=_SERIALIZER).dump_bytes()

    def write_path(self, path: str, content: bytes, _sync: bool | None = None) -> None:
        """Do nothing: the artifact itself is the record."""

    async def aread_path(self, path: str) -> bytes:
        """See `read_path`; a few file-system calls, short enough for an event loop."""
        return self.read_path(path)

    async def awrite_path(self, path: str, content: bytes) -> None:
        """See `write_path`."""


class DocumentRecords(ArtifactRecords):
    """Key storage in which there is one record, that of a measured ratio, as long as the store holds a valid document of it."""

    _block_type_name = "Document records"
    _block_type_slug = "zephon-document-records"

    kind: str = KIND

    def find(self) -> ArtifactRef | None:
        """Return the name of the document, None where there is no valid one."""
        documents = RatioDocuments(ArtifactStore(self.root))
        return documents.ref(self.fingerprint) if documents.read(self.fingerprint) else None


def bind(task: Task[P, R], recipe: Recipe, store: ArtifactStore, *, refresh: bool = False) -> Task[P, R]:
    """Tie a task to the artifact it makes: its run is Cached, without running the body, where the store holds a valid one.

    The task returns the ArtifactRef of `recipe`, or something else while the artifact isn't finished (a part of it, say),
    and passes `refreshing()` to the core as `force`.
    refresh: run the body even so. Prefect's own setting, `PREFECT_TASKS_REFRESH_CACHE`, does the same.
    """
    root = str(store.root)
    return _bound(task, ArtifactRecords(root=root, kind=recipe.kind, fingerprint=recipe.fingerprint), refresh=refresh)


def bind_document(task: Task[P, R], key: str, store: ArtifactStore, *, refresh: bool = False) -> Task[P, R]:
    """Tie a task to the document it makes, as `bind` does to an artifact. key: the document's, see `zephon_core.ratios.documents`.

    The task returns the document's ArtifactRef, or something else where no document is kept.
    """
    return _bound(task, DocumentRecords(root=str(store.root), fingerprint=key), refresh=refresh)


def _bound(task: Task[P, R], records: ArtifactRecords, *, refresh: bool) -> Task[P, R]:
    return task.with_options(
        cache_policy=ArtifactPolicy(key_storage=records, artifact_key=f"{records.kind}-{records.fingerprint}"),
        persist_result=True,
        result_storage=_records_folder(records.root),
        result_serializer="json",
        cache_result_in_memory=False,
        refresh_cache=refresh or None,
    )


def refreshing() -> bool:
    """Say whether the task that runs now was asked to make its artifact anew."""
    context = TaskRunContext.get()
    asked = context.task.refresh_cache if context else None
    return bool(get_current_settings().tasks.refresh_cache if asked is None else asked)


def is_transient(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Retry condition: an input or output fault that may pass (a network file system's hiccup), never bad input."""
    error = state.data.result if isinstance(state.data, ResultRecord) else state.data
    return isinstance(error, OSError) and not isinstance(error, ZephonError) and error.errno not in _LASTING


def _records_folder(root: str) -> Path:
    return Path(root).resolve() / "prefect"


# Of a task: two more tries, after about 2 and 4 seconds, each up to half as long again, and only for faults that may pass.
RETRIES: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": exponential_backoff(backoff_factor=2),
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": is_transient,
}
# Of a task that makes no artifact. One that does has no cache policy of its own either: the flow binds it to what it makes.
UNCACHED: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
