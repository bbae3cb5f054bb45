"""The event log on disk: one JSON object a line, rotated and bounded, read while it grows.

The first line of a file is its header: kind "log", the format's number, the run's id, which part of
the run this file is (0, 1, …), the engine's name, the workers that are live, the engine's time and
the same moment in Unix seconds. Every other line is a Record; empty fields (-1, "" and,
of rows, 0) are left out. When a file is full it is renamed, with .1 added, over the one that was
renamed before. So a run takes twice MOST bytes at most, and the oldest records go first.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import compress, count, islice, repeat
from math import isfinite
from operator import is_
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import BadInput, CannotWrite, LogWarning
from ..files import name_of
from ..model import Record
from .usage import Gauged, Usage

FORMAT = 1
MOST = 32 << 20  # bytes of a file
EVERY = 0.2  # seconds between two writes
# What a line raises that is none of a log's.
_NO_RECORD = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

# Nearly all records are of these kinds; formatting them by hand takes a third of json's time.
_PLAIN = {
    kind: f'{{"time":%.9f,"kind":"{kind}","round":%d,"worker":%d,"task":%d,"rows":%d}}\n'
    for kind in ("send", "piece", "reply", "dropped")
}


def line(record: Record) -> str:
    """A record as a line of the log."""
    if not record.numbers and (form := _PLAIN.get(record.kind)) is not None:
        return form % (record.time, *record[2:6])
    out: dict[str, Any] = {"time": round(record.time, 9), "kind": record.kind}
    numbered = zip(("round", "worker", "task"), record[2:5], strict=True)
    out |= {name: number for name, number in numbered if number != -1}
    if record.rows:
        out["rows"] = record.rows
    if record.why:
        out["why"] = record.why
    if record.numbers:
        # JSON has no NaN and no infinity; as text they are read back all the same.
        out["numbers"] = {name: x if isfinite(x) else str(x) for name, x in record.numbers}
    return json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n"


def parse(data: Mapping[str, Any]) -> Record:
    """The record of a line, read as JSON."""
    time, kind, worker = float(data["time"]), str(data["kind"]), int(data.get("worker", -1))
    if not isfinite(time):
        raise ValueError("a time is a finite number")
    if kind == "send" and worker < 0:
        raise ValueError("a task is sent to a worker")
    return Record(
        time,
        kind,
        int(data.get("round", -1)),
        worker,
        int(data.get("task", -1)),
        int(data.get("rows", 0)),
        str(data.get("why", "")),
        tuple((str(name), float(x)) for name, x in data.get("numbers", {}).items()),
    )


class Tail:
    """Follows a log in memory from another thread, at no cost to the thread that appends."""

    def __init__(self, log: deque[Record]) -> None:
        self._log = log
        self._last: Record | None = None
        self._room = 1024  # somewhat more than came the last time, to find it at the first try
        self.missed = False  # more came between two looks than the log holds

    def seek(self, record: Record) -> None:
        """Go on after this record, which is in the log."""
        self._last = record

    def take(self) -> list[Record]:
        """The records since the last call, oldest first. O(those)."""
        most = self._room
        while True:
            try:
                newest = list(islice(reversed(self._log), most))
            except RuntimeError:  # it grew meanwhile
                continue
            newest.reverse()
            # All in C: who appends must not wait for this. The last one is among the oldest.
            at = next(compress(count(), map(is_, newest, repeat(self._last))), None)
            if at is None and len(newest) == most:
                most *= 4
                continue
            if at is None:
                self.missed |= self._last is not None
                at = -1
            del newest[: at + 1]
            if newest:
                self._last = newest[-1]
            self._room = max(1024, 5 * len(newest) // 4)
            return newest


class LogWriter:
    """Writes a log in memory to a file, in a thread of its own, a few times a second.

    A disk that fills up ends the file, with a warning, and not the run.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        log: deque[Record],
        engine: str,
        workers: Iterable[int],
        now: float,
        used: Gauged | None = None,
    ) -> None:
        self.path, self._usage = Path(name_of(path)), None if used is None else Usage(used)
        self._tail, self._live = Tail(log), set(workers)
        self._head = {
            "kind": "log",
            "format": FORMAT,
            "run": secrets.token_hex(8),
            "engine": engine,
        }
        self._offset = time.time() - now
        self._part, self._size = 0, 0
        self._file: BinaryIO | None = None
        self._turn = threading.Lock()
        self._home = os.getpid()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="kofn-log", daemon=True)
        try:
            self._open(now)
            older(self.path).unlink(missing_ok=True)  # of another run
            self._thread.start()
        except (OSError, ValueError, RuntimeError) as error:  # "." has no name; no thread
            self._shut()
            why = getattr(error, "strerror", None) or error
            problem = f"log must be a file that can be written: {why}. Name another place."
            raise CannotWrite(str(self.path), problem) from error

    def _open(self, now: float) -> None:
        self._file = _alone(self.path)
        head = self._head | {
            "part": self._part,
            "workers": sorted(self._live),
            "time": now,
            "unix": round(now + self._offset, 6),
        }
        data = json.dumps(head).encode() + b"\n"
        self._file.write(data)
        self._size = len(data)

    def _write_on(self) -> None:
        while not self._over.wait(EVERY):
            self.flush()

    def flush(self) -> None:
        """Write what has come since the last time."""
        if os.getpid() != self._home:
            return  # a forked child has the file too, and must not write
        with self._turn:
            records = self._tail.take()
            records += () if self._usage is None else self._usage.records()
            try:
                for start in range(0, len(records), 4096):
                    self._write(records[start : start + 4096])
            except OSError as error:
                self._shut()
                text = f"the log {self.path} ends here: {error.strerror}. The run goes on."
                warnings.warn(text, LogWarning, stacklevel=2)

    def _write(self, records: list[Record]) -> None:
        if self._file is None or not records:
            return
        data = "".join(map(line, records)).encode()
        if self._size + len(data) > MOST and self._size > 0:
            self._shut()
            self._part += 1
            self.path.replace(older(self.path))
            self._open(records[0].time)
        for record in records:
            if record.kind == "joined":
                self._live.add(record.worker)
            elif record.kind == "lost":
                self._live.discard(record.worker)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._size += len(data)

    def _shut(self) -> None:
        if self._file is not None:
            with suppress(OSError), self._file:  # a forked child has the lock, too
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file = None

    def close(self) -> None:
        """Write the rest, and end. Idempotent."""
        if os.getpid() != self._home:
            return
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self.flush()
        with self._turn:
            self._shut()


