"""Make router-training rows out of text found on every machine: the functions of Python's standard library.

A row asks for a function by the first line of its docstring; the candidates are that function's source without its docstring and
the sources of a few other functions. Which candidate is the right one goes into a file beside the rows.

    python examples/stdlib_functions.py OUTPUT_DIR [--functions 2000] [--candidates 8]

writes train.jsonl, eval.jsonl (one row in ten) and for each NAME.labels.jsonl. The same Python gives the same bytes.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SKIPPED_FOLDERS = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__", "lib2to3", "turtledemo"}
SHORTEST_QUERY_CHARACTERS = 20
SHORTEST_SOURCE_LINES = 4


@dataclass(frozen=True)
class Function:
    """A documented function: where it stands, what its docstring's first line says, and its source without the docstring."""

    name: str
    query: str
    source: str


def documented_functions(root: Path) -> Iterator[Function]:
    """Yield the documented functions and methods of all modules under `root`, in path order."""
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
            continue
        try:
            code = path.read_text(encoding="utf-8")
            tree = ast.parse(code)
        except (SyntaxError, UnicodeDecodeError):
            continue  # the library keeps a few broken files on purpose
        lines = code.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (function := _function(node, lines)):
                yield function


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> Function | None:
    docstring = ast.get_docstring(node)
    if not docstring or len(node.body) < 2:
        return None
    query = docstring.strip().splitlines()[0].strip()
    documented = node.body[0]
    head = lines[node.lineno - 1 : documented.lineno - 1]
    tail = lines[documented.end_lineno or documented.lineno : node.end_lineno]
    source = "\n".join(line[node.col_offset :] for line in (*head, *tail)).strip()
    if len(query) < SHORTEST_QUERY_CHARACTERS or source.count("\n") + 1 < SHORTEST_SOURCE_LINES:
        return None
    return Function(node.name, query, source)


def chosen(functions: Iterator[Function], count: int) -> list[Function]:
    """Choose `count` functions with distinct queries and sources, spread over the library by the hash of their source."""
    distinct = {function.query: function for function in functions}
    by_source = {function.source: function for function in distinct.values()}
    return sorted(by_source.values(), key=lambda function: hashlib.sha256(function.source.encode()).digest())[:count]


def write_rows(functions: list[Function], candidates: int, output: Path) -> dict[str, int]:
    """Write rows and labels for training and evaluation; return the number of rows of each."""
    rng = random.Random(0)
    rows: dict[str, list[tuple[dict[str, object], int]]] = {"train": [], "eval": []}
    for number, function in enumerate(functions):
        others = rng.sample([other for other in range(len(functions)) if other != number], candidates - 1)
        texts = [functions[other].source for other in others]
        right = rng.randrange(candidates)
        texts.insert(right, function.source)
        row = {"query": function.query, "candidates": [{"text": text} for text in texts]}
        rows["eval" if number % 10 == 9 else "train"].append((row, right))
    output.mkdir(parents=True, exist_ok=True)
    for name, pairs in rows.items():
        _write_lines(output / f"{name}.jsonl", [row for row, _ in pairs])
        _write_lines(output / f"{name}.labels.jsonl", [[right] for _, right in pairs])
    return {name: len(pairs) for name, pairs in rows.items()}


def _write_lines(path: Path, values: list[object] | list[dict[str, object]]) -> None:
    """Write one JSON value a line, leaving a file alone that holds just that: its time stamp says when it last changed."""
    content = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    if not path.exists() or path.read_text(encoding="utf-8") != content:
        path.write_text(content, encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path)
    parser.add_argument("--functions", type=int, default=2000, help="how many functions to ask for")
    parser.add_argument("--candidates", type=int, default=8, help="candidates a row, the right one included")
    options = parser.parse_args()
    functions = chosen(documented_functions(Path(sysconfig.get_path("stdlib"))), options.functions)
    counts = write_rows(functions, options.candidates, options.output)
    print(f"{counts['train']} training and {counts['eval']} evaluation rows of {len(functions)} functions in {options.output}")


if __name__ == "__main__":
    main()
