"""Every exception of kofn. A message names the rule, the fact and the remedy.

Each keeps its facts as attributes and survives pickling: `args` are the facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class KofnError(Exception):
    """Base of every error that kofn raises on purpose."""

    reached: tuple[int, Any] | None = None  # of an iteration: its newest round and vector


class BadInput(KofnError, ValueError):
    """An argument breaks a rule; nothing has been sent to any worker."""


class Closed(KofnError, RuntimeError):
    """The cluster or engine was closed before this call."""


class FileProblem(KofnError):
    """Base of the errors about one file: its `path`, and the `problem`."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(path, problem)

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class BadFile(FileProblem):
    """A saved file is missing, cut, altered, or of another kind."""


class BadStore(FileProblem):
    """A file of a share store is missing, cut, altered, or belongs to another store."""


class CannotWrite(FileProblem):
    """A file cannot be written: a full disk, a limit, or a directory that takes no files."""


class StoreWarning(UserWarning):
    """Some shares of a store are missing or spoiled; the others are enough."""


class TraceWarning(UserWarning):
    """Something is odd about a recorded trace, and it can be used all the same."""


class BadCheckpoint(FileProblem):
    """No checkpoint of a folder is as it was written."""


class CheckpointWarning(UserWarning):
    """A checkpoint is spoiled and the one before it is used, or one could not be written."""


class LogWarning(UserWarning):
    """The event log on disk ends before the run does."""


class NothingYet(KofnError, LookupError):
    """Asked for the outcome of something that has not been done yet."""


class NotDecodable(KofnError):
    """Too few replies, or the wrong ones, for what is wanted."""

    def __init__(
        self, code: str, arrived: Sequence[int], need: int, threshold: int | None = None
    ) -> None:
        self.code, self.arrived, self.need = code, list(arrived), need
        self.threshold = threshold  # that the code has by its own account, and has not
        super().__init__(code, self.arrived, need, threshold)

    def __str__(self) -> str:
        more = max(1, self.need - len(self.arrived))
        remedy = f"Wait for {more} more, or plan with a smaller k."
        if self.threshold is not None:
            remedy = (
                f"Its k says that any {self.threshold} are enough, but the rows of these depend "
                f"on each other. Run kofn.testing.CodeChecks on it, and give it a larger k."
            )
        return (
            f"{self.code} needs {self.need} replies to decode; {len(self.arrived)} arrived, "
            f"from workers {self.arrived}. {remedy}"
        )


