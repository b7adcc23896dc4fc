"""A Prefect server with its UI and a worker on this machine: `python -m deployments.local up | down | status`.

Everything they write lies in one state folder, `.zephon/` in the checkout: Prefect's home with the database, logs, and the
record of what runs. The user's own Prefect settings are neither read nor changed. Both listen on loopback only.

Each process started carries the record's token in its environment, as does whatever it starts in turn; that is how `down`
finds all of them, also those whose parent was killed, and nothing else.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from zephon_core.atomic import write_json
from zephon_core.errors import InputError, SpecError, WorkerError, ZephonError

__all__ = [
    "CHECKOUT",
    "POOL",
    "Service",
    "down",
    "environment",
    "find_server",
    "main",
    "read_service",
    "state_folder",
    "status",
    "up",
]

CHECKOUT = Path(__file__).resolve().parent.parent
POOL = "zephon"
HOST = "127.0.0.1"
DEFAULT_PORT = 4200
TOKEN_VARIABLE = "ZEPHON_SERVICE_TOKEN"

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.1

# Settings of the caller that are passed on; every other PREFECT_ variable belongs to the caller's own Prefect.
_PASSED_ON = frozenset({"PREFECT_LOGGING_LEVEL", "PREFECT_SERVER_DATABASE_CONNECTION_URL"})


@dataclass(frozen=True)
class Service:
    """What runs: the port on loopback, the token that its processes carry, the process ids of server and worker."""

    port: int
    token: str
    server_pid: int
    worker_pid: int

    @property
    def api_url(self) -> str:
        """Where Prefect's API answers."""
        return f"http://{HOST}:{self.port}/api"

    @property
    def ui_url(self) -> str:
        """Where the UI is."""
        return f"http://{HOST}:{self.port}"


def state_folder() -> Path:
    """Return $ZEPHON_STATE, else `.zephon` in the checkout."""
    return Path(os.environ.get("ZEPHON_STATE") or CHECKOUT / ".zephon").absolute()


