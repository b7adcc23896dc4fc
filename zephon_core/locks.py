"""Single flight: of all processes that want to do one piece of work, one does it and the others wait.

A lease is a small document beside an operating-system lock. On one host, and on network file systems that carry `flock`, the
lock alone decides, and the kernel frees it the moment its holder dies. Where a lock isn't seen by other hosts, the document's
heartbeat decides: a contender that has watched it stand still for the time to live, by its own clock, takes the lease over.
Wall clocks are never compared, so skew between hosts doesn't matter.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from zephon_core.atomic import temporary_name
from zephon_core.errors import LeaseHeldError, LeaseLostError

__all__ = ["Lease", "LeaseOwner", "alone_in", "is_held"]

_FIRST_POLL_S = 0.02
_LONGEST_POLL_S = 0.5


def _boot_identity() -> str:
    """Name the running kernel and the process namespace: processes that agree on it see each other's locks."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return socket.gethostname()
    return f"{boot}/{namespace}"


@dataclass(frozen=True)
class LeaseOwner:
    """Who holds a lease, as its document says."""

    token: str
    boot: str
    host: str
    pid: int
    beat: int

    @classmethod
    def read(cls, path: Path) -> LeaseOwner | None:
        """Return the owner named in a lease's document, None where there is none or it can't be read."""
        try:
            value = json.loads(path.read_bytes())
            return cls(str(value["token"]), str(value["boot"]), str(value["host"]), int(value["pid"]), int(value["beat"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path) -> None:
        """Put the document in place in one rename; it needs no flush, since after a power cut nobody holds a lease."""
        temporary = temporary_name(path)
        temporary.write_text(json.dumps(vars(self)))
        temporary.replace(path)


class Lease:
    """The right to do one named piece of work, held from `__enter__` to `__exit__`.

    path: the lease's document, `<name>.lease`; its lock lies beside it as `<name>.lock`.
    timeout_s: how long to wait for another holder; None waits for ever, 0 doesn't wait.
    ttl_s: how long a heartbeat from another host may stand still before the lease is taken over.
    on_wait: called once with the owner when there is somebody to wait for.

    Raises LeaseHeldError when the wait runs out.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_s: float | None = None,
        ttl_s: float = 60.0,
        on_wait: Callable[[LeaseOwner | None], None] | None = None,
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._ttl_s = ttl_s
        self._on_wait = on_wait
        self._owner = LeaseOwner(secrets.token_hex(16), _boot_identity(), socket.gethostname(), os.getpid(), 0)
        self._lock: BinaryIO | None = None
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._heart: threading.Thread | None = None

    def __enter__(self) -> Lease:
        """Wait for the lease and take it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        watched: LeaseOwner | None = None
        watched_since = started
        poll_s = _FIRST_POLL_S
        told = False
        while True:
            lock = _try_lock(self._path.with_suffix(".lock"))
            owner = LeaseOwner.read(self._path)
            if lock is not None:
                if owner is None or owner.boot == self._owner.boot:
                    break
                if owner != watched:
                    watched, watched_since = owner, time.monotonic()
                elif time.monotonic() - watched_since >= self._ttl_s:
                    break
                lock.close()
            if self._timeout_s is not None and time.monotonic() - started >= self._timeout_s:
                raise self._held_by(owner)
            if not told and self._on_wait is not None:
                self._on_wait(owner)
                told = True
            time.sleep(poll_s)
            poll_s = min(poll_s * 1.5, _LONGEST_POLL_S)
        self._lock = lock
        self._owner.write(self._path)
        self._heart = threading.Thread(target=self._beat, name=f"lease {self._path.stem}", daemon=True)
        self._heart.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give the lease back."""
        self._stop.set()
        if self._heart is not None:
            self._heart.join()
        if not self._lost.is_set():
            self._path.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def check(self) -> None:
        """Raise LeaseLostError unless this lease is still ours; to be called before work is made visible."""
        owner = LeaseOwner.read(self._path)
        if self._lost.is_set() or owner is None or owner.token != self._owner.token:
            taker = f"process {owner.pid} on {owner.host}" if owner else "somebody who has finished"
            raise LeaseLostError(
                str(self._path), f"taken over by {taker}", remedy="This process stood still for too long; run it again."
            )

    def _beat(self) -> None:
        owner = self._owner
        while not self._stop.wait(self._ttl_s / 6):
            current = LeaseOwner.read(self._path)
            if current is None or current.token != owner.token:
                self._lost.set()
                return
            owner = LeaseOwner(owner.token, owner.boot, owner.host, owner.pid, owner.beat + 1)
            try:
                owner.write(self._path)
            except OSError:
                continue  # a full disk or a network hiccup: a missed beat is what the time to live allows for

    def _held_by(self, owner: LeaseOwner | None) -> LeaseHeldError:
        who = f"process {owner.pid} on {owner.host}" if owner else "another process"
        return LeaseHeldError(str(self._path), f"held by {who}", remedy="Wait until it is done, or stop it, and run this again.")


def _try_lock(path: Path) -> BinaryIO | None:
    handle = path.open("ab")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Let one process at a time into the block; where a folder can't be locked, several. Leaves nothing behind.

    Raises FileNotFoundError if the folder isn't there.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_held(path: Path) -> bool:
    """Say whether somebody holds the lease at `path` now (a dead holder of this host doesn't count)."""
    owner = LeaseOwner.read(path)
    try:
        handle = path.with_suffix(".lock").open("rb")
    except FileNotFoundError:
        return False
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return owner is not None and owner.boot != _boot_identity()
