"""What a worker does in an iteration over messages: its rows, the exchange, the decode, f, and on.

Every worker decodes the whole vector for itself, block by block as the pieces of each come in. See
`rounds.mesh` for how all of them agree.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..exchange import GATHER, REST, WORK
from ..model import Piece, RowRange
from ..peers import Address, FindKeys, Node, machine_name
from ..rounds import epochs
from ..rounds.lateness import Late
from ..rounds.mesh import LATE, MeshPlan
from . import work
from .decode import Segment
from .scales import Scales
from .worker_body import Loop, decoding, minus, scales_key

PIECE, OVER = "piece", "over"  # frames: rows of a round; the leader says that the run ends there
FIRST_NAP, LONG_NAP = 1e-3, 1e-2  # seconds between two looks whether the task is cancelled
SOURCE = 0.25  # seconds without a byte of the vector: another is asked


class Member:
    """What a worker keeps of a run: its node, and its newest vector."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.t, self.w = -1, np.empty(0)  # w is the vector that goes into round t
        self.rows, self.done = np.empty(0), list[RowRange]()  # of X w: those rows are there
        self.over = -1  # the round at which the run ends, once that is known
        self.read = 0  # rows
        self.pieces: dict[tuple[int, int], dict[int, Any]] = {}  # by epoch and round, by share
        self.ends: dict[int, int] = {}  # by epoch
        weakref.finalize(self, node.close)

    def have(self, t: int, w: NDArray[Any], rows: int) -> None:
        """Have the vector of round t, and let others fetch it."""
        self.node.withdraw(name_of(self.t))
        self.t, self.w, self.done = t, w, []
        self.rows = np.empty(rows, w.dtype)
        self.node.offer(name_of(t), w.copy())  # f may change the one that it is given

    def sort(self, epoch: int) -> None:
        """Take in the frames that have arrived; those of earlier epochs mean nothing."""
        for header, payload in self.node.take():
            of = int(header["e"])
            if of < epoch:
                continue
            if header["k"] == PIECE:
                pieces = self.pieces.setdefault((of, int(header["t"])), {})
                pieces[int(header["s"])] = payload
            elif header["k"] == OVER:
                self.ends[of] = int(header["t"])

    def forget(self, epoch: int, t: int) -> None:
        """Drop what is of earlier epochs, or of earlier rounds of this one."""
        self.pieces = {at: kept for at, kept in self.pieces.items() if at >= (epoch, t)}
        self.ends = {of: round for of, round in self.ends.items() if of >= epoch}


def name_of(round: int) -> str:
    """Of the vector of a round, among the blobs of a node."""
    return f"w{round}"


def where(kept: Mapping[str, Any], operand: None) -> tuple[Piece, ...]:
    """Body: on which host a worker is."""
    return (Piece(None, machine_name()),)


def join(token: bytes, everywhere: bool, find: FindKeys | None) -> Member:
    """For a Build: open a node."""
    return Member(Node(token, everywhere, keys=None if find is None else find()))


def status(kept: Mapping[str, Any], operand: None, key: str) -> tuple[Piece, ...]:
    """Body: how far a worker is, and where it can be reached."""
    member: Member = kept[key]
    state = member.t, member.over, member.read, tuple(member.node.address), member.node.machine
    return (Piece(None, state),)


def deliver(kept: Mapping[str, Any], operand: None, key: str) -> tuple[Piece, ...]:
    """Body: the newest vector that a worker has."""
    member: Member = kept[key]
    return (Piece(None, (member.t, member.w)),)


def mesh_body(
    kept: Mapping[str, Any],
    plan: MeshPlan,
    key: str,
    share_key: str,
    share: int,
    shape: tuple[int, int, str],
    loop: Loop,
    late: Late | None,
    w0: NDArray[Any] | None,
) -> Iterator[Piece]:
    """The body of a worker's task in one epoch. `shape`: rows of a share, length and dtype of w."""
    worker = _Worker(kept[key], kept[share_key], kept.get(scales_key(key)), share, plan, loop)
    return worker.go(shape, late, w0)


