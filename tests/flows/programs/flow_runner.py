"""Run flows on demand in one process, so that tests pay for Prefect's import once and its leftovers stay out of theirs.

Reads one JSON object a line, {"function": "module:name", "arguments": {…}}, calls the function and answers in one line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed goes to the log
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):  # joining a heartbeat's thread takes a second a run
        for line in sys.stdin:
            answers.write(json.dumps(answer(json.loads(line))) + "\n")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    module, _, name = request["function"].partition(":")
    try:
        return {"value": getattr(importlib.import_module(module), name)(**request["arguments"])}
    except Exception as error:  # every error of a flow is an answer
        traceback.print_exc()
        return {"error": type(error).__name__, "message": str(error)}


if __name__ == "__main__":
    main()
