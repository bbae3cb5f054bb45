"""Runs examples in the ways in which people run them: a script, pasted lines, a notebook's cell.

A program of its own, which has imported what examples need and forks for each of them: most of the
time of a small example is the start of Python. It reads lines of JSON with `way`, `code` (or the
`cells` of a notebook) and `folder`, and answers each with a line: `failed` is what went wrong, or
empty, and `out` what the example printed.
"""

from __future__ import annotations

import asyncio
import code as repl
import json
import os
import runpy
import signal
import sys
import traceback
import types
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

SECONDS = 280  # an example that takes longer is killed

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


def _child(task: dict[str, Any]) -> None:
    """Run one example, in a process of its own."""
    os.chdir(task["folder"])
    os.environ["IPYTHONDIR"] = task["folder"]
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.alarm(SECONDS)
    if task["way"] == "script":
        script(task["code"])
    elif task["way"] == "lines":
        lines(task["code"])
    else:
        cells(task.get("cells") or [task["code"]])


def _preload() -> None:
    for name in ("IPython.core.interactiveshell", "sklearn.datasets", "kofn.learn.linear"):
        import_module(name)


def main() -> None:
    """Serve until the input ends."""
    _preload()
    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if not child:
            try:
                _child(task)
            except BaseException:
                traceback.print_exc()
                sys.exit(1)
            return  # the end of Python, as after any program: what cleans up runs
        _, status = os.waitpid(child, 0)
        folder = Path(task["folder"])
        said = {name: (folder / name).read_text() for name in ("out", "err")}
        failed = f"status {status}\n{said['err']}" if status else ""
        print(json.dumps({"failed": failed, "out": said["out"]}), flush=True)


if __name__ == "__main__":
    main()
