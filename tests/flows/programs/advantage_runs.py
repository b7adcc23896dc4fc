"""Runs of the chunk-advantages flow in this process."""

from __future__ import annotations

from typing import Any

from flows.chunk_advantages import chunk_advantages


def run_advantages(spec: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """Run the flow; returns its result, its state and its run's id."""
    state = chunk_advantages(spec, run, return_state=True)
    result = state.result(raise_on_failure=False) if state.is_completed() else None
    return {
        "result": result.to_json() if result else None,
        "state": state.type.value,
        "message": state.message,
        "flow_run": str(state.state_details.flow_run_id),
    }