class _Worker:
    def __init__(
        self,
        member: Member,
        matrix: Any,
        scales: Scales | None,
        share: int,
        plan: MeshPlan,
        loop: Loop,
    ) -> None:
        self.m, self.node, self.share, self.plan, self.loop = member, member.node, share, plan, loop
        self.matrix, self.scales = matrix, scales
        self.leader = share == plan.leader
        self.others = {s: Address(*to) for s, to in plan.addresses.items() if s != share}
        self.change = float("inf")
        self.emitted = self.node.now()
        self.tries = 0
        self._cut: dict[RowRange, Any] = {}  # cutting rows of a sparse share is a copy

    def go(
        self, shape: tuple[int, int, str], late: Late | None, w0: NDArray[Any] | None
    ) -> Iterator[Piece]:
        """Take part until the run ends."""
        rows, length, dtype = shape
        m, node, plan, loop = self.m, self.node, self.plan, self.loop
        m.forget(plan.epoch, plan.round)
        node.keep_only([to.id for to in self.others.values()])
        matrix = work.matrix_of(self.matrix, length)
        step = work.slice_rows(matrix, 1)
        if w0 is not None:
            m.have(plan.round, np.array(w0), rows)
        elif m.t != plan.round:
            yield from self._fetch(rows, length, np.dtype(dtype))
        decoder = _Decoder(decoding(loop.code, {s: (0, r) for s, r in plan.windows.items()}, rows))
        wait = _Wait(late)
        mine = plan.windows.get(self.share, ())  # with few rows some have none
        while True:
            t = m.t
            if t >= loop.rounds or (self.leader and self.change <= loop.tol):
                m.over = t
                if self.leader:
                    self._send({"k": OVER, "e": plan.epoch, "t": t})
                yield self._emit(epochs.END, t, self.change)
                return
            wait.begin(node.now())
            for a, b in work.slices(minus(mine, m.done), step):
                m.rows[a:b] = work.times(self._rows(matrix, a, b), m.w)
                m.done.append((a, b))
                m.read += b - a
                yield Piece((WORK, t, b - a), None, b - a)
                if node.now() >= self.emitted + loop.work_beat:
                    yield self._emit(epochs.BEAT, t, b)  # who waits has no more to say than t
            if mine:
                piece = np.concatenate([m.rows[a:b] for a, b in mine])
                yield Piece((GATHER, len(plan.windows), piece.nbytes), None)
                self._send({"k": PIECE, "e": plan.epoch, "t": t, "s": self.share}, piece)
                m.pieces.setdefault((plan.epoch, t), {})[self.share] = piece
            decoder.begin(loop.code.n, rows, m.w.dtype)
            while True:
                m.sort(plan.epoch)
                if m.ends.get(plan.epoch) == t:
                    m.over = t
                    yield self._emit(epochs.END, t, self.change)
                    return
                missing = decoder.offer(m.pieces.get((plan.epoch, t), {}), plan.windows)
                if not missing:
                    break
                if wait.too_long(node.now(), len(missing), len(plan.windows), loop.code.k):
                    yield self._emit(LATE, t, tuple(missing))
                yield from self._rest(wait.due)
            wait.end(node.now())
            yield from self._advance(decoder.y.reshape(-1)[:length], rows)
            if m.t == t:
                return

    def _advance(self, y: NDArray[Any], rows: int) -> Iterator[Piece]:
        m, loop, t = self.m, self.loop, self.m.t
        with np.errstate(over="ignore", invalid="ignore"):
            y = y if self.scales is None else self.scales.times(y)
        new = loop.step(y, m.w)
        if loop.check_finite and not np.isfinite(new.sum()) and not np.isfinite(new).all():
            entry = int(np.flatnonzero(~np.isfinite(new))[0])
            yield self._emit(epochs.BROKEN, t + 1, entry, float(new[entry]))
            return
        with np.errstate(over="ignore"):
            self.change = float(np.linalg.norm(new - m.w))
        m.have(t + 1, new, rows)
        m.forget(self.plan.epoch, t + 1)
        self.tries = 0
        late = self.node.now() >= self.emitted + loop.work_beat
        if self.leader and (late or m.t % loop.report_every == 0):
            yield self._emit(epochs.ROUND, m.t, self.change)

    def _fetch(self, rows: int, length: int, dtype: np.dtype[Any]) -> Iterator[Piece]:
        """Take the vector from another; from the next one where nothing comes."""
        m, node, round = self.m, self.node, self.plan.round
        sources = [s for s in self.plan.sources(self.share) if s in self.others]
        turn, had, since = -1, -1, -SOURCE
        while True:
            have, data = node.fetched(name_of(round))
            if data is not None:
                break
            if have != had:
                had, since = have, node.now()
            if turn < 0 or node.now() >= since + SOURCE:
                turn, since = turn + 1, node.now()
                source = self.others[sources[turn % len(sources)]]
                node.fetch(name_of(round), length * dtype.itemsize, source)
            yield from self._rest(since + SOURCE)
        m.have(round, np.frombuffer(data, dtype).copy(), rows)
        self.tries = 0

    def _rows(self, matrix: Any, a: int, b: int) -> Any:
        if isinstance(matrix, np.ndarray):
            return matrix[a:b]
        if (a, b) not in self._cut:
            self._cut[a, b] = matrix[a:b]
        return self._cut[a, b]

    def _send(self, header: dict[str, Any], payload: Any = None) -> None:
        """Send to all others; each begins with the one after itself, so that all links are used."""
        order = sorted(self.others, key=lambda s: (s <= self.share, s))
        for share in order:
            self.node.send(self.others[share], header, payload)

    def _emit(self, *words: Any) -> Piece:
        self.emitted = self.node.now()
        return Piece(words[0], words)

    def _rest(self, until: float) -> Iterator[Piece]:
        self.node.wait(min(LONG_NAP, FIRST_NAP * (1 + self.tries // 8)))
        self.tries += 1
        due = self.emitted + self.loop.wait_beat
        if self.node.now() >= due:
            yield self._emit(epochs.BEAT, self.m.t)
            due = self.emitted + self.loop.wait_beat
        yield Piece((REST, min(due, until)), None)


class _Decoder:
    """The k blocks of a round, each run of rows decoded as soon as its pieces are there."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments

    def begin(self, shares: int, rows: int, dtype: np.dtype[Any]) -> None:
        """A new round."""
        k = self._segments[0].weights.matrix.shape[0]
        self.y = np.empty((k, rows), dtype)
        self._pieces = np.empty((shares, rows), dtype)
        self._seen: set[int] = set()
        self._left = list(self._segments)

    def offer(
        self, pieces: Mapping[int, Any], windows: Mapping[int, tuple[RowRange, ...]]
    ) -> list[int]:
        """Take pieces by share; returns the shares whose pieces are missing."""
        fresh = [s for s in pieces if s in windows and s not in self._seen]
        for share in fresh:
            value, at = np.frombuffer(pieces[share], self.y.dtype), 0
            for a, b in windows[share]:
                self._pieces[share, a:b] = value[at : at + b - a]
                at += b - a
            self._seen.add(share)
        if fresh:
            left = []
            for segment in self._left:
                first, last, places, weights = segment
                if self._seen.issuperset(places.tolist()):
                    with np.errstate(over="ignore", invalid="ignore"):
                        some = self._pieces[places, first:last]
                        self.y[:, first:last] = weights.matrix.dot(some)
                else:
                    left.append(segment)
            self._left = left
        return [share for share in windows if share not in self._seen]


class _Wait:
    """When those that a round waits for are late: judged by a usual round of this worker's."""

    def __init__(self, rule: Late | None) -> None:
        self._rule, self._usual, self._since = rule, 0.0, 0.0
        self.due = self._paused = float("inf")  # when it will be too long; when enough were there
        self._few = False  # of the threshold, but not half

    def begin(self, now: float) -> None:
        self._since, self._paused, self.due = now, float("inf"), float("inf")

    def end(self, now: float) -> None:
        took = now - self._since
        self._usual = 0.5 * (took + self._usual) if self._usual else took

    def too_long(self, now: float, missing: int, shares: int, threshold: int) -> bool:
        """Enough are there: from then on the rest is waited for. True each time it was too long."""
        few = 2 * missing > shares
        if self._rule is None or (few and shares - missing < threshold):
            return False
        if self._paused == float("inf") or few != self._few:
            self._paused, self._few = now, few
            allowed = self._rule.allowed_few if few else self._rule.allowed
            self.due = now + allowed(self._usual or now - self._since)
        if now < self.due:
            return False
        self.due = now + 1.5 * (self.due - self._paused)
        self._paused = now
        return True
