"""Server, UI and worker in the foreground, until this process is stopped: `python -m deployments.serve [--port N]`.

The same as `python -m deployments.local up`, for a terminal, a container or a service manager. Ends, with everything it
started, on SIGINT, SIGTERM, or when the server or the worker ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from deployments.local import down, port_number, state_folder, status, up
from zephon_core.errors import ZephonError

__all__ = ["main"]

_CHECK_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until stopped; returns 0 when asked to stop, 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m deployments.serve", description="Server, UI and worker in the foreground.")
    parser.add_argument("--port", type=port_number, default=os.environ.get("ZEPHON_PORT") or "0")
    chosen = parser.parse_args(arguments)
    asked = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        asked.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    state = state_folder()
    try:
        service, before = up(state, chosen.port)
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if before:
        print(f"error: {service.ui_url} is running already. Stop it first: python -m deployments.local down", file=sys.stderr)
        return 1
    print(f"Running. UI: {service.ui_url}  API: {service.api_url}  logs: {state / 'logs'}", flush=True)
    while not asked.wait(_CHECK_S):
        if status(state) is None:
            print(f"error: the server or the worker has ended. See {state / 'logs'}.", file=sys.stderr)
            break
    down(state)
    return 0 if asked.is_set() else 1


if __name__ == "__main__":
    sys.exit(main())