def read_service(state: Path) -> Service | None:
    """Return what was started in this state folder, None where nothing was or the record can't be read."""
    try:
        value = json.loads((state / "service.json").read_bytes())
        return Service(int(value["port"]), str(value["token"]), int(value["server_pid"]), int(value["worker_pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def environment(state: Path, port: int) -> dict[str, str]:
    """Return the environment in which a program talks to the server of this state folder, whatever the caller's own Prefect."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_") or name in _PASSED_ON}
    return {
        **kept,
        "DO_NOT_TRACK": "1",
        "PREFECT_HOME": str(state / "prefect"),
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_CLI_COLORS": "false",
        "PREFECT_CLI_WRAP_LINES": "false",
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_LOGGING_COLORS": "false",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "zephon_core",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }


def find_server() -> None:
    """Point Prefect at a server. To be called before Prefect is imported. Raises InputError where there is none."""
    if os.environ.get("PREFECT_API_URL"):
        return
    state = state_folder()
    service = read_service(state)
    if service is None:
        raise InputError("PREFECT_API_URL", "is not set, and no local server was started", remedy="Run `make up`, or set it.")
    os.environ.update(environment(state, service.port))


def up(state: Path, port: int) -> tuple[Service, bool]:
    """Start server, UI and worker and deploy all deployments; what runs already stays. Returns what runs, and if it ran before.

    Raises InputError where the port is taken by something else, WorkerError where a process doesn't start.
    """
    if not Path("/proc/self/environ").exists():
        raise SpecError(
            "up",
            "needs Linux, where it can find its processes again",
            remedy="Start `prefect server` and `prefect worker` by hand.",
        )
    with _locked(state):
        old = read_service(state)
        if old is not None and _alive(old.server_pid, old.token) and _alive(old.worker_pid, old.token):
            if port not in (0, old.port):
                raise SpecError(
                    "port", f"is {port}, while the server runs on {old.port}", remedy="Stop it first (down), or leave the port out."
                )
            return old, True
        if old is not None:
            _stop(old)
        service = _start(state, port or DEFAULT_PORT)
    return service, False


def down(state: Path) -> int:
    """Stop everything that `up` started and wait until it is gone; returns how many processes there were."""
    with _locked(state):
        service = read_service(state)
        if service is None:
            return 0
        stopped = _stop(service)
        (state / "service.json").unlink(missing_ok=True)
    return stopped


def status(state: Path) -> Service | None:
    """Return what runs now, None unless both server and worker do."""
    service = read_service(state)
    running = service is not None and _alive(service.server_pid, service.token) and _alive(service.worker_pid, service.token)
    return service if running else None


@contextmanager
def serving(state: Path) -> Iterator[Service]:
    """Run a server and its UI on a free port while the block runs, with no worker; what `up` started is another matter."""
    with _locked(state):
        if (left := read_service(state)) is not None:  # by a run that was killed
            _stop(left)
        service, _ = _start_server(state, _free_port())
        try:
            yield service
        finally:
            _stop(service)
            (state / "service.json").unlink(missing_ok=True)


def _start(state: Path, port: int) -> Service:
    _check_port(port)
    service, env = _start_server(state, port)
    try:
        _run(["deployments.provision"], env)
        worker = _spawn(
            ["worker", "start", "--pool", POOL, "--type", "process", "--name", "local"], state / "logs" / "worker.log", env
        )
        service = replace(service, worker_pid=worker.pid)
        write_json(state / "service.json", asdict(service))
        _run(["prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(CHECKOUT / "deployments" / "prefect.yaml")], env)
        _check_running(worker, "the worker", state / "logs" / "worker.log")
    except BaseException:
        _stop(service)
        (state / "service.json").unlink(missing_ok=True)
        raise
    return service


def _start_server(state: Path, port: int) -> tuple[Service, dict[str, str]]:
    """Start a server and wait until it answers; returns it with the environment that its processes share."""
    (state / "logs").mkdir(exist_ok=True)
    token = secrets.token_hex(16)
    env = {**environment(state, port), TOKEN_VARIABLE: token}
    log = state / "logs" / "server.log"
    server = _spawn(["server", "start", "--host", HOST, "--port", str(port)], log, env)
    service = Service(port, token, server.pid, 0)
    try:
        write_json(state / "service.json", asdict(service))
        _wait_until_healthy(service, server, log)
    except BaseException:
        _stop(service)
        (state / "service.json").unlink(missing_ok=True)
        raise
    return service, env


def _spawn(arguments: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=CHECKOUT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _run(module: Sequence[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *module],
        cwd=CHECKOUT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise WorkerError(f"python -m {' '.join(module)}", f"ended with exit code {done.returncode} ({said})")


def _wait_until_healthy(service: Service, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not _healthy(service):
        _check_running(server, "the server", log)
        if time.monotonic() > deadline:
            raise WorkerError("the server", f"did not answer within {_START_TIMEOUT_S:.0f} s", remedy=f"See {log}.")
        time.sleep(_POLL_S)


def _healthy(service: Service) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{service.api_url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _check_running(process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    if process.poll() is not None:
        lines = log.read_text(errors="replace").strip().splitlines()
        said = lines[-1].strip() if lines else "no output"
        raise WorkerError(name, f"ended with exit code {process.returncode} ({said})", remedy=f"See {log}.")


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _check_port(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise InputError(
                f"{HOST}:{port}",
                f"can't be listened on ({error.strerror})",
                remedy="Stop what uses it, or choose another port with --port or $ZEPHON_PORT.",
            ) from None


def _stop(service: Service) -> int:
    """Stop the runs, then the worker, then the server, which is told how the runs ended; returns how many processes there were.

    Each is asked first, and killed after a while; sooner where there is no server left to report to.
    """
    seen = set(_bearers(service.token))
    patience_s = _STOP_TIMEOUT_S if service.server_pid in seen else _STOP_TIMEOUT_S / 10
    _end(seen - {service.server_pid, service.worker_pid}, service.token, patience_s)
    _end({service.worker_pid}, service.token, patience_s)
    _end({service.server_pid}, service.token, patience_s)
    _end(set(_bearers(service.token)), service.token, patience_s)
    return len(seen)


def _end(pids: set[int], token: str, patience_s: float) -> None:
    for step in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            if _alive(pid, token):
                with suppress(ProcessLookupError):
                    os.kill(pid, step)
        if _wait_until_gone(pids, token, patience_s):
            return


def _wait_until_gone(pids: set[int], token: str, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while any(_alive(pid, token) for pid in pids):
        if time.monotonic() > deadline:
            return False
        for pid in pids:
            with suppress(ChildProcessError):  # most are no children of ours: started by an earlier `up`
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_POLL_S)
    return True


def _alive(pid: int, token: str) -> bool:
    """Say whether process `pid` lives and is one of those started with `token`; a process id that was reused is not."""
    if pid <= 0:
        return False
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return f"{TOKEN_VARIABLE}={token}".encode() in variables


def _bearers(token: str) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid() and _alive(int(folder.name), token):
            yield int(folder.name)


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def port_number(text: str) -> int:
    """Read a port from the command line or $ZEPHON_PORT; 0 stands for the one that runs, or else the default."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: expected a number up to 65535")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m deployments.local", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("up", "down", "status"))
    parser.add_argument("--port", type=port_number, default=os.environ.get("ZEPHON_PORT") or "0", help=f"default {DEFAULT_PORT}")
    parser.add_argument(
        "--state", type=Path, default=None, help="state folder; default $ZEPHON_STATE, else .zephon in the checkout"
    )
    chosen = parser.parse_args(arguments)
    state = (chosen.state or state_folder()).absolute()
    try:
        if chosen.command == "up":
            service, before = up(state, chosen.port)
            said = "Already running" if before else "Running"
            print(f"{said}. UI: {service.ui_url}  API: {service.api_url}  logs: {state / 'logs'}")
            return 0
        if chosen.command == "down":
            stopped = down(state)
            print(f"Stopped {stopped} process{'' if stopped == 1 else 'es'}." if stopped else "Nothing was running.")
            return 0
        running = status(state)
        print(f"Running. UI: {running.ui_url}" if running else "Not running.")
        return 0 if running else 3
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
