"""Where results are to be written: found out before the work, not after it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from typer import Option

from ..errors import BadInput, CannotWrite
from ..files import Place, check_file, check_folder

# What the directory of --data holds, by command; where it may be left out, data are made up.
HOLDS = {
    "all": "the data of all papers (docs/reproduce.md)",
    "elastic": "kc_house/ and spot_traces/",
    "erasurehead": "amazon_access/, covtype/, kc_house/ and straggler_traces/",
    "fleet": "spot_traces/",
    "peers": "covtype/ and straggler_traces/",
    "plan": "straggler_traces/ and spot_traces/",
    "rateless": "straggler_traces/",
    "rivals": "straggler_traces/",
    "sequential": "mnist/",
    "sparse": "covtype/",
    "sums": "amazon_access/",
    "svm": "credit_default/",
}


def data_option(command: str, needed: bool = False) -> Any:
    """The option of a command that reads public data sets."""
    made_up = "" if needed else " (default: made-up data)"
    return Option(envvar="KOFN_DATA", help=f"Directory that holds {HOLDS[command]}{made_up}.")


def data(path: Path | None, command: str) -> None:
    """Raise BadInput where --data is not a directory."""
    if path is not None and not path.is_dir():
        raise BadInput(
            f"--data (or KOFN_DATA) must be a directory that holds {HOLDS[command]}; {path} is not "
            f"there."
        )


def directory(path: Path) -> None:
    """Make a directory; raise BadInput where that, or a file in it, is not allowed."""
    if path.exists() and not path.is_dir():
        raise BadInput(f"--out must be a directory; {path} is a file. Name another.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"--out must be a directory that can be made; {path} cannot: {error.strerror}. Name "
            f"another."
        ) from None
    check_folder(path, "--out")


@contextmanager
def room(path: Path, size: int) -> Iterator[None]:
    """Hold so many bytes beside `path` until the work is done: a disk may fill up meanwhile.

    Raises BadInput where they are not to be had.
    """
    check_file(path, "--out")
    if path.exists() and not path.is_file():
        yield  # a device has no size
        return
    held = path.resolve().with_name(f".{path.name}.room")
    try:
        try:
            held.write_bytes(bytes(size))
        except OSError as error:
            raise BadInput(
                f"--out must be where there is room for it, about {size:,} bytes; {path.parent} "
                f"has none: {error.strerror}. Make room, or name another."
            ) from None
        yield
    finally:
        held.unlink(missing_ok=True)


def save(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. If it does not go, keep it elsewhere, and CannotWrite."""
    try:
        Place.of(path).write(data)
    except OSError as error:
        kept = _save_elsewhere(path, data)
        where = f"It is in {kept} instead: move it" if kept else "Nor can it be kept elsewhere"
        raise CannotWrite(
            str(path), f"it cannot be written: {error.strerror or error}. {where}."
        ) from error


def _save_elsewhere(path: Path, data: bytes) -> Path | None:
    for folder in (tempfile.gettempdir(), os.getcwd(), os.path.expanduser("~")):
        name = None
        try:
            handle, name = tempfile.mkstemp(path.suffix, f"kofn-{path.stem}-", folder)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            return Path(name)
        except OSError:
            if name is not None:
                with suppress(OSError):
                    os.unlink(name)
    return None


def results(path: Path, result: Any) -> None:
    """Write what was measured to results.json in a directory."""
    save(path / "results.json", (json.dumps(result, indent=2) + "\n").encode())


def tried(write: Callable[[], object]) -> dict[str, tuple[str, str]]:
    """Write what goes beside a result. If it does not go, `show` raises that after the result."""
    try:
        write()
    except CannotWrite as error:
        return {"trouble": (error.path, error.problem)}
    return {}
