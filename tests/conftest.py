"""What holds for all tests: options, shared fixtures, and which tests may start processes.

A test without a marker is quick: it starts no process. `make quick` runs all such tests. A test
marked `long` runs only in `make test-all`, or with `-m long`.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

# Before NumPy or torch is loaded: where more threads than cores are at work, those of OpenMP and
# BLAS spend most of their time on turns, and thousands of small products need none. Workers of
# engines still find a BLAS of many threads: that kofn gives them one is what EngineChecks look at.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(2, os.cpu_count() or 1)))
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2^4 cycles, not 2^26, in a loop for work

import pytest
from hosts import Hosts, HostsUnavailable
from hypothesis import settings
from support import SOAK, Command, DataFolder, Done, gently

import kofn
from kofn.cli import main

# nohup, background jobs and some CI ignore SIGINT, and so do the children of who ignores it: tests
# that interrupt a child would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Examples of a property take as long as a busy machine lets them.
settings.register_profile("kofn", deadline=None)
settings.load_profile("kofn")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--data",
        default=os.environ.get("KOFN_DATA"),
        help="folder of the public data sets; the variable KOFN_DATA says the same",
    )
    parser.addoption("--quick", action="store_true", help="only tests without a marker")
    parser.addoption("--summary", type=Path, help="file to which what came of this run is added")


@pytest.fixture(scope="session")
def data_folder(request: pytest.FixtureRequest) -> DataFolder:
    """Return the folder of the data sets if it holds the one that is named, else skip."""
    given: str | None = request.config.getoption("--data")

    def find(name: str) -> Path:
        if given is None:
            pytest.skip(f"needs {name}: set KOFN_DATA to the folder that holds it")
        if not Path(given, name).exists():
            pytest.skip(f"needs {name}, which is not in the folder of KOFN_DATA, {given}")
        return Path(given)

    return find


@pytest.fixture(scope="module")
def cluster() -> Iterator[kofn.Cluster]:
    """Four local processes, for tests that lose nobody. A file that needs others overrides it."""
    with kofn.connect("local", workers=4) as cluster:
        yield cluster


@pytest.fixture
def make_hosts() -> Iterator[Callable[..., Hosts]]:
    """Make hosts of this machine, `make_hosts("A", "B", share=[folder])`; skip where it cannot."""
    with ExitStack() as stack:

        def make(*letters: str, share: Iterable[str | Path] = ()) -> Hosts:
            try:
                return stack.enter_context(Hosts(*letters, share=share))
            except HostsUnavailable as reason:
                pytest.skip(str(reason))

        yield make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """In a soak, let Ctrl-C come out between two examples of a property."""
    if SOAK == 1 or item.get_closest_marker("hypothesis") is None:
        return (yield)
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)  # a state machine has none
    with ExitStack() as stack:
        stack.enter_context(gently)
        if handle is not None:
            test = handle.inner_test

            @functools.wraps(test)
            def example(*args: object, **drawn: object) -> object:
                gently()
                return test(*args, **drawn)

            stack.callback(setattr, handle, "inner_test", test)
            handle.inner_test = example
        return (yield)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `kofn` with these words in this process: its imports take longer than most commands."""

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["kofn", *words])
        status: object = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        assert isinstance(status, int)
        return Done(status, *capsys.readouterr())

    return run


# `--quick`: the tests without a marker, which may not start a process.

MARKED = ("engine", "hosts", "docs", "papers", "slow")
# What older NumPy, matplotlib and threadpoolctl ask this machine for.
_ASKED = ("lscpu", "fc-list", "ldconfig")
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        sys.addaudithook(_refuse)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--quick`, leave out files that are marked as a whole: some import what takes long."""
    if config.getoption("--quick") and collection_path.suffix == ".py":
        whole = rf"^pytestmark = \[?\s*pytest\.mark\.({'|'.join(MARKED)})\b"
        if re.search(whole, collection_path.read_text(), re.MULTILINE):
            return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not quick, if asked to; files with processes first: they take longest."""
    marked = [i for i in items if any(i.get_closest_marker(name) for name in MARKED)]
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in set(marked)]
    elif config.getoption("numprocesses", None):
        first = {item.path for item in marked}
        items.sort(key=lambda item: item.path not in first)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Add to the summary's file what failed, what was skipped and why, and how many passed."""
    path: Path | None = config.getoption("--summary")
    if path is None or hasattr(config, "workerinput"):  # of pytest-xdist's, one file at a time
        return
    stats = terminalreporter.stats
    lines = [
        f"FAILED {each.nodeid}" for kind in ("failed", "error") for each in stats.get(kind, ())
    ]
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in stats.get("skipped", ())
    )
    lines += [f"SKIPPED [{count}] {reason}" for reason, count in reasons.items()]
    counts = [
        f"{len(stats.get(kind, ()))} {kind}" for kind in ("passed", "failed", "error", "skipped")
    ]
    chosen = config.getoption("markexpr") or "all"
    with path.open("a") as file:
        print(*lines, f"{chosen}: {', '.join(counts)}", sep="\n", file=file)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _STARTS or Path(str(*arguments[:1])).name in _ASKED:
        return
    if "PYTEST_CURRENT_TEST" in os.environ:
        pytest.fail(f"a quick test starts a process; mark it with one of {', '.join(MARKED)}")
