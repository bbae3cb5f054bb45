"""The oracle: stored scripts, and what the master asked of its engine and gave its user in each.

    python tests/oracle.py draw            draw 5,000 scripts of search.py, once, and store them
    python tests/oracle.py record          play them all, and write the book of what happened
    python tests/oracle.py check           play them all, and name those that went otherwise
    python tests/oracle.py show 4711       print one, call by call (to be compared by diff)
    python tests/oracle.py retire "probe"  drop the scripts with a tag, of a feature that goes

A change that only moves or merges code leaves every script as it is in the book. Where a rule is
changed on purpose, `check` counts the scripts that went otherwise by tag, and prints by how much
their simulated time changed. The scripts themselves are stored, not their seeds: what a seed draws
changes when search.py does.

Recorded are the calls of the engine contract (put, broadcast, submit, cancel, forget) with their
arguments, the bytes of results, the kinds of exceptions, and the fields of reports. Neither names
of classes and modules nor the words of the event log are.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from itertools import count, groupby, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import search
from acting import Acting, Strike, interruptible
from search import Script, Step, World

FOLDER = Path(__file__).parent
SCRIPTS = FOLDER / "oracle_scripts.json.gz"
BOOK = FOLDER / "oracle_book.json.gz"
COUNT = 5_000
NAME = re.compile(r"(?<=\")[a-z]+-\d+(?=[/\"])")
NOT_COMPARED = {"seconds"}  # of reports: the time that decoding took is the machine's


def drawn() -> Iterator[Script]:
    """Scripts of all themes but those of the protocol alone."""
    return (search.scripted(seed) for seed in count() if _theme(seed) != "protocol")


def _theme(seed: int) -> str:
    return search.THEMES[seed % 100]


def tags(script: Script) -> list[str]:
    """What a script uses: its theme, place and choices, its work, and the faults in it."""
    strikes = {strike.what for step in script.steps for strike in step.strikes}
    work = {step.work for step in script.steps}
    named = {script.theme, script.place, script.otherwise} - {""}
    return sorted(named | work | strikes)


def stored() -> list[Script]:
    """The scripts of the file."""
    read = json.loads(gzip.decompress(SCRIPTS.read_bytes()))
    return [_script(kept) for kept in read]


def _script(kept: Mapping[str, Any]) -> Script:
    steps = tuple(
        Step(work, seed, tuple(Strike(*strike) for strike in strikes))
        for work, seed, strikes in kept["steps"]
    )
    return Script(**{**kept, "steps": steps})


def store(scripts: list[Script]) -> None:
    """Write the file of scripts."""
    text = json.dumps([asdict(script) for script in scripts])
    SCRIPTS.write_bytes(gzip.compress(text.encode(), mtime=0))


# What happens in a script, as lines.


def plain(value: Any) -> Any:
    """A value without names of classes, functions and modules; arrays by their bytes."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return repr(float(value))
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return f"{value.dtype}{value.shape}:{digest}"
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, map(plain, value)))
    if isinstance(value, partial):
        return ["call", plain(value.args), plain(value.keywords)]
    if is_dataclass(value):
        public = (f.name for f in fields(value) if not f.name.startswith("_"))
        return {name: plain(getattr(value, name)) for name in public if name not in NOT_COMPARED}
    if isinstance(value, bytes | bytearray | memoryview):
        return f"bytes:{hashlib.sha256(value).hexdigest()[:16]}"
    # An object of kofn's own: what it holds, in no order, for attributes are renamed.
    return sorted(json.dumps(plain(held)) for held in _attributes(value))


def _attributes(value: object) -> list[object]:
    if callable(value):
        return []
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    held = [getattr(value, name) for name in slots if hasattr(value, name)]
    return [*held, *getattr(value, "__dict__", {}).values()]


