"""Checkpoints: a loop's state in a folder, so that another process goes on where this one died.

    checkpoint-00000041     written whole or not at all: beside, then renamed
    checkpoint-00000042     the newest; the one before is kept in case this one is spoiled

A file has arrays and JSON, no pickle (see saved.py): the arrays by number, and what they are in.
"""

from __future__ import annotations

import errno
import re
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import checks, saved
from .errors import BadCheckpoint, BadFile, BadInput, CannotWrite, CheckpointWarning
from .files import Place, cause
from .interrupts import held

NAME = re.compile(r"checkpoint-(\d{8,})")
KEPT = 2
SHARE = 100.0  # so many times as long as it took to write one passes before the next
FIRST = 0.01  # seconds that the first is thought to take


def resume(folder: object) -> dict[str, Any]:
    """The state that was last saved in a folder by `cluster.checkpoint`; {} where there is none.

    A spoiled file is passed over for the one before, with a CheckpointWarning; where none is
    whole, BadCheckpoint is raised. One that cannot be read now (no rights, no network) is BadFile.
    Nothing is unpickled: a folder of strangers is safe to read.
    """
    newest = Checkpoint(folder).read()
    return {} if newest is None else newest[1]


class Checkpoint:
    """A folder for checkpoints, and how often there is one: `fit(..., checkpoint=Checkpoint(...))`.

    folder: a path, or a URL that fsspec reaches; it is made if it is not there. every: seconds from
    one to the next (0: after each iteration). By default a hundred times as long as the last took
    to write, so that at most 1 % of the time goes there; the first comes after a second.
    """

    def __init__(self, folder: object, every: float | None = None) -> None:
        self.place = Place.of(folder)
        self.every = None if every is None else checks.seconds(every, "every")
        self.about: Any = None  # what a state belongs to, as it is saved beside it
        self._last, self._cost = time.monotonic(), FIRST
        self._newest: int | None = None  # the number of the newest that was read or written here

    def __repr__(self) -> str:
        return f"Checkpoint({self.place.url!r}, every={self.every})"

    def numbers(self) -> list[int]:
        """The numbers of the checkpoints that are there, oldest first."""
        if self.place.exists() and not self.place.is_dir():
            raise BadInput(
                f"checkpoints are in a folder; {self.place.url} is a file. Choose another name."
            )
        names = self.place.names() if self.place.exists() else []
        return sorted(int(match[1]) for name in names if (match := NAME.fullmatch(name)))

    def read(self) -> tuple[Any, dict[str, Any]] | None:
        """What the newest whole checkpoint is about, and its state; None where there is none."""
        spoiled: list[BadCheckpoint] = []
        try:
            there = self.numbers()
        except OSError as error:
            raise _unreadable(self.place, error) from error
        self._newest = there[-1] if there else 0
        for number in reversed(there):
            try:
                newest = _load(self._file(number))
            except FileNotFoundError:  # whoever writes here has removed it
                continue
            except BadCheckpoint as error:
                spoiled.append(error)
                continue
            if spoiled:
                text = f"{spoiled[0]} The one before it is used, number {number}."
                warnings.warn(text, CheckpointWarning, stacklevel=3)
            return newest
        if spoiled:
            raise BadCheckpoint(
                spoiled[0].path,
                f"{spoiled[0].problem} Nor is an older one whole. Remove the folder to begin anew.",
            )
        return None

    def prepare(self) -> None:
        """Make the folder. CannotWrite where that cannot be."""
        try:
            self.place.make_dir()
        except OSError as error:
            raise CannotWrite(
                self.place.url,
                f"checkpoints need a folder that can be made: {cause(error)}. Choose another.",
            ) from error

    def offer(self, state: Mapping[str, Any]) -> bool:
        """Save a state if it is due; whether it was. CannotWrite: the older ones are as before.

        What has a method `__checkpoint__` is saved as that returns it, and asked only then.
        """
        began = time.monotonic()
        if began - self._last < (SHARE * self._cost if self.every is None else self.every):
            return False
        try:
            with held():  # Ctrl-C might leave a file open, or come out of zipfile as another error
                self._write(state)
        except OSError as error:
            raise CannotWrite(
                self.place.url,
                f"a checkpoint cannot be written: {cause(error)}. Make room, or choose another "
                f"folder; the last one is as it was.",
            ) from error
        finally:
            self._last = time.monotonic()
            self._cost = self._last - began
        return True

    def loop(self, every: float | None, state: Mapping[str, Any]) -> bool:
        """As `offer`, for a loop that you wrote; BadInput if the folder holds another state."""
        self.every = None if every is None else checks.seconds(every, "every")
        about = {"loop": sorted(state)}
        if self.about != about:  # not only the first time: another loop may come later
            newest = self.read()
            if newest is not None and newest[0] != about:
                has = newest[0].get("loop") if isinstance(newest[0], dict) else None
                what = f"a loop with {', '.join(has)}" if has else "a fit of kofn.learn"
                raise BadInput(
                    f"a folder has checkpoints of one loop; {self.place.url} has those of {what}, "
                    f"and this state has {', '.join(about['loop'])}. Choose another folder."
                )
            self.about = about
        return self.offer(state)

    def _write(self, state: Mapping[str, Any]) -> None:
        data = pack(self.about, state)  # before anything is touched: it may be refused
        self.place.make_dir()
        there = self.numbers()
        number = there[-1] + 1 if there else 1
        if self._newest is not None and number > self._newest + 1:
            raise OSError(
                f"another run has written number {number - 1} there since, and a folder is for one"
            )
        for tried in (number, number + 1):  # the first may be one's that was stopped while writing
            self._newest = tried  # before it is written: who is interrupted in it has written it
            try:
                self._file(tried).write(data)
                break
            except OSError as error:
                if error.errno != errno.EBUSY or tried > number:
                    raise
        for old in there[: len(there) + 1 - KEPT]:
            self._file(old).remove()

    def _file(self, number: int) -> Place:
        return self.place.child(f"checkpoint-{number:08d}")


