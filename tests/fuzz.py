"""Altered files and command lines: each is refused by a clean error, or read rightly.

    python tests/fuzz.py --count 5000 --first 0 --only model,csv

A *kind* of file is a row of `fuzz_kinds.KINDS`: how a good one is made, how it is read, and how to
tell that what was read is right. One more kind of file is one more row. A try has a number; the
number and the kind decide all of it, so `--only KIND --first NUMBER --count 1` repeats it alone.

A clean error is a KofnError; of a command, one line on stderr (or click's usage) and exit status 1
or 2. Right is, of a file with a checksum, what was written; of any other, what an independent
reader says. Files are altered with the checksum left as it was, and with it made right again, as
somebody could who means ill: then whatever is read must at least be whole and finite.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_kinds import KINDS, Kind
from fuzz_lines import altered_line, make_command, run_line
from sklearn.exceptions import ConvergenceWarning
from support import gently

import kofn
from kofn import KofnError, saved

SECONDS = 20.0  # of this process, for one try; more is a hang
MEMORY = 8 << 30  # bytes of addresses, in a run of its own
TOKENS = (
    *rb"nan inf -inf 1e999 -1 0 1_0 ' , : null true ../../etc/passwd (1,) |O <f8 >f4 <U9".split(),
    b'"',
    *(b"", b"\0", b"\xff\xfe", b"\x80\x05.", b"\n", b"\r", "١".encode(), b"9" * 30, b"9" * 5000),
    *(b"[" * 20_000, b'{"a":' * 20_000, b"cposix\nsystem\n(S'true'\ntR."),
    *(b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"PAR1", b"\x1f\x8b"),
)
# fmt: off
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 1.5, math.nan, math.inf, "", "x", "float32",
    "|O", "../x", [], [[]], [1], {}, {"a": 1}, "0" * 64, [1, 2, 3], "share-0000.npy", "array",
)
# fmt: on


class Hang(BaseException):
    """A try took too long."""


class Unclean(Exception):
    """An error that is none of kofn's own, or a result that is wrong."""


# How files are altered.


def altered(data: bytes, dice: np.random.Generator, others: list[bytes]) -> bytes:
    """The same with one to four changes."""
    for _ in range(int(dice.integers(1, 5))):
        a, b = sorted(int(i) for i in dice.integers(0, len(data) + 1, 2))
        b = min(b, a + int(dice.choice([1, 2, 8, 64, len(data)])))
        other = others[int(dice.integers(len(others)))]
        token = TOKENS[int(dice.integers(len(TOKENS)))]
        kind = int(dice.integers(8))
        if kind == 0 and a < len(data):  # a bit
            data = data[:a] + bytes([data[a] ^ (1 << int(dice.integers(8)))]) + data[a + 1 :]
        elif kind == 1 and a < len(data):  # a byte
            data = data[:a] + dice.bytes(1) + data[a + 1 :]
        elif kind == 2:
            data = data[:a] + token + data[a:]
        elif kind == 3:
            data = data[:a] + token + data[b:]
        elif kind == 4:
            data = data[:a] + data[b:]
        elif kind == 5:
            data = data[:b] + data[a:]
        elif kind == 6:
            data = data[:a]
        else:
            data = data[:a] + other[a : b + 1] + data[b:]
    return data


def altered_json(content: Any, dice: np.random.Generator) -> Any:
    """The same with one value somewhere replaced, removed or copied to another place."""
    if isinstance(content, dict) and content and dice.random() < 0.9:
        key = list(content)[int(dice.integers(len(content)))]
        rest = {k: v for k, v in content.items() if k != key}
        return rest if dice.random() < 0.1 else {**rest, key: altered_json(content[key], dice)}
    if isinstance(content, list) and content and dice.random() < 0.9:
        at = int(dice.integers(len(content)))
        if dice.random() < 0.1:
            return content[:at] + content[at + 1 :]
        return [*content[:at], altered_json(content[at], dice), *content[at + 1 :]]
    return VALUES[int(dice.integers(len(VALUES)))]


def alter(path: Path, dice: np.random.Generator, others: list[bytes]) -> bool:
    """Alter a file; what it holds now and then, rather than its bytes. Whether it is sealed."""
    if dice.random() < 0.02:
        path.unlink()
        return False
    data = path.read_bytes()
    if path.suffix == ".json" and dice.random() < 0.6:
        path.write_text(json.dumps(altered_json(json.loads(data), dice)))
        return False
    if path.suffix == ".jsonl" and dice.random() < 0.8:
        lines = data.splitlines()
        for at in dice.integers(len(lines), size=3).tolist():
            lines[at] = json.dumps(altered_json(json.loads(lines[at]), dice)).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")
        return False
    if (path.suffix == ".kofn" or path.name.startswith("checkpoint-")) and dice.random() < 0.6:
        arrays, facts = saved.unpack(data)
        if dice.random() < 0.7:
            facts = altered_json(facts, dice)
            facts = facts if isinstance(facts, dict) else {"kind": facts}
        else:
            name = list(arrays)[int(dice.integers(len(arrays)))]
            arrays[name] = odd_array(dice, arrays[name])
        path.write_bytes(saved.pack(arrays, facts))
        return True
    if path.suffix == ".npz" and dice.random() < 0.6:
        with np.load(path) as found:
            arrays = dict(found)
        name = list(arrays)[int(dice.integers(len(arrays)))]
        values = arrays[name].copy()
        if values.size and values.dtype.kind in "fi" and dice.random() < 0.8:
            values.flat[int(dice.integers(values.size))] = dice.choice([-1, 0, 7, 2**31 - 1])
        else:
            values = odd_array(dice, values)
        np.savez(path, allow_pickle=False, **{**arrays, name: values})
        return True
    path.write_bytes(altered(data, dice, others))
    return False


