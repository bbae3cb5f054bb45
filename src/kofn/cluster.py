"""The front door: connect to an engine, and encode matrices on its workers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, overload

from . import checks
from .arrays.options import Options
from .arrays.shares import choose_code, resolve_source, scaled_shares, shares_from
from .arrays.turned import turned
from .arrays.verify import Verify, check_options
from .checkpoint import Checkpoint
from .choice import Choice, chosen
from .codes import AnyKOfN, SumCode
from .display import Displayed
from .engines.base import Engine
from .engines.known import start
from .errors import BadInput, CannotDo, EngineUnavailable
from .interrupts import held
from .model import Record
from .notices import Source, resolve
from .report.logs import LogWriter
from .rounds import Late, RoundDriver
from .rounds.relayed import Relaying, relaying
from .sequence import SequenceCode, Stream
from .sums import Parts

if TYPE_CHECKING:
    from .arrays import CodedMatrix, CodedTranspose
    from .page import Page

DEFAULT_LATE = Late()


def connect(
    engine: str | Engine = "local",
    workers: int | Choice | None = None,
    *,
    address: Any = None,
    security: Any = None,
    wait: float = 0.0,
    limit: float = 300.0,
    lost_after: float = float("inf"),
    keep: int | None = None,
    notices: str | Source | Iterable[str | Source] | None = None,
    peers: bool = True,
    log: str | PathLike[str] | None = None,
) -> Cluster:
    """Open a cluster on an engine, given by name ("local", "virtual", …) or as an Engine.

    `workers`: how many to start, or a kofn.plan, which says `wait` and `keep` too (default: the
    engine's own, or all of a running cluster). `address`: of a running cluster, where there is such
    a thing; `security`: the keys to reach it with (a distributed.Security). `wait`: seconds that a
    round below the threshold waits for workers to join before it raises TooFewWorkers. `limit`:
    seconds that a round waits in silence for workers that are live before it raises Stalled.
    `lost_after`: a worker that owes an answer and is silent for so many seconds counts as lost
    (default: never; until then it is a straggler, and others do its work). `keep`: order another
    worker for each one that leaves, so that so many are live (docs/fleet.md). `notices`: where it
    is announced that machines will go: "aws", "gcp", "azure", "kubernetes", "slurm", "ray", "dask",
    "auto" for whatever is there, or a list (default: nowhere; docs/fleet.md). `peers`: whether
    workers may connect to each other, over TCP between machines, for large operands and X.iterate;
    encrypted where the engine's own connections are (SECURITY.md). False: operands are sent by the
    engine, and iterate needs memory that workers share. `log`: a file for the event log
    (docs/page.md).
    """
    sources = resolve(notices)
    count, planned, kept = chosen(workers, "connect", workers, 0.0, None)
    wait = checks.seconds(wait or planned, "wait")
    limit = checks.number(limit, "limit", "> 0", "Leave it out for 300 seconds.", infinite=True)
    never = "Leave it out for never."
    lost_after = checks.number(lost_after, "lost_after", "> 0", never, infinite=True)
    if keep is not None:
        keep = checks.whole(keep, "keep", 1, checks.WORKERS, "Leave it out to order nobody.")
    given = isinstance(engine, Engine)
    if not isinstance(engine, Engine):
        engine = start(engine, count, address=address, security=security)
    elif any(option is not None for option in (workers, address, security)):
        raise BadInput(
            f"workers=, address= and security= go with an engine's name; got an engine that is "
            f"open already, with {len(engine.workers)} workers. Leave them out."
        )
    if keep is None and engine.capabilities.can_join:
        keep = kept  # of a plan: the rest still join where the engine cannot start them
    elif keep is not None and not engine.capabilities.can_join:
        if not given:
            engine.close()
        raise CannotDo(
            f"keep={keep} needs an engine that can start workers; engine {engine.name!r} cannot, "
            f"as it was opened here. Leave keep out; workers that are started elsewhere still join."
        )
    used = relaying(engine) if peers else engine
    driver = RoundDriver(used, wait, limit, lost_after, keep or 0, bool(peers))
    writer = None
    try:
        if log is not None:
            writer = LogWriter(log, driver.log, engine.name, engine.workers, engine.now(), engine)
        if sources:
            engine.watch(sources)
        if keep is not None:
            driver.settle()  # those that are missing are ordered at once
    except BaseException:
        if not given:
            engine.close()
        if writer is not None:
            writer.close()
        raise
    return Cluster(driver, writer)


class Cluster(Displayed):
    """Workers under one engine, as `connect` returns it: for a `with` statement, or call close."""

    _displayed = ("workers", "keep")

    def __init__(self, driver: RoundDriver, writer: LogWriter | None = None) -> None:
        engine, self._driver = driver.engine, driver
        self.engine = engine.engine if isinstance(engine, Relaying) else engine
        self._saved: dict[str, Checkpoint] = {}  # by folder
        # Also when nobody closes the cluster: then with it, or when Python ends.
        self._end_log = None if writer is None else weakref.finalize(self, writer.close)

    @property
    def workers(self) -> tuple[int, ...]:
        """Ids of the workers that are live now."""
        self._driver.settle()
        return self._driver.roster.workers

    @property
    def keep(self) -> int | None:
        """How many workers are kept by ordering others for those that leave; None: nobody is."""
        return self._driver.keeper.keep or None

    @property
    def log(self) -> list[Record]:
        """The event log so far, oldest first: what pictures are drawn from."""
        if not self._driver.closed:
            self._driver.settle()
        return list(self._driver.log)

    @overload
    def encode(
        self,
        A: object,
        k: int | Choice | None = None,
        *,
        n: int | None = None,
        code: AnyKOfN | None = None,
        axis: Literal[0] = 0,
        margin: int = 0,
        late: Late | float | None = DEFAULT_LATE,
        loads: str = "measured",
        tolerance: float | None = None,
        check_finite: bool = True,
        verify: Verify | None = None,
    ) -> CodedMatrix: ...

    @overload
    def encode(
        self,
        A: object,
        k: int | Choice | None = None,
        *,
        n: int | None = None,
        code: AnyKOfN | None = None,
        axis: Literal[1],
        margin: int = 0,
        late: Late | float | None = DEFAULT_LATE,
        loads: str = "measured",
        tolerance: float | None = None,
        check_finite: bool = True,
        verify: Verify | None = None,
    ) -> CodedTranspose: ...

    def encode(
        self,
        A: object,
        k: int | Choice | None = None,
        *,
        n: int | None = None,
        code: AnyKOfN | None = None,
        axis: int = 0,
        margin: int = 0,
        late: Late | float | None = DEFAULT_LATE,
        loads: str = "measured",
        tolerance: float | None = None,
        check_finite: bool = True,
        verify: Verify | None = None,
    ) -> CodedMatrix | CodedTranspose:
        """Cut A (N x d) into k blocks, code them as n shares, and give every worker one.

        A: a NumPy array, a frame (pandas, polars, pyarrow) or a scipy.sparse CSR matrix, float64 or
        float32; or what need not be in memory here: a Zarr array, a share store, or the path or URL
        of one or of a .npy, Zarr, Parquet or LIBSVM file (docs/store.md). A store has its own k, n.
        k: the threshold, any k live workers are enough; or a kofn.plan (default: half, rounded up;
        the margin is then learnt, docs/plan.md). n: shares, at least the live workers (default:
        those, or as many as are kept); more leave room. code: an any-k-of-n code of your own in
        place of k and n (docs/extending.md).
        axis: 0 cuts A by rows, 1 by columns (for a wide A). A store is cut as it was written.
        margin: ask so many more workers for every row than are needed, so that as many stragglers
        cost nothing. late: when others take over the rows of a worker that is late: judged by the
        spread of the round's replies, or at so many times the time of half of them, or never
        (None). loads: "measured" gives fast workers more rows, "equal" not; "still" neither, and
        rows stay with their readers when others leave. tolerance: Inaccurate is raised beyond it
        (default: 1e-6, in float32 1e-2). check_finite: refuse NaN and infinity. verify:
        find wrong replies: "probe" by secret sums of A, "parity" by `margin` more (docs/verify.md).

        Cost: every share is one pass over A; each worker keeps ceil(N / k) rows.
        """
        with held():  # SciPy comes with it, which workers do not need
            from .arrays.placing import placed

        need, n, margin, late, loads = chosen(k, "encode", k, n, margin, late, loads)
        source = resolve_source(A)
        left = k is None and code is None and verify is None and late is DEFAULT_LATE
        code, live = choose_code(source, code, need, n, self._count)
        if tolerance is not None:
            tolerance = checks.number(tolerance, "tolerance", "> 0", infinite=True)
        left = (margin := checks.margin(margin, code.n, code.k)) == 0 and left
        axis = checks.whole(axis, "axis", 0, 1, "0 cuts by rows, 1 by columns.")
        checks.one_of(loads, "loads", ("measured", "equal", "still"))
        check_options(verify, margin, check_finite)
        options = Options(
            tolerance=tolerance,
            check_finite=check_finite,
            margin=margin,
            late=Late.of(late),
            measured_loads=loads == "measured",
            still=loads == "still",
            verify=verify,
        )
        if source is not None:
            make = partial(shares_from, turned(source, axis), check_finite=check_finite)
            rows = placed(self._driver, make, code, options, left)
            return rows if axis == 0 else rows.T
        array: Any = checks.matrix(A, check_finite and axis == 1)
        if axis == 1:
            array = array.T.tocsr() if hasattr(array, "tocsr") else array.T
        make = partial(scaled_shares, array, self._driver.engine, live, check_finite and axis == 0)
        rows = placed(self._driver, make, code, options, left)
        X = rows if axis == 0 else rows.T
        X.columns = checks.feature_names(A)
        return X

    def parts(
        self,
        data: object,
        code: SumCode | Choice | None = None,
        *,
        parts: int | None = None,
        n: int | None = None,
    ) -> Parts:
        """Place parts of the data on the workers, for coded sums: `parts.sum(fn, x)`.

        data: an array, frame or sparse matrix, cut by rows; a tuple of them, cut alongside (a part
        is then a tuple: features and labels, say); or a list of anything picklable, each a part.
        code: kofn.FractionalRepetition(c=2), CyclicRepetition, …, or a kofn.plan (default: two
        copies of everything, a few more with many workers, and whatever the delays of this cluster
        show to be better, docs/plan.md). parts: how many to cut into (default: one a worker, or as
        many as there are rows; up to four where the code is left out too). n: slots, at least
        the live workers (default: those, or as many as are kept). The data are kept here too, for
        those that join.
        """
        live, usual = self._count()
        held, parts, n = chosen(code, "parts", code, parts, usual if n is None else n)
        return Parts(self._driver, data, held, parts, checks.slots(n, live))

    def _count(self, need: object = 1) -> tuple[int, int]:
        """How many workers are live, and how many there should be; `need`: those to wait for."""
        live = len(self._driver.some_workers(need))
        return live, max(live, self.keep or 0)

    def sequence(
        self,
        code: SequenceCode | Choice | None = None,
        slack: float | None = None,
        *,
        tolerance: float | None = None,
        check_finite: bool = True,
    ) -> Stream:
        """Open a stream of products X Y under a code: submit(X, Y) returns a ticket.

        code: kofn.DIP, kofn.IDIP, kofn.Polynomial, kofn.sequence.Uncoded or a kofn.plan, for those
        live now (default: the work of no code, DIP over two rounds where stragglers are learnt to
        come, docs/plan.md). slack: who takes more than (1 + slack) times as long as the fastest is
        a straggler of that round, and not waited for if the code allows it (default: 0.25; learnt
        where code is left out too). tolerance: a job takes more replies rather than have an
        error bound larger than this (default: 1e-6, float32 1e-2). check_finite: refuse NaN.
        """
        self._driver.check()
        order, slack = chosen(code, "sequence", code, slack)
        return Stream(self._driver, order, slack, tolerance, check_finite)

    def checkpoint(self, folder: object, /, every: float | None = None, **state: Any) -> bool:
        """Save the state of a loop of yours in a folder, if it is due; whether it was.

        Call it after each iteration, with all that the loop needs to go on: arrays, numbers, text,
        lists and dicts of them. `kofn.resume(folder)` brings it back after a kill -9. A coded
        matrix is read back, or named by its path if it is from a store; either way `encode` takes
        what comes back. every: seconds from one to the next, 0 for now (default: so rarely that at
        most 1 % of the time goes there). See docs/checkpoint.md.
        """
        self._driver.check()
        asked = Checkpoint(folder)  # its name is absolute: the current folder may change
        return self._saved.setdefault(asked.place.url, asked).loop(every, state)

    def lose(self, worker: int) -> None:
        """End a worker at once, as a spot market does, and wait until that has been noticed."""
        self._driver.check()
        remedy = "It is the id of one worker, from cluster.workers; call lose once for each."
        worker = checks.whole(worker, "worker", 0, remedy=remedy)
        self._driver.call(lambda: self.engine.lose(worker))
        self._driver.await_lost(worker)

    def join(self) -> int:
        """Start one more worker, wait until it is live, and return its id.

        It is given its share at the next product and takes part from then on. Raises
        EngineUnavailable when it cannot be started; the others go on.
        """
        self._driver.check()
        worker: int = self._driver.call(self._driver.order)
        self._await_joined(worker)
        return worker

    def _await_joined(self, worker: int) -> None:
        """Wait for a worker that was ordered; EngineUnavailable where it cannot come."""
        self._driver.await_joined(worker)
        reason = self._driver.roster.unborn.get(worker)
        if reason is not None:
            raise EngineUnavailable(
                f"join starts one more worker; worker {worker} was lost before it came"
                f"{' (' + reason + ')' if reason else ''}, and the others go on. Make room for it "
                f"on this cluster's machines, or go on with those that are live."
            )

    def announce(self, worker: int, seconds: float, reason: str = "") -> None:
        """Say that a worker will be gone in so many seconds, where you know and it does not.

        Until then it is counted on as long as a product ends in time, and its share is stored at
        another worker, if one has none. float('inf') takes an earlier notice back.
        """
        self._driver.check()
        remedy = "It is the id of one worker, from cluster.workers."
        worker = checks.whole(worker, "worker", 0, remedy=remedy)
        ahead = checks.seconds(seconds, "seconds")
        if not isinstance(reason, str):  # who shows it later has no use for anything else
            raise BadInput(
                f"reason must be text; got {reason!r}. Pass str(reason), or leave it out."
            )
        self._driver.call(lambda: self.engine.announce(worker, ahead, reason))

    def wait_for(self, workers: int, timeout: float = 60.0) -> None:
        """Wait until at least so many workers are live; raise TooFewWorkers after `timeout`."""
        self._driver.check()
        need, limit = checks.whole(workers, "workers", 1), checks.seconds(timeout, "timeout")
        self._driver.await_enough(lambda: len(self.workers), need, lambda: limit)

    def page(self, *, port: int = 0, price: float | None = None, title: str = "") -> Page:
        """Show what this cluster does on a page, at `page.address`, for this machine's browsers.

        `port`: of 127.0.0.1 (default: a free one). `price`: of a worker for an hour, in any
        currency; the page then says what was spent and saved. `title`: what runs. The page stays
        when the cluster is closed, until `page.close()`. See docs/page.md.
        """
        with held():
            from .page import Page

        port = checks.whole(port, "port", 0, 65535)
        self._driver.check()
        records = self.log
        then = {r.worker for r in records if r.kind == "lost"} | set(self._driver.roster.kept)
        then -= {r.worker for r in records if r.kind == "joined"}  # who was there from the start
        of = self._driver.log, self.engine.name, then, self.engine
        return Page(*of, port=port, price=price, title=str(title))

    def close(self) -> None:
        """End the workers and free what they held. Idempotent."""
        if not self._driver.closed:
            self._driver.log.append(Record(self.engine.now(), "closed", -1, -1, -1, 0))
        self._driver.close()
        if self._end_log is not None:
            self._end_log()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        self._driver.__reduce__()

    def __deepcopy__(self, memo: object) -> Self:
        return self  # scikit-learn's clone copies parameters; there is only one of these workers

    def __repr__(self) -> str:
        state = "closed" if self._driver.closed else f"{len(self._driver.roster.kept)} workers"
        kept = "" if self.keep is None else f", keep={self.keep}"
        return f"<kofn cluster on engine {self.engine.name!r}, {state}{kept}>"