def _alone(path: Path) -> BinaryIO:
    """Open a file anew, which nobody else writes until it is closed: they would mix with us."""
    file = path.open("ab", buffering=0)
    if not path.is_file():
        return file  # a pipe, or /dev/null
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise OSError(error.errno, "another run is writing it") from error
    except OSError:  # a file system without locks
        pass
    file.truncate(0)
    return file


def older(path: Path) -> Path:
    """The path of the part before the one at `path`."""
    return path.with_name(path.name + ".1")


class LogReader:
    """Reads a log on disk, also while it grows, is rotated, or is copied anew over itself."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(name_of(path))
        self.head: dict[str, Any] = {}  # of the part that is read now
        self.first: dict[str, Any] = {}  # of the oldest part that was there
        self.anew = False  # the last take began with another run than the one before
        self._file: BinaryIO | None = None
        self._rest, self._line = b"", 0
        self._begin = b""  # of the file that is read: its header
        if not self.path.is_file():
            raise BadInput(
                f"a log is a file that connect(..., log=...) has written; {self.path} is not "
                f"there. Check the name."
            )

    def take(self) -> list[Record]:
        """The records that have come since the last call, oldest first."""
        self.anew = False
        if self._file is None:
            return self._first()
        replaced = self._replaced()  # before what is left of it is read
        data = self._file.read()
        if os.pread(self._file.fileno(), len(self._begin), 0) != self._begin:
            self._file.seek(-len(data), os.SEEK_CUR)  # not of this run; or else it is read again
            return self._next()  # written anew in its place
        records = self._parse(data)
        if replaced:
            records += self._next()
        return records

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _first(self) -> list[Record]:
        records: list[Record] = []
        self.first = {}
        head = _head(self.path)
        part, before = head["part"], older(self.path)
        if part and before.is_file() and _head(before).get("run") == head["run"]:
            self._enter(before)
            records = self._read()
        self._enter(self.path)
        return records + self._read()

    def _enter(self, path: Path) -> None:
        self.close()
        self._file = path.open("rb")
        self._begin = self._file.readline(1 << 20)
        self._file.seek(0)
        self._rest, self._line = b"", 0

    def _replaced(self) -> bool:
        assert self._file is not None
        try:
            there, here = self.path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:  # it is being renamed
            return False
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) or (
            there.st_size < self._file.tell()
        )

    def _next(self) -> list[Record]:
        """Go on in another file: the run's next part, a newer copy of this one, or another run."""
        try:
            head = _head(self.path)
        except BadInput:
            return []  # its header is still on the way
        before, at = self.head, self._file.tell() - len(self._rest) if self._file else 0
        if head["run"] == before["run"] and head["part"] == before["part"]:
            if self.path.stat().st_size < at:
                return []  # it is being copied
            number = self._line
            self._enter(self.path)
            assert self._file is not None
            self._file.seek(at)
            self._line = number
            return self._read()
        if head["run"] == before["run"] and head["part"] == before["part"] + 1:
            self._enter(self.path)
            return self._read()
        self.anew = True
        return self._first()

    def _read(self) -> list[Record]:
        assert self._file is not None
        return self._parse(self._file.read())

    def _parse(self, data: bytes) -> list[Record]:
        records = []
        *lines, self._rest = (self._rest + data).split(b"\n")
        for text in lines:
            self._line += 1
            try:
                one = json.loads(text)
                if one["kind"] == "log":
                    _check_head(one, self.path)
                    self.head = one
                    self.first = self.first or one
                else:
                    records.append(parse(one))
            except _NO_RECORD as error:
                raise BadInput(
                    f"every line of a log is one JSON object with a time and a kind; line "
                    f"{self._line} of {self.path} is {text[:80]!r}. Check that it is a log."
                ) from error
        return records


