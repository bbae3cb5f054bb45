"""Measure what happens to a cluster of several hosts; print the table of docs/engines.md.

    python tests/fleet_table.py --into RESULTS.json                    # everything: half an hour
    python tests/fleet_table.py --into RESULTS.json --engine dask --only off cut-5

What was measured before, and is in RESULTS.json, is kept, and printed with the rest. As root on
Linux, on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fleet.clusters import FLEETS, opened
from fleet.scenarios import SCENARIOS
from hosts import Hosts

Results = dict[str, dict[str, Any]]  # by engine, by scenario


def measure(engine: str, name: str) -> dict[str, Any]:
    """Play one scenario on hosts of its own."""
    scenario = SCENARIOS[name]
    with tempfile.TemporaryDirectory() as folder, Hosts("A", "B", "C", share=[folder]) as hosts:
        path, room = Path(folder), scenario.room
        with opened(engine, hosts, path, room, **scenario.options) as fleet:
            return asdict(scenario.play(fleet))


def cell(facts: dict[str, Any] | None) -> str:
    """What was measured: the worst operation and the median, when it was noticed, used again."""
    if facts is None or "failed" in facts:
        return "" if facts is None else "failed"

    def seconds(value: float | None) -> str:
        return "–" if value is None else f"{value:.1f} s"

    both = "–"
    if facts["worst"] is not None:
        both = f"{1000 * facts['worst']:.0f} ms ({1000 * facts['median']:.0f})"
    return f"{both}; {seconds(facts['noticed'])}; {seconds(facts['again'])}"


def table(results: Results) -> str:
    """Everything that was measured, in Markdown."""
    engines = [engine for engine in FLEETS if engine in results]
    rows = [["", *engines], ["---"] * (1 + len(engines))]
    for name, scenario in SCENARIOS.items():
        rows.append([scenario.what, *(cell(results[engine].get(name)) for engine in engines)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--engine", nargs="+", default=list(FLEETS), choices=list(FLEETS))
    parser.add_argument("--only", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    asked = parser.parse_args()
    results: Results = json.loads(asked.into.read_text()) if asked.into.exists() else {}
    for engine in asked.engine:
        for name in asked.only:
            if engine not in SCENARIOS[name].engines:
                continue
            try:
                facts = measure(engine, name)
            except Exception:
                facts = {"failed": traceback.format_exc()}
            results.setdefault(engine, {})[name] = facts
            print(engine, name, facts.get("failed") or facts, file=sys.stderr, flush=True)
            asked.into.write_text(json.dumps(results, indent=1))
    print(table(results))
    errors = [f["error"] for of in results.values() for f in of.values() if "error" in f]
    print(f"\nThe largest error was {max(errors, default=0.0):.0e}.")


if __name__ == "__main__":
    main()
