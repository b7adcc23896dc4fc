"""Run a toy flow in this process and print the names of its task runs' states: RUNNER ROOT TEXT …"""

from __future__ import annotations

import sys

from toy_steps import run_toys

if __name__ == "__main__":
    kind, root, *texts = sys.argv[1:]
    sys.stdout.write(" ".join(state for state, _ in run_toys(kind, root, texts)) + "\n")