def _head(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        text = file.readline(1 << 20)
    try:
        head = json.loads(text)
    except _NO_RECORD:
        head = None
    if not isinstance(head, dict) or head.get("kind") != "log":
        raise BadInput(
            f"the first line of a log says that it is one; that of {path} is {text[:80]!r}. Name a "
            f"file that connect(..., log=...) has written."
        )
    _check_head(head, path)
    return head


def _check_head(head: Mapping[str, Any], path: Path) -> None:
    if head.get("format") != FORMAT:
        raise BadInput(
            f"this kofn reads logs of format {FORMAT}; {path} has format {head.get('format')!r}. "
            f"Read it with the kofn that wrote it."
        )
    kinds = {"run": str, "part": int, "engine": str, "workers": list}
    wrong = [name for name, kind in kinds.items() if not isinstance(head.get(name), kind)]
    if wrong or not all(type(worker) is int for worker in head["workers"]):
        name = wrong[0] if wrong else "workers"
        raise BadInput(
            f"the header of a log says its run, part, engine and workers; {name} of {path} is "
            f"{str(head.get(name))[:80]!r}. Name a file that connect(..., log=...) has written."
        )


def read_log(path: str | PathLike[str]) -> list[Record]:
    """The records of a log on disk, oldest first, as `cluster.log` has them."""
    reader = LogReader(path)
    try:
        return reader.take()
    finally:
        reader.close()