class OutOfSymbols(KofnError):
    """All symbols of a rateless code have come, and the sum is not among what they determine."""

    def __init__(self, code: str, held: int, need: int) -> None:
        self.code, self.held, self.need = code, held, need
        super().__init__(code, held, need)

    def __str__(self) -> str:
        more = max(self.need - self.held, 1 + self.held // 10)
        remedy = f"Use symbols={self.held + more} ({more} more)"
        if "symbols=" not in self.code:
            remedy = "Correct its assign(): any k slots must give the sum"
        if "'peeling'" in self.code:
            remedy += ", or decoder='inactivation', which needs fewer"
        return (
            f"{self.code} holds {self.held} symbols; all have come, and they do not give the sum. "
            f"About {self.need} are enough in nearly all cases. {remedy}."
        )


class Inaccurate(KofnError):
    """The decode would amplify rounding beyond what the caller tolerates."""

    def __init__(self, bound: float, tolerance: float, eta: float) -> None:
        self.bound, self.tolerance, self.eta = bound, tolerance, eta
        super().__init__(bound, tolerance, eta)

    def __str__(self) -> str:
        return (
            f"the result must be right to {self.tolerance:.1e}; the replies at hand only allow "
            f"{self.bound:.1e} (eta = {self.eta:.1f}). Pass a larger tolerance, "
            f"add workers, use float64, or encode a matrix anew that updates have changed much."
        )


class Overflowed(KofnError, OverflowError):
    """Coded sums of finite numbers left the range of floating point."""


class Diverged(KofnError, ArithmeticError):
    """An iteration reached a vector that is not finite."""

    def __init__(self, round: int, entry: int, value: float) -> None:
        self.round, self.entry, self.value = round, entry, value
        super().__init__(round, entry, value)

    def __str__(self) -> str:
        return (
            f"f must return finite numbers; after round {self.round} entry [{self.entry}] is "
            f"{self.value}. Scale the vector in f, or pass encode(..., check_finite=False) to let "
            f"it through."
        )


class NotFinite(KofnError, ArithmeticError):
    """The loss of a fit, or what it is computed from, is not a finite number any more."""

    def __init__(self, what: str, iteration: int, value: float) -> None:
        self.what, self.iteration, self.value = what, iteration, value
        super().__init__(what, iteration, value)

    def __str__(self) -> str:
        return (
            f"a fit goes on while its {self.what} is finite; in iteration {self.iteration} it is "
            f"{self.value}. Look for NaN, infinite or very large numbers in the data, scale them, "
            f"or take smaller steps."
        )


def _workers(count: int) -> str:
    return f"{count} live worker{'s' * (count != 1)}"


class TooFewWorkers(KofnError):
    """Fewer live workers than the threshold, and none joined in time."""

    def __init__(self, live: int, need: int, waited: float, lost: Sequence[int] = ()) -> None:
        self.live, self.need, self.waited, self.lost = live, need, waited, list(lost)
        super().__init__(live, need, waited, self.lost)

    @property
    def missing(self) -> int:
        """How many workers more would be enough."""
        return self.need - self.live

    def __str__(self) -> str:
        lost = f" (lost: {self.lost})" if self.lost else ""
        return (
            f"this needs {_workers(self.need)}; {self.live} are live{lost}, so "
            f"{self.missing} missing after waiting {self.waited:.1f} s. "
            f"Call cluster.join(), or let rounds wait for joiners: connect(..., wait=60)."
        )


class MarketOver(TooFewWorkers):
    """Fewer live workers than the threshold, and the market has nobody more to come."""

    def __str__(self) -> str:
        return (
            f"this needs {_workers(self.need)}; the market has left {self.live}, and nobody "
            f"comes after. Use a smaller k, a smaller scale (a slower market), or another trace."
        )


class SharesLost(TooFewWorkers):
    """So many shares of an updated matrix are lost at once that nobody can rebuild it."""

    def __str__(self) -> str:
        return (
            f"a matrix that was updated lives in its shares alone, and any {self.need} of them "
            f"bring it back; {self.live} are left, and joiners cannot help. Encode it again; with "
            f"a smaller k, or more workers, it survives more losses at once."
        )


class Stalled(KofnError):
    """A round waited to its limit for workers that are live and silent."""

    def __init__(self, round: int, waited: float, owing: Sequence[int]) -> None:
        self.round, self.waited, self.owing = round, waited, list(owing)
        super().__init__(round, waited, self.owing)

    def __str__(self) -> str:
        what = f"round {self.round}" if self.round >= 0 else "waiting for workers"
        return (
            f"{what} heard nothing for {self.waited:.1f} s; workers {self.owing} "
            f"still owe a reply and no other worker can stand in. Lose them "
            f"(cluster.lose), add workers (cluster.join), or raise limit= or lost_after= of "
            f"kofn.connect, if tasks take longer than that."
        )


class OutOfTouch(Stalled):
    """Workers of an iteration answer the master, but what they send each other does not arrive."""

    def __str__(self) -> str:
        return (
            f"in X.iterate workers send each other their pieces; for {self.waited:.1f} s workers "
            f"{self.owing} have answered the master, but cannot reach each other: no new vector "
            f"came. Open the ports between their machines, multiply round by round "
            f"(w = f(X @ w)), or, where the network is merely slow, raise connect(..., limit=)."
        )


class WorkerError(KofnError):
    """The work itself raised on a worker; `remote_traceback` is the worker's own."""

    def __init__(self, worker: int, error: str, remote_traceback: str) -> None:
        self.worker, self.error, self.remote_traceback = worker, error, remote_traceback
        super().__init__(worker, error, remote_traceback)

    def __str__(self) -> str:
        return (
            f"worker {self.worker} raised {self.error}\n"
            f"--- traceback of worker {self.worker} ---\n{self.remote_traceback.rstrip()}"
        )


class UnknownWorker(KofnError, KeyError):
    """A worker id that is not live."""

    def __init__(self, worker: int, live: Sequence[int]) -> None:
        self.worker, self.live = worker, list(live)
        super().__init__(worker, self.live)

    def __str__(self) -> str:
        return f"worker {self.worker} is not live. Use one that is: {self.live}."


class WrongReplies(KofnError):
    """Replies were found wrong, and too few others are left to do without them.

    `workers`: whose they were, and why they cannot be right; empty where nobody can say whose.
    """

    def __init__(self, workers: Mapping[int, str], live: int, missing: int, rows: int = 0) -> None:
        self.workers, self.live, self.missing, self.rows = dict(workers), live, missing, rows
        super().__init__(self.workers, live, missing, rows)

    def __str__(self) -> str:
        if not self.workers:
            return (
                f"replies for the same rows must agree; for {self.rows} rows they do not, and it "
                f"takes {self.missing} more to say whose are wrong. Multiply again, use a larger "
                f"margin or more workers, or encode with verify='probe'."
            )
        whose = "; ".join(f"worker {worker}: {why}" for worker, why in self.workers.items())
        return (
            f"wrong replies are not used, and {self.live} other workers are live; {self.missing} "
            f"more are needed ({whose}). Call cluster.join(), let rounds wait for joiners "
            f"(connect(..., wait=60)), or encode with a smaller k."
        )


class EngineUnavailable(KofnError, ImportError):
    """An engine that is not installed, or that cannot run here."""


class OutOfResources(KofnError):
    """This machine has no descriptors or no memory left for what was asked; nothing was done."""

    def __init__(self, what: str, lacks: str) -> None:
        super().__init__(what, lacks)
        self.what, self.lacks = what, lacks

    def __str__(self) -> str:
        return (
            f"{self.what} needs memory, file descriptors or temporary files; the system says: "
            f"{self.lacks}. Raise the limit (ulimit -n, -v, -f), use fewer workers, make room "
            f"(memory, /dev/shm, TMPDIR), or let go of what is not needed any more."
        )


class TooLarge(KofnError):
    """One array is larger than what this engine can send in one piece; nothing was sent."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)
        self.what, self.size, self.limit = what, size, limit

    def __str__(self) -> str:
        return (
            f"{self.what} is sent in one piece of at most {self.limit:,} bytes; this one has "
            f"{self.size:,}. Make it smaller: encode with a larger k, cut sums into more parts, "
            f"multiply fewer columns at a time, or let workers read a store (kofn encode)."
        )


class CannotDo(KofnError, TypeError):
    """The engine, or the object, cannot do what this call needs (see engine.capabilities)."""