class Recording(Acting):
    """An engine that writes down what the master asks of it."""

    lines: list[str]
    names: dict[str, str]

    def _write(self, call: str, *arguments: Any) -> None:
        # What is put has a name with a number, which counts for the whole process: "share-5".
        text = json.dumps([call, *map(plain, arguments)])
        self.lines.append(NAME.sub(self._renamed, text))

    def _renamed(self, name: re.Match[str]) -> str:
        return self.names.setdefault(name[0], f"name {len(self.names)}")

    def submit(self, task: Any) -> None:
        self._write("submit", task.id, task.round, task.worker, task.args, task.what, task.cost)
        super().submit(task)

    def put(self, worker: int, key: str, value: Any) -> None:
        self._write("put", worker, key, value)
        super().put(worker, key, value)

    def broadcast(self, round: int, value: Any) -> None:
        self._write("broadcast", round, value)
        super().broadcast(round, value)

    def cancel(self, round: int) -> None:
        self._write("cancel", round)
        super().cancel(round)

    def forget(self, key: str) -> None:
        self._write("forget", key)
        super().forget(key)


def played(script: Script) -> tuple[list[str], float]:
    """Play a script: a line for each call and each result, and when it ended."""
    lines: list[str] = []

    class Noting(World):
        def note(self, what: str, *values: Any) -> None:
            lines.append(json.dumps([what, *map(plain, values)]))

    kind = type("Recorder", (Recording,), {"lines": lines, "names": {}})
    draws, real = count(), np.random.default_rng

    def seeded(seed: Any = None) -> np.random.Generator:
        return real([script.seed, next(draws)] if seed is None else seed)

    with patch.object(np.random, "default_rng", seeded), patch.object(search, "Acting", kind):
        world = Noting(script)
        world.play()
    return in_order(lines), world.engine.now()


def in_order(lines: list[str]) -> list[str]:
    """The same, where what is forgotten together is sorted: its order has no meaning."""
    ordered: list[str] = []
    for forgets, together in groupby(lines, lambda line: line.startswith('["forget"')):
        group = list(together)
        ordered += sorted(group) if forgets else group
    return ordered


def entry(script: Script) -> list[Any]:
    """What the book has of a script: a digest of its lines, how many, and its simulated time."""
    lines, ended = played(script)
    return [hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16], len(lines), ended]


def otherwise(scripts: list[Script], book: list[list[Any]]) -> Iterator[tuple[int, list[Any]]]:
    """The scripts that went otherwise than in the book: their number, and what they gave now."""
    with interruptible():
        for number, (script, before) in enumerate(zip(scripts, book, strict=True)):
            now = entry(script)
            if now != before:
                yield number, now


def report(scripts: list[Script], book: list[list[Any]]) -> int:
    """Print what went otherwise, by tag; how many did."""
    by_tag: Counter[str] = Counter()
    times, found = [], 0
    for number, now in otherwise(scripts, book):
        found += 1
        by_tag.update(tags(scripts[number]))
        times.append(now[2] - book[number][2])
        if found <= 20:
            print(f"script {number} ({', '.join(tags(scripts[number]))}): {book[number]} -> {now}")
    print(f"{found} of {len(scripts)} scripts went otherwise")
    if found:
        most = ", ".join(f"{tag} {times}" for tag, times in by_tag.most_common(12))
        print(f"by tag: {most}")
        print(f"simulated seconds: {np.median(times):+.3g} in the median, {sum(times):+.3g} in all")
    return found


def main() -> int:
    """Do as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("do", choices=("draw", "record", "check", "show", "retire"))
    parser.add_argument("what", nargs="?", help="number of a script, or a tag")
    args = parser.parse_args()
    if args.do == "draw":
        store(list(islice(drawn(), COUNT)))
        return 0
    scripts = stored()
    if args.do == "show":
        with interruptible():
            print("\n".join(played(scripts[int(args.what)])[0]))
        return 0
    if args.do == "record":
        with interruptible():
            book = [entry(script) for script in scripts]
        BOOK.write_bytes(gzip.compress(json.dumps(book).encode(), mtime=0))
        return 0
    book = json.loads(gzip.decompress(BOOK.read_bytes()))
    if args.do == "retire":
        kept = [i for i, script in enumerate(scripts) if args.what not in tags(script)]
        store([scripts[i] for i in kept])
        text = json.dumps([book[i] for i in kept])
        BOOK.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{len(scripts) - len(kept)} scripts retired, {len(kept)} left")
        return 0
    return int(bool(report(scripts, book)))


if __name__ == "__main__":
    sys.exit(main())