def odd_array(dice: np.random.Generator, values: Any) -> Any:
    """Another array in the place of one."""
    odd = (np.zeros(0), np.zeros((2, 3)), np.array("x"), values.ravel()[:-1], np.zeros(5, int))
    return odd[int(dice.integers(len(odd)))]


COMMAND = "command line"
# Of a hundred tries, those of commands: they take longest.
SHARE = 20


class Bench:
    """Good files of every kind, made once; a try alters a copy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.good: dict[str, tuple[Path, Any]] = {}
        self.others = [b"\0" * 64, *TOKENS]

    def of(self, name: str) -> tuple[Path, Any]:
        """The folder of a kind, and what is read from it."""
        if name not in self.good:
            folder = self.root / f"good {len(self.good)}"
            folder.mkdir()
            made = (make_command if name == COMMAND else KINDS[name].make)(folder)
            self.good[name] = folder, made
            self.others += [p.read_bytes()[:10_000] for p in folder.rglob("*") if p.is_file()]
        return self.good[name]

    def attempt(self, name: str, number: int) -> str:
        """One try; "right" or "refused", or raises Unclean."""
        dice = np.random.default_rng([zlib.crc32(name.encode()), number])
        good, expected = self.of(name)
        folder = self.root / "try"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good, folder)
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", kofn.StoreWarning)
            warnings.simplefilter("ignore", kofn.TraceWarning)  # it is sorted, and said so
            warnings.simplefilter("ignore", kofn.CheckpointWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            if name == COMMAND:
                words = altered_line(dice)
                try:
                    return "right" if run_line(words, folder) else "refused"
                except Exception as error:
                    raise Unclean(f"kofn {' '.join(words)}") from error
            return self._file(KINDS[name], folder, expected, dice)

    def _file(self, kind: Kind, folder: Path, expected: Any, dice: np.random.Generator) -> str:
        files = sorted(path for path in folder.glob(kind.files) if path.is_file())
        sealed = alter(files[int(dice.integers(len(files)))], dice, self.others)
        if kind.reseal is not None and not sealed and dice.random() < 0.5:
            with suppress(Exception):  # it is too far from what it was
                kind.reseal(folder)
                sealed = True
        try:
            value = kind.read(folder)
        except KofnError as error:
            if not str(error) or "\0" in str(error):
                raise Unclean("an error that says nothing") from error
            return "refused"
        except Exception as error:
            raise Unclean(f"{type(error).__name__} is none of kofn's errors") from error
        sealed = sealed and kind.reseal is not None  # what is right of others is told by a reader
        if not (kind.right(expected, value, folder) or (sealed and kind.whole(value))):
            raise Unclean(f"what was read is wrong: {value!r}; it should be {expected!r}")
        return "right"


@contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    """Raise Hang when it computes for longer. What waits is left to the limit of the test."""

    def over(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def names(only: str = "") -> list[str]:
    """The kinds, by their names."""
    there = [name for name, kind in KINDS.items() if not kind.needs or find_spec(kind.needs)]
    return [name for name in (*there, COMMAND) if not only or name in only.split(",")]


def run(root: Path, chosen: list[str], first: int, count: int) -> tuple[Counter[str], list[str]]:
    """So many tries, spread over the kinds; return the counts, and what failed."""
    bench, counts, failed = Bench(root), Counter[str](), list[str]()
    with gently:
        for number in range(first, first + count):
            gently()
            command = COMMAND in chosen and (number % 100 < SHARE or chosen == [COMMAND])
            files = [name for name in chosen if name != COMMAND]
            name = COMMAND if command or not files else files[number % len(files)]
            try:
                counts[f"{name}: {bench.attempt(name, number)}"] += 1
            except (Exception, Hang):
                failed.append(
                    f"--only '{name}' --first {number} --count 1\n{traceback.format_exc()}"
                )
                counts[f"{name}: FAILED"] += 1
    return counts, failed


def main() -> None:
    """Try altered files and lines, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help=f"Some of: {', '.join(names())}.")
    given = parser.parse_args()
    logging.getLogger("kofn").setLevel(logging.CRITICAL)  # of shares that were rebuilt
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kofn-fuzz-") as root:
        counts, failed = run(Path(root), names(given.only), given.first, given.count)
    for what, many in sorted(counts.items()):
        print(f"{many:7} {what}")
    for text in failed:
        print(f"fuzz: failed, again with: python tests/fuzz.py {text}", file=sys.stderr)
    took = time.monotonic() - began
    print(f"fuzz: {counts.total()} tries from {given.first}, {len(failed)} failed, {took:.0f} s")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