# The file.

# What is one of these and more, as an np.str_ or an IntEnum, comes back as that alone.
_PLAIN: dict[type, Any] = {int: int.__int__, float: float.__float__, str: str.__str__}


def pack(about: Any, state: Mapping[str, Any]) -> bytes:
    """The bytes of a checkpoint. BadInput for what is neither an array nor JSON."""
    arrays: list[np.ndarray[Any, Any]] = []
    try:
        facts = {
            "about": _tree(about, "about", arrays),
            "state": _tree(dict(state), "state", arrays),
        }
    except RecursionError:
        raise BadInput(
            "a checkpoint holds lists and dicts within each other, some hundred deep at most; this "
            "state is deeper, or has a list that is in itself. Save the arrays that it is made of."
        ) from None
    named = {str(i): array for i, array in enumerate(arrays)}
    return saved.pack(named, {**facts, "form": _form(facts["state"], named)})


def _tree(value: Any, name: str, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """A value as JSON, its arrays aside; a dict is marked, so that nothing looks like an array."""
    if hasattr(value, "__checkpoint__"):
        value = value.__checkpoint__()
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    for kind, plain in _PLAIN.items():
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in saved.KINDS:
        arrays.append(np.asarray(value, order="C"))
        return {"array": len(arrays) - 1}
    if isinstance(value, list | tuple):
        return [_tree(one, f"{name}[{i}]", arrays) for i, one in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _tree(v, f"{name}[{key!r}]", arrays) for key, v in value.items()}}
    what = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise BadInput(
        f"a checkpoint holds arrays of numbers, numbers, text, and lists and dicts of them; {name} "
        f"is a {what}. Save the arrays that it is made of, and make it again from them."
    )


def _load(place: Place) -> tuple[Any, dict[str, Any]]:
    """Read one file. BadCheckpoint where it is not as it was written."""
    local = place.local
    try:
        if local is not None and local.exists() and not local.is_file():
            raise BadCheckpoint(place.url, "it is no file.")  # a pipe or a device might have no end
        with place.open() as file:
            data = file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.EIO:  # the disk's own; others say nothing of the file
            raise BadCheckpoint(place.url, f"it cannot be read: {cause(error)}.") from error
        raise _unreadable(place, error) from error
    try:
        arrays, facts = saved.unpack(data)
        if _form(facts["state"], arrays) != facts["form"]:
            raise ValueError("its state has another form.")
        return _value(facts["about"], arrays), dict(_value(facts["state"], arrays))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(place.url, f"it is not as it was written: {cause(error)}.") from None


def _unreadable(place: Place, error: OSError) -> BadFile:
    why = f"it cannot be read now: {cause(error)}. Mend that, and go on from it."
    return BadFile(place.url, why)


def _value(tree: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(tree, list):
        return [_value(one, arrays) for one in tree]
    if isinstance(tree, dict):
        if "array" in tree:
            return arrays[str(tree["array"])]
        return {key: _value(one, arrays) for key, one in tree["dict"].items()}
    return tree


def _form(tree: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """What kinds of things a state is made of, and their sizes: who goes on relies on it."""
    if isinstance(tree, list):
        return [_form(one, arrays) for one in tree]
    if isinstance(tree, dict):
        if "array" in tree:
            array = arrays[str(tree["array"])]
            return f"{array.dtype} {array.shape}"
        return {key: _form(one, arrays) for key, one in tree["dict"].items()}
    return type(tree).__name__
