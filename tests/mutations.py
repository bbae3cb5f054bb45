"""Break the master and the protocol in twenty small ways, and see how many the search finds.

    python tests/mutations.py                    all of them, each for a minute of one core at most
    python tests/mutations.py --only lost-stored

Each one is a patch of one place in a copy of src. The search (search.py) then begins at seed 0. A
patch that fits no place, or several, is an error: the code has changed, and it must follow.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src"
SECONDS = 60.0


class Mutation(NamedTuple):
    """One small change for the worse."""

    name: str
    file: str  # below src/kofn
    old: str
    new: str


MUTATIONS = (
    # The driver and what it knows of workers.
    Mutation(
        "no-cancel",  # a round's end is not told to the engine
        "rounds/driver.py",
        "            engine.cancel(round.id)\n",
        "",
    ),
    Mutation(
        "work-for-the-dead",  # a task for one whose Lost is in the same batch
        "rounds/driver.py",
        "                if worker not in live:\n",
        "                if False:\n",
    ),
    Mutation(
        "unheard",  # what arrives in a callback is not told to the round
        "rounds/driver.py",
        "self._unheard += events if self._running else ()",
        "self._unheard += ()",
    ),
    Mutation(
        "one-too-many",  # waits for one more worker than are needed
        "rounds/driver.py",
        "        while (live := ready()) < need:\n",
        "        while (live := ready()) <= need:\n",
    ),
    Mutation(
        "debts-for-ever",  # who owes nothing any more still owes
        "rounds/roster.py",
        "        if owed > 0:\n",
        "        if owed >= 0:\n",
    ),
    Mutation(
        "lost-stored",  # nobody is told which slot a newcomer fills
        "rounds/roster.py",
        "            return event._replace(slot=slot)\n",
        "            return event\n",
    ),
    Mutation(
        "old-news",  # what workers said changes nothing that is known of who holds what
        "rounds/roster.py",
        "        self.changes += 1\n        if type(event) is Dropped:\n",
        "        if type(event) is Dropped:\n",
    ),
    Mutation(
        "slots-of-the-dead",  # who is lost keeps its slot
        "rounds/roster.py",
        "            slots.pop(worker, None)\n",
        "            pass\n",
    ),
    Mutation(
        "old-version",  # who has not confirmed an update counts as ready
        "rounds/holders.py",
        "if key in kept.get(w, ())]",
        "if w in kept]",
    ),
    # Rounds.
    Mutation(
        "forgotten-retire",  # what a lost worker owed is still counted on
        "rounds/cover.py",
        "        self.asked[i] = self._have[i]\n",
        "        pass\n",
    ),
    Mutation(
        "double-count",  # rows that come twice count twice
        "rounds/cover.py",
        "                self._count[a:b] += ~have\n",
        "                self._count[a:b] += 1\n",
    ),
    Mutation(
        "early-done",  # one reply fewer is enough where windows were mended
        "rounds/cover.py",
        "            (self.count >= self.need).all()\n",
        "            (self.count >= self.need - 1).all()\n",
    ),
    Mutation(
        "any-way",  # a transposed product ends when some of its terms are there
        "arrays/reduce.py",
        "        self.done = all(terms.counted is not None for terms in self._terms)\n",
        "        self.done = any(terms.counted is not None for terms in self._terms)\n",
    ),
    Mutation(
        "still-open",  # a lost worker's tasks stay open
        "rounds/watch.py",
        "        self._open = {task: w for task, w in self._open.items() if w != worker}\n",
        "",
    ),
    Mutation(
        "job-left-behind",  # a job whose submit raised stays in the queue
        "sequence/stream.py",
        "                self._queue.pop()  # it is the last,",
        "                pass  # it is the last,",
    ),
    Mutation(
        "loss-overlooked",  # an iteration goes on as if a lost worker would still deliver
        "rounds/iterate.py",
        "            self._leaving.append(share)\n            commands.append(self._hold())\n",
        "            self._leaving.append(share)\n",
    ),
    # The protocol.
    Mutation(
        "cancelled-id",  # a cancel is of the rounds before
        "engines/protocol/master.py",
        "            if peer.tasks and any(peer.sent < task.round <= round for",
        "            if peer.tasks and any(peer.sent < task.round < round for",
    ),
    Mutation(
        "operand-once",  # only the first worker of a round is sent its operand
        "engines/protocol/master.py",
        "            if worker not in operand.holders:\n",
        "            if not operand.holders:\n",
    ),
    Mutation(
        "newest-put",  # an answer to a put is taken for that of a later one
        "engines/protocol/master.py",
        "self._end_put(peer, next(i for i, put in enumerate(peer.puts) if put.key == key))",
        "self._end_put(peer, max(i for i, put in enumerate(peer.puts) if put.key == key))",
    ),
    Mutation(
        "puts-of-the-dead",  # what was on its way to a lost worker is not let go
        "engines/protocol/master.py",
        "        while peer.puts:\n            self._end_put(peer, -1)\n",
        "",
    ),
    Mutation(
        "beyond-the-last",  # a body is asked for more when it has said its last
        "engines/protocol/worker.py",
        "                count = 0 if type(piece) is Last else count - 1\n",
        "                count = count - 1\n",
    ),
)


class Found(NamedTuple):
    """How the search fared with a mutation: the seed that failed, or none, and after how long."""

    mutation: Mutation
    seed: int | None
    seconds: float
    why: str


def mutated(mutation: Mutation, folder: str) -> Path:
    """Copy src into a folder, with one place changed."""
    source = Path(folder, "src")
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "kofn" / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        places = text.count(mutation.old)
        sys.exit(f"{mutation.name}: {mutation.file} has its place {places} times. Write it anew.")
    path.write_text(text.replace(mutation.old, mutation.new))
    return source


def tried(mutation: Mutation, seconds: float) -> Found:
    """Search with a mutation, for so many seconds at most."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPATH": str(mutated(mutation, folder))}
        env["OPENBLAS_NUM_THREADS"] = "1"
        command = [sys.executable, str(TESTS / "search.py"), "--count", "10000000"]
        command += ["--seconds", str(seconds)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    found = re.search(r"^seed (\d+) \((.*)", done.stderr, re.MULTILINE)
    took = re.search(r"^found after ([\d.]+) s", done.stderr, re.MULTILINE)
    if found is None or took is None:
        return Found(mutation, None, seconds, (done.stdout or done.stderr).strip()[-200:])
    return Found(mutation, int(found[1]), float(took[1]), found[2][:100])


def main() -> None:
    """Try all, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="the name of one")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    args = parser.parse_args()
    some = [m for m in MUTATIONS if args.only in (None, m.name)]
    if not some:
        sys.exit(f"--only names a mutation; there is no {args.only!r}.")
    with ThreadPoolExecutor(args.jobs) as pool:
        every = []
        for found in pool.map(lambda mutation: tried(mutation, args.seconds), some):
            seed = "not found" if found.seed is None else f"seed {found.seed}"
            print(
                f"{found.mutation.name:20} {seed:>10} {found.seconds:5.1f} s  {found.why}",
                flush=True,
            )
            every.append(found)
    caught = sum(found.seed is not None for found in every)
    print(f"{caught} of {len(every)} found")


if __name__ == "__main__":
    main()
