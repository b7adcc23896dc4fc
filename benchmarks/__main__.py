"""`make bench`: run every benchmark, keep the results as JSON in benchmarks/results.

A benchmark compares this project with its peers side by side in one run on this machine; quote its ratios, not its seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
COMMANDS = {
    "scan": ["scan.py", "--texts", "10000000", "--texts", "20000000", "--output", str(RESULTS / "scan.json")],
    "tokenize": ["bank_tokenize.py", "--json", str(RESULTS / "tokenize.json")],
    "count": ["ratio_count.py", "--json", str(RESULTS / "count.json")],
    "catalog": ["catalog.py", "--json", str(RESULTS / "catalog.json")],
    "ratios": ["ratios.py", "--json", str(RESULTS / "ratios.json")],
    "batches": ["batches.py", "--json", str(RESULTS / "batches.json")],
    "xtoken": ["xtoken.py", "--json", str(RESULTS / "xtoken.json")],
    "encode": ["encode.py", "--json", str(RESULTS / "encode.json")],
}


def main() -> int:
    """Run the benchmarks named on the command line, or all; returns the exit code of the first that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(COMMANDS)}; default all")
    names = parser.parse_args().names or list(COMMANDS)
    RESULTS.mkdir(exist_ok=True)
    for name in names:
        if name not in COMMANDS:
            parser.error(f"there is no benchmark {name}; there are {', '.join(COMMANDS)}")
        print(f"\n== {name}", flush=True)
        script, *flags = COMMANDS[name]
        code = subprocess.run([sys.executable, str(HERE / script), *flags], check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
