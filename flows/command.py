"""Run a flow in this process, with its parameters in a file: `python -m flows.<flow> --config FILE`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prefect.settings import (
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)
from pydantic import BaseModel

from zephon_core.console import read_config, validated
from zephon_core.errors import SpecError, ZephonError
from zephon_core.usage import CommandParser

__all__ = ["run_from_file"]


def run_from_file(
    flow: Callable[..., Any],
    spec_model: type[BaseModel],
    run_model: type[BaseModel],
    arguments: Sequence[str] | None,
    *,
    name: str,
    description: str,
) -> int:
    """Run the flow with the parameters in a file; prints the result as one JSON object. Returns 0 done, 1 failed, 2 usage."""
    parser = CommandParser(prog=f"python -m flows.{name}", description=description.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML or JSON with spec and run")
    chosen = parser.parse_args(arguments)
    try:
        values = read_config(chosen.config)
        spec = validated(spec_model.model_validate, values.get("spec", {}), where=str(chosen.config), prefix="spec")
        run = validated(run_model.model_validate, values.get("run", {}), where=str(chosen.config), prefix="run")
    except SpecError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    # The server that Prefect starts for this run, unless one is named, is to send nothing anywhere, as those of `make up`.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    settings = {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 120, PREFECT_SERVER_ANALYTICS_ENABLED: False}
    with temporary_settings(settings):
        try:
            result = flow(spec, run)
        except ZephonError:
            return 1  # the run's log, on this terminal too, ends with the error
    sys.stdout.write(json.dumps(result.to_json(), ensure_ascii=False) + "\n")
    return 0
