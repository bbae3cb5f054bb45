"""The state of a run, from its event log: records in, state out. It reads no clock.

One reader for all who look: the live page, the saved page, the view in the terminal, the metrics.
All lists are bounded, and each has a count of what was ever added to it. A *cursor* is those
counts: with it a reader gets what is new since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import isfinite

from ..checks import number
from ..events import TASK_KINDS
from ..model import Record
from .choice import passed_over
from .counts import BUCKETS, Json, Series, Speed, Totals, Worker, brief
from .figures import figures
from .followed import AMONG_THEMSELVES, ANY, Followed
from .spans import Follower, Span
from .uncoded import COMPARED, Asked, Compared, Pace, pace, uncoded

UNSETTLED = 100  # rounds whose last tasks are waited for, at most


class RunState:
    """Follows a run; `take` records in the order of the log.

    `workers`: those that were there when the log began. `price`: of a worker for an hour. `title`:
    what runs, in the user's words.
    """

    def __init__(
        self,
        engine: str = "",
        workers: Iterable[int] = (),
        price: float | None = None,
        title: str = "",
    ) -> None:
        if price is not None:
            price = number(price, "price", ">= 0", "It is for an hour of one worker.")
        self.engine, self.price, self.title = engine, price, title
        self.zero: float | None = None  # the engine's clock at the first record
        self.now = 0.0
        self.closed = False
        self.stamp = 0  # of the newest change
        self.workers = {w: Worker(w) for w in workers}
        self.live = set(self.workers)
        self.leaving: set[int] = set()
        self.threshold, self.any = 0, False  # whether any so many workers are enough
        self.rule = ""  # when a round is over, in words that follow "over when"
        self.totals = Totals()
        self.compared = Compared()
        self.eta: float | None = None
        self.error_bound: float | None = None
        self.spans, self.rounds = Series(40_000), Series(5_000)
        self.events, self.losses, self.levels = Series(1_000), Series(5_000), Series(5_000)
        self._follower = Follower()
        self._kept: dict[int, Followed] = {}  # rounds that run, or whose last tasks do
        self._changed: dict[int, Followed] = {}
        self.running: Followed | None = None
        self.speed = Speed()
        self._worked, self._since = 0.0, 0.0  # worker-seconds until then
        self._before = len(self.live)  # since then

    # Records in.

    def take(self, records: Sequence[Record], most: int | None = None) -> int:
        """Take records in; return how many of them were looked at one by one.

        `most`: about so many may be; of the others, which are tasks of whole rounds, only the
        figures in their results count. Rounds in which workers come or go are looked at first.
        """
        if not records:
            return 0
        if self.zero is None:
            # By time: a send is stamped later than what came in the same batch. Memory is told of
            # while nothing runs yet.
            times = [r.time for r in islice(records, 10_000) if r.kind != "usage"]
            if times:
                self.zero = self._since = min(times)
                self._level(self.zero)
        passed: set[int] = set()
        if most is not None and len(records) > most:
            marks = [r for r in records if r[1] not in TASK_KINDS]
            began = [r.round for r in marks if r[1] == "round"]
            passed = passed_over(marks, began, len(records) - len(marks), most)
            followed = self._kept.keys() | set(began) - passed
            if followed:
                records = [r for r in records if r[2] in followed or r[1] not in TASK_KINDS]
            else:
                records = marks
        self._each(records, passed)
        return len(records)

    def pass_over(self, marks: Sequence[Record]) -> None:
        """Take in the marks of a stretch of the log (see EventLog), and nothing of its tasks.

        What became of tasks that were open before it is not known any more.
        """
        for round in list(self._kept.values()):
            self._forget(round)
        self._each(marks, {r.round for r in marks if r.kind == "round"})

    @property
    def unsettled(self) -> bool:
        """Whether there are tasks in rounds that are followed which have not ended."""
        return bool(self._kept)

    def _each(self, records: Iterable[Record], passed: set[int]) -> None:
        self.stamp += 1
        for record in records:
            if record.kind == "round" and record.round in passed:
                self.running = self._round(record, [])
            else:
                self._one(record)
        self._settle()

    def _one(self, record: Record) -> None:
        kind, time = record.kind, record.time
        if self.zero is not None:
            self.now = max(self.now, time)
        if kind in TASK_KINDS or kind == "failed":
            self._task(record)
        elif kind == "round":
            self._begin(record)
        elif kind in ("done", "raised"):
            self._over(record)
        elif kind == "result":
            self._add_up(record)
            round = self._kept.get(record.round)
            if round is not None:
                round.result = record
                self._changed[round.id] = round
        elif kind == "loss":
            loss = dict(record.numbers).get("loss", 0.0)
            self.losses.add((self.at(time), record.rows, loss if isfinite(loss) else None))
        elif kind == "closed":
            self.closed = True
        elif kind == "tuned":
            self._emit(record, record.why)
        elif record.worker >= 0 or kind == "refused":
            self._member(record)

    def _round(self, record: Record, there: list[Worker]) -> Followed:
        """The round that begins with a record."""
        round = Followed(record.round, record.time, record.why, there)
        if record.rows and round.what not in AMONG_THEMSELVES:
            now = record.rows, round.what in ANY
            if now != (self.threshold, self.any):
                self.threshold, self.any = now
                self._level(record.time)
            self.rule = round.words.partition("over when ")[2]
        return round

    def _begin(self, record: Record) -> None:
        there = [*map(self._who, self.live)]
        self._kept[record.round] = self.running = self._round(record, there)
        for id in list(self._kept)[: max(0, len(self._kept) - UNSETTLED)]:
            self._forget(self._kept[id])

    def _over(self, record: Record) -> None:
        """A round has ended, followed or not."""
        round = self._kept.get(record.round)
        if round is not None:
            self._follower.take(record)
            self._changed[round.id] = round
            # As known by now: a log that is read in one go has later paces as well.
            idle = [w for w in round.there if w.id not in round.asked_first | round.gone.keys()]
            round.others = {w.id: w.pace for w in idle if w.pace}
            busy = self._follower.busy
            round.behind = {w.id for w in idle if w.pace is None and busy(w.id)}
        elif self.running is not None and self.running.id == record.round:
            round = self.running
        else:
            return  # it began before the log
        round.end, round.done = record.time, record.kind == "done"
        took = record.time - round.start
        totals = self.totals
        totals.rounds += round.done
        totals.raised += not round.done
        totals.seconds += took
        totals.buckets[next((i for i, b in enumerate(BUCKETS) if took <= b), len(BUCKETS))] += 1
        self.speed.took.append(took)
        if self.running is round:
            self.running = None
        if not round.done:
            self._emit(record, f"round {round.id} raised an error")

    def _add_up(self, record: Record) -> None:
        numbers, totals = dict(record.numbers), self.totals
        totals.used += record.rows
        totals.read += numbers.get("read", 0.0)
        totals.wasted += numbers.get("wasted", 0.0)
        totals.topped_up += numbers.get("topped_up", 0.0)
        if isfinite(numbers.get("error_bound", float("inf"))):
            self.eta, self.error_bound = numbers.get("eta"), numbers["error_bound"]

    def _task(self, record: Record) -> None:
        round = self._kept.get(record.round)
        if round is None:
            return
        if record.kind == "send":
            round.asked += 1
            round.open += 1
            if not round.answered:
                round.first[record.task] = record.time
                round.asked_first.add(record.worker)
        else:
            round.answered = True
        for worker, span in self._follower.take(record):
            self._ended(worker, span)

    def _ended(self, worker: int, span: Span) -> None:
        who = self._who(worker)
        who.stamp = self.stamp
        who.tasks += 1
        who.rows += span.came
        who.busy += span.end - span.start
        who.states[span.state] = who.states.get(span.state, 0) + 1
        at = (self.at(span.start), self.at(span.end), self.at(span.used_until))
        self.spans.add((worker, *at, span.round, span.state, span.asked, span.came))
        round = self._kept.get(span.round)
        if round is not None:
            round.open -= 1
            if span.task in round.first:
                round.ended[span.task] = Asked(worker, round.first[span.task], span, who.pace)
                # Not of a top-up: so few rows that its time is mostly what it took to begin.
                known = who.pace is not None
                who.learn(pace(span, who.pace))
                if not known and who.pace is not None:
                    self._caught_up(worker, who.pace)
            self._changed[round.id] = round

    def _caught_up(self, worker: int, pace: Pace) -> None:
        """Take in the pace of a worker that was behind: earlier rounds have waited for that."""
        for round in self._kept.values():
            if worker in round.behind:
                round.behind.discard(worker)
                round.others[worker] = pace
                self._changed[round.id] = round

    def _member(self, record: Record) -> None:
        """Somebody comes, goes, or has stored something."""
        kind, time, id = record.kind, record.time, record.worker
        why = f": {record.why}" if record.why else ""
        if kind == "ordered":  # it may never come
            self._emit(record, f"a new worker, {id}, was ordered{why}")
            return
        if kind == "refused":
            self._emit(record, f"workers are missing{why}")
            return
        who = self._who(id)
        who.stamp = self.stamp
        if kind == "joined":
            who.joined = time
            self.live.add(id)
            self.totals.joined += 1
            self._emit(record, f"worker {id} joined")
            self._level(time)
        elif kind == "lost":
            who.lost, who.leaving, who.why = time, False, record.why
            who.usage.pop("resident", None)
            self.leaving.discard(id)
            # Without coding it would have been at work; one that has never worked stands by.
            rested = id in self.live and who.pace is not None and not self._follower.busy(id)
            for round in self._kept.values():
                if round.end is None:
                    round.answered = True
                    round.lost += 1
                    if rested and id not in round.asked_first:
                        round.gone[id] = time
            for worker, span in self._follower.take(record):
                self._ended(worker, span)
            if id in self.live:
                self.live.discard(id)
                self.totals.lost += 1
                self._emit(record, f"worker {id} was lost{why}")
                self._level(time)
        elif kind in ("leaving", "staying"):
            who.leaving, who.why = kind == "leaving", record.why
            (self.leaving.add if who.leaving else self.leaving.discard)(id)
            words = "will be gone soon" if who.leaving else "stays after all"
            self._emit(record, f"worker {id} {words}{why}")
        elif kind == "stored" and who.stored is None:
            who.stored = time
        elif kind in ("wrong", "aside"):
            words = "sent a wrong reply, which was not used" if kind == "wrong" else "is put aside"
            self._emit(record, f"worker {id} {words}{why}")
        elif kind == "usage":
            who.usage = dict(record.numbers)

    def _who(self, id: int) -> Worker:
        if id not in self.workers:
            self.workers[id] = Worker(id)
        return self.workers[id]

    def _emit(self, record: Record, text: str) -> None:
        round = record.round if record.round >= 0 else self.running.id if self.running else None
        self.events.add((self.at(record.time), record.kind, record.worker, text, round))

    def worked(self) -> float:
        """Seconds that workers were there, added up."""
        return self._worked + len(self.live) * max(0.0, self.now - self._since)

    def _level(self, time: float) -> None:
        """The number of live workers, or the threshold, is another from now on."""
        self._worked += self._before * max(0.0, time - self._since)
        self._since, self._before = max(time, self._since), len(self.live)
        # That nothing ends with no worker at all goes without saying.
        need = self.threshold if self.any or self.threshold > 1 else 0
        self.levels.add((self.at(time), len(self.live), need))

    def at(self, time: float) -> float:
        """Seconds since the first record."""
        return brief(time - (self.zero or 0.0))

    def _settle(self) -> None:
        """Write down the rounds that have changed; forget those of which all is known."""
        for round in self._changed.values():
            if round.end is None:
                continue
            used = round.result.rows if round.result else 0
            if used > 0 and round.first and round.what in COMPARED:
                self._compare(round)
            self.rounds.add(round.row(self.zero or 0.0, self.now))
            over = round.result is not None or self.running is not None
            known = over and round.open <= 0 and not round.behind & self.live
            if known or round.id not in self._kept:
                self._forget(round)
        self._changed = {}
        if self.zero is not None:
            self.speed.counted.append((self.now, self.totals.rounds))

    def _compare(self, round: Followed) -> None:
        """Note what the round would have taken without coding, by what is known now."""
        assert round.end is not None
        assert round.result is not None
        asked = list(round.ended.values())
        if len(asked) < len(round.first):
            for worker, span in self._follower.still_open(self.now):
                if span.task in round.first:
                    sent, usual = round.first[span.task], self._who(worker).pace
                    asked.append(Asked(worker, sent, span, usual))
        used, behind = round.result.rows, len(round.behind)
        gone = [time - round.start for time in round.gone.values()]
        before = round.without
        round.without = uncoded(round.start, asked, round.others, used, behind, gone)
        self.compared.add(round.end - round.start, round.without, before)

    def _forget(self, round: Followed) -> None:
        """Nothing more will be known of a round."""
        if round.without is not None:
            self.compared.at_least |= round.without.at_least
        self._kept.pop(round.id, None)
        if round.open > 0:
            self._follower.forget(round.id)
        self._follower.ended.discard(round.id)

    # State out.

    def head(self) -> Json:
        """The figures of now, as JSON."""
        return figures(self)

    def cursor(self, since: Sequence[int] = (), most: int | None = None) -> tuple[int, ...]:
        """How much there has been of each list; with `most`, how much after that of `since`."""
        lists = self._lists().values()
        counts = [*since] or [0] * len(lists)
        return tuple(s.reached(count, most) for s, count in zip(lists, counts, strict=True))

    def since(self, cursor: Sequence[int] = (), most: int | None = None) -> Json:
        """The entries added to each list since a cursor, the oldest `most` of each; all that is
        kept without one."""
        counts = [*cursor] or [0] * len(self._lists())
        pairs = zip(self._lists().items(), counts, strict=True)
        return {name: series.since(count, most) for (name, series), count in pairs}

    def everyone(self, since: int = -1) -> list[Json]:
        """The facts of workers that have changed after a stamp, by id."""
        zero = self.zero or 0.0
        return [
            self.workers[w].row(zero) for w in sorted(self.workers) if self.workers[w].stamp > since
        ]

    def whole(self) -> Json:
        """All that is kept, as JSON: what a saved page has in it."""
        return {"head": self.head(), "workers": self.everyone(), **self.since()}

    def _lists(self) -> Mapping[str, Series]:
        return {
            "events": self.events,
            "rounds": self.rounds,
            "spans": self.spans,
            "losses": self.losses,
            "levels": self.levels,
        }
