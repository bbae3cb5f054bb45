"""Compare two source trees by one of kofn's own benchmarks, in one interleaved run.

    python benchmarks/compare.py OLD/src NEW/src overhead --repeats 5
    python benchmarks/compare.py OLD/src NEW/src engines --repeats 3 -- local --rounds 200
    python benchmarks/compare.py OLD/src NEW/src benchmarks/rounds.py --repeats 3 -- sums

`kofn bench NAME --json` runs in a process of its own, with the one tree and then with the other on
PYTHONPATH, in turn: A, B, A, B. A noisy minute hits both. What follows `--` goes to the benchmark.
In the place of its name may be a program that prints such an object: where the two trees print
others, rounds.py prints the same for both.

A figure is a number of the JSON object, by its path: figures.NAME.value. For each, the run
with B is divided by the run with A just before it. The median of these ratios is printed, with the
least and the largest. Numbers that no run changes (rows, workers) are left out, and so are those
that are not above zero in every run. B is slower where the ratio of a time is above 1. `machine`
and `seconds` are no figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

START = "from kofn.cli import main; main()"
WHERE = "import kofn; print(kofn.__file__)"


def python(tree: Path, program: str, *arguments: str) -> str:
    """Run a program with `tree` before all else that is installed; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(tree)},
        cwd=tempfile.gettempdir(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def check(tree: Path) -> Path:
    """Return the tree's full path; end the program where kofn is not loaded from there."""
    whole = tree.resolve()
    found = Path(python(whole, WHERE).strip()).resolve()
    if whole not in found.parents:
        sys.exit(f"the tree must hold the package kofn; with {whole} it is loaded from {found}.")
    return whole


def figures(result: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a JSON object, with its path."""
    if isinstance(result, dict):
        for key, value in result.items():
            yield from figures(value, f"{path}.{key}" if path else key)
    elif isinstance(result, (int, float)) and not isinstance(result, bool):
        yield path, float(result)


def compare(old: list[dict[str, float]], new: list[dict[str, float]]) -> dict[str, Any]:
    """Medians of both trees and the ratios of neighbours, by figure."""
    rows: dict[str, Any] = {}
    for name in old[0]:
        both = [(a, b) for a, b in zip(old, new, strict=True) if name in a and name in b]
        pairs = [(a[name], b[name]) for a, b in both]
        values = {value for pair in pairs for value in pair}
        if len(values) < 2 or min(values) <= 0:
            continue
        ratios = [b / a for a, b in pairs]
        rows[name] = {
            "a": median(a for a, _ in pairs),
            "b": median(b for _, b in pairs),
            "ratio": median(ratios),
            "least": min(ratios),
            "largest": max(ratios),
        }
    return rows


def main() -> None:
    """Parse the options, run the benchmark in turn, print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", type=Path, help="the source tree before")
    parser.add_argument("b", type=Path, help="the source tree after")
    parser.add_argument("bench", help="a name that `kofn bench` knows, or a program")
    parser.add_argument("--repeats", type=int, default=3, help="runs with each tree (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    words = [*sys.argv[1:], "--"]
    end = words.index("--")
    options, more = parser.parse_args(words[:end]), words[end + 1 : -1]
    trees = check(options.a), check(options.b)
    own, name = options.bench.endswith(".py"), options.bench
    program = f"import runpy; runpy.run_path({os.path.abspath(name)!r}, run_name='__main__')"
    run = [program] if own else [START, "bench", name, "--json"]
    runs: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for repeat in range(options.repeats):
        for tree, found in zip(trees, runs, strict=True):
            print(f"run {repeat + 1} of {options.repeats}: {tree}", file=sys.stderr)
            output = python(tree, *run, *more)
            result = json.loads(output)
            for key in ("machine", "seconds", "settings"):
                result.pop(key, None)
            found.append(dict(figures(result)))
    rows = compare(*runs)
    if options.json:
        print(json.dumps({"bench": options.bench, "repeats": options.repeats, "figures": rows}))
        return
    width = max((len(name) for name in rows), default=0)
    print(f"{'figure':{width}}  {'a':>10}  {'b':>10}  {'b / a':>6}  least to largest")
    for name, row in rows.items():
        print(
            f"{name:{width}}  {row['a']:10.4g}  {row['b']:10.4g}  {row['ratio']:6.3f}  "
            f"{row['least']:.3f} to {row['largest']:.3f}"
        )


if __name__ == "__main__":
    main()
