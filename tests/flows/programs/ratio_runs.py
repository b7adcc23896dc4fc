"""Runs of the token-ratios flow in this process, which counts with the functions of the ratio tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ratios" / "programs"))

from flows.token_ratios import token_ratios


def run_ratios(spec: dict[str, Any], run: dict[str, Any], log: str = "") -> dict[str, Any]:
    """Run the flow; returns its result, its state and its run's id. log: file that notes each row that is counted."""
    os.environ["COUNT_LOG"] = log
    state = token_ratios(spec, run, return_state=True)
    result = state.result(raise_on_failure=False) if state.is_completed() else None
    return {
        "result": result.to_json() if result else None,
        "state": state.type.value,
        "message": state.message,
        "flow_run": str(state.state_details.flow_run_id),
    }
