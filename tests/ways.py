"""Runs examples in the ways in which people run them: a script, pasted lines, a notebook's cell.

A program of its own, which has imported what examples need and forks for them: most of the time of
a small example is the start of Python. It reads lines of JSON with `folder` and `runs`, a list of
pairs of a way and a source (in a notebook a list of them). These are run one after the other in one
process, each in a folder of its own. The answer is a line with a pair for each: what went wrong, or
an empty string, and what the example printed.
"""

from __future__ import annotations

import asyncio
import code as repl
import gc
import json
import os
import runpy
import signal
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

SECONDS = 900  # a process that takes longer for an example is killed

# So that a fork meets no thread of a library's.
os.environ.update({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})


def script(source: str) -> None:
    """As a file that Python runs; a warning is an error."""
    Path("example.py").write_text(source)
    sys.argv = ["example.py"]
    warnings.simplefilter("error")
    runpy.run_path("example.py", run_name="__main__")


class _Console(repl.InteractiveConsole):
    """Python's prompt, which goes on after an error; here the error counts."""

    def showtraceback(self) -> None:
        raise

    def showsyntaxerror(self, filename: str | None = None, **_more: Any) -> None:
        raise


def lines(source: str) -> None:
    """Line by line at Python's prompt, as pasted: a blank line ends a block."""
    console = _Console(_main().__dict__)
    for line in [*source.splitlines(), ""]:
        console.push(line)


def cells(sources: list[str]) -> None:
    """In a notebook: in IPython, with a loop that runs already."""
    ipython: Any = import_module("IPython.core.interactiveshell")
    settings: Any = import_module("traitlets.config")

    config = settings.Config()
    config.HistoryManager.enabled = False
    shell = ipython.InteractiveShell.instance(config=config, user_module=_main())

    async def run() -> None:
        for source in sources:
            told = shell.transform_cell(source)
            result = await shell.run_cell_async(source, store_history=False, transformed_cell=told)
            result.raise_error()

    asyncio.run(run())


def _main() -> types.ModuleType:
    """A fresh `__main__`."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    return module


WAYS: dict[str, Callable[[Any], None]] = {
    "script": script,
    "lines": lines,
    "cell": lambda source: cells([source]),
    "notebook": cells,
}


def _child(folder: Path, runs: list[tuple[str, Any]]) -> bool:
    """Run examples, in a process of their own; return whether all of them worked."""
    os.environ["IPYTHONDIR"] = str(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    all_well = True
    for number, (way, source) in enumerate(runs):
        os.chdir(folder / str(number))
        for name, descriptor in (("out", 1), ("err", 2)):
            opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        signal.alarm(SECONDS)
        try:
            with warnings.catch_warnings():
                WAYS[way](source)
                gc.collect()  # what was left open is closed
            Path("done").touch()
        except BaseException:
            traceback.print_exc()
            all_well = False
        sys.stdout.flush()
        sys.stderr.flush()
    return all_well


def _preload() -> None:
    for name in ("IPython.core.interactiveshell", "sklearn.datasets", "kofn.learn.linear"):
        import_module(name)


def main() -> None:
    """Serve until the input ends."""
    _preload()
    for line in sys.stdin:
        task = json.loads(line)
        places = [Path(task["folder"], str(number)) for number in range(len(task["runs"]))]
        for place in places:
            place.mkdir()
        child = os.fork()
        if not child:
            if not _child(Path(task["folder"]), task["runs"]):
                sys.exit(1)
            return  # the end of Python, as after any program: what cleans up runs
        _, status = os.waitpid(child, 0)
        done = [(place / "done").exists() for place in places]
        if all(done) and status:  # so it was the end
            done[-1] = False
        said = [
            [
                "" if well else f"status {status}\n{_read(place / 'err')}",
                _read(place / "out"),
            ]
            for place, well in zip(places, done, strict=True)
        ]
        print(json.dumps(said), flush=True)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    main()
