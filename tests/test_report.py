"""Lanes and the timeline, from logs written by hand and by the virtual engine."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support import driver_of

import kofn
from kofn.delays import Change, Delays, Exponential, Membership, PerUnit, Script, Spot
from kofn.engines.virtual import VirtualEngine
from kofn.errors import BadInput, CannotDo
from kofn.model import Record
from kofn.report import Lane, Lanes, RoundSpan, Span, lanes, timeline

pytest.importorskip("matplotlib")

SLOW = PerUnit(1e-3, slow={5: 6.0})
CHANGES = Script((Change(0.02, 2), Change(0.3, None), Change(0.61, 0), Change(0.9, None)))


def note(
    time: float, kind: str, round: int = -1, worker: int = -1, task: int = -1, rows: int = 0
) -> Record:
    return Record(time, kind, round, worker, task, rows)


def run(
    delays: Delays,
    membership: Membership | None,
    rounds: int = 6,
    slice: int | None = None,
    compute: bool = True,
) -> list[Record]:
    """The log of some products of 600 rows on six workers, any three of which are enough."""
    A = np.random.default_rng(0).standard_normal((600, 4))
    engine = VirtualEngine(6, delays=delays, membership=membership, compute=compute, seed=1)
    with (
        pytest.MonkeyPatch.context() as patch,
        kofn.connect(engine, wait=60) as cluster,
    ):
        if slice is not None:
            patch.setattr("kofn.arrays.work.SLICE_WORK", slice)
        X = cluster.encode(A, k=3, n=12)
        for _ in range(rounds):
            X @ np.ones(4)
        driver_of(cluster).settle(0.1)  # for the last words of the last round
        return cluster.log


LOGS = {
    "calm": lambda: run(PerUnit(1e-3), None),
    "slow": lambda: run(SLOW, None),
    "changes": lambda: run(SLOW, CHANGES),
    "streamed": lambda: run(SLOW, CHANGES, slice=20),  # two slices of five rows in a message
    "spot": lambda: run(Exponential(1e-4, 0.05), Spot(0.4, 0.3), rounds=30, compute=False),
}


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest) -> list[Record]:
    return LOGS[request.param]()


# Two workers, one round: task 0 on worker 0 and task 1 on worker 1, five rows each.
BEGIN = [
    note(1.0, "stored", worker=0),
    note(1.0, "stored", worker=1),
    note(2.0, "round", 0),
    note(2.0, "send", 0, 0, 0, 5),
    note(2.0, "send", 0, 1, 1, 5),
    note(3.0, "reply", 0, 0, 0, 5),
]


def fate(*rest: Record) -> Span:
    """What became of task 1."""
    spans = lanes([*BEGIN, *rest]).lanes[1].spans
    return next(span for span in spans if span.task == 1)


class TestByHand:
    def test_a_round_in_which_all_goes_well(self) -> None:
        log = [*BEGIN, note(4.0, "reply", 0, 1, 1, 5), note(4.5, "done", 0)]
        assert lanes(log) == Lanes(
            (
                Lane(0, (Span(2.0, 3.0, 0, 0, "used", 3.0),)),
                Lane(1, (Span(2.0, 4.0, 0, 1, "used", 4.0),)),
            ),
            (RoundSpan(0, 2.0, 4.5, done=True),),
            start=2.0,
            end=4.5,
        )

    def test_a_reply_after_the_round_is_late(self) -> None:
        span = fate(note(4.0, "done", 0), note(5.0, "reply", 0, 1, 1, 5))
        assert span == Span(2.0, 5.0, 0, 1, "late", 2.0)

    def test_order_in_the_log_decides_and_not_the_stamp(self) -> None:
        """A reply stamped on receipt but read after the round was done has not been used."""
        assert fate(note(4.0, "done", 0), note(3.9, "reply", 0, 1, 1, 5)).state == "late"
        assert fate(note(4.0, "reply", 0, 1, 1, 5), note(4.0, "done", 0)).state == "used"

    def test_a_dropped_task_is_wasted(self) -> None:
        span = fate(note(4.0, "done", 0), note(4.1, "dropped", 0, 1, 1))
        assert span == Span(2.0, 4.1, 0, 1, "wasted", 2.0)

    def test_slices_in_time_stay_good_when_the_rest_is_dropped(self) -> None:
        span = fate(
            note(2.5, "piece", 0, 1, 1, 1),
            note(3.5, "piece", 0, 1, 1, 2),
            note(4.0, "done", 0),
            note(4.1, "dropped", 0, 1, 1),
        )
        assert span == Span(2.0, 4.1, 0, 1, "wasted", 3.5)

    def test_slices_in_time_stay_good_when_the_rest_is_late(self) -> None:
        span = fate(
            note(3.5, "piece", 0, 1, 1, 2),
            note(4.0, "done", 0),
            note(4.5, "piece", 0, 1, 1, 3),
            note(4.6, "reply", 0, 1, 1),
        )
        assert span == Span(2.0, 4.6, 0, 1, "late", 3.5)

    def test_slices_in_time_stay_good_when_the_worker_is_lost(self) -> None:
        span = fate(note(3.5, "piece", 0, 1, 1, 2), note(3.7, "lost", worker=1))
        assert span == Span(2.0, 3.7, 0, 1, "lost", 3.5)

    @pytest.mark.parametrize("kind", ["reply", "dropped"])
    def test_a_closing_word_after_the_round_changes_nothing(self, kind: str) -> None:
        span = fate(
            note(3.0, "piece", 0, 1, 1, 2),
            note(3.5, "piece", 0, 1, 1, 3),
            note(3.5, "done", 0),
            note(3.6, kind, 0, 1, 1),
        )
        assert span == Span(2.0, 3.5, 0, 1, "used", 3.5)

    def test_a_finished_task_is_not_lost_with_its_worker(self) -> None:
        span = fate(note(3.5, "reply", 0, 1, 1, 5), note(9.0, "lost", worker=1))
        assert span == Span(2.0, 3.5, 0, 1, "used", 3.5)

    def test_the_reply_ends_a_task_whatever_the_rows_say(self) -> None:
        assert fate(note(3.5, "reply", 0, 1, 1, 4), note(9.0, "lost", worker=1)).state == "used"
        assert fate(note(3.5, "reply", 0, 1, 1, 0)).state == "used"
        span = fate(note(3.5, "piece", 0, 1, 1, 5), note(4.0, "joined", worker=2))
        assert span == Span(2.0, 4.0, 0, 1, "open", 3.5)
        span = fate(note(3.5, "piece", 0, 1, 1, 5), note(9.0, "lost", worker=1))
        assert span == Span(2.0, 9.0, 0, 1, "lost", 3.5)

    def test_a_worker_does_one_task_after_the_other(self) -> None:
        log = [
            *BEGIN,
            note(2.5, "send", 0, 1, 2, 5),
            note(3.0, "piece", 0, 1, 1, 4),
            note(3.5, "reply", 0, 1, 1, 1),
            note(4.0, "reply", 0, 1, 2, 5),
        ]
        assert lanes(log).lanes[1].spans == (
            Span(2.0, 3.5, 0, 1, "used", 3.5),
            Span(3.5, 4.0, 0, 2, "used", 4.0),  # it waited for the one before
        )

    def test_a_loss_takes_the_waiting_tasks_too(self) -> None:
        # The second is stamped after the loss: both stood in one batch of events.
        log = [*BEGIN, note(3.4, "send", 0, 1, 2, 5), note(3.3, "lost", worker=1)]
        assert lanes(log).lanes[1] == Lane(
            1,
            (Span(2.0, 3.3, 0, 1, "lost", 2.0), Span(3.3, 3.3, 0, 2, "lost", 3.3)),
            lost=3.3,
        )

    def test_a_task_that_raised_and_the_round_it_ended(self) -> None:
        log = [
            *BEGIN,
            note(3.5, "failed", 0, 1, 1),
            note(3.6, "raised", 0),
            note(6.0, "round", 1),
            note(7.0, "done", 1),
        ]
        seen = lanes(log)
        assert seen.lanes[1].spans == (Span(2.0, 3.5, 0, 1, "failed", 2.0),)
        assert seen.rounds == (
            RoundSpan(0, 2.0, 3.6, done=False),
            RoundSpan(1, 6.0, 7.0, done=True),
        )

    def test_a_reply_after_the_round_raised_is_late(self) -> None:
        span = fate(note(4.0, "raised", 0), note(5.0, "reply", 0, 1, 1, 5))
        assert span == Span(2.0, 5.0, 0, 1, "late", 2.0)

    def test_what_is_unfinished_where_the_log_ends(self) -> None:
        assert fate(note(4.0, "joined", worker=2)) == Span(2.0, 4.0, 0, 1, "open", 2.0)
        assert fate(note(4.0, "done", 0)) == Span(2.0, 4.0, 0, 1, "open", 2.0)
        assert lanes(BEGIN).rounds == (RoundSpan(0, 2.0, 3.0, done=False),)

    def test_joined_and_lost(self) -> None:
        lane = lanes([*BEGIN, note(4.0, "joined", worker=2), note(5.0, "lost", worker=2)]).lanes[2]
        assert lane == Lane(2, (), joined=4.0, lost=5.0)

    def test_replies_whose_send_fell_off_the_log_are_left_out(self) -> None:
        seen = lanes([BEGIN[-1], note(4.0, "done", 0)])
        assert seen.lanes == (Lane(0, ()),)
        assert seen.rounds == (RoundSpan(0, 4.0, 4.0, done=True),)

    def test_an_empty_log_is_refused(self) -> None:
        with pytest.raises(BadInput, match="empty"):
            lanes([])


class TestOnVirtualRuns:
    def test_every_send_ends_in_exactly_one_span(self, log: list[Record]) -> None:
        sent = Counter((r.worker, r.round, r.task) for r in log if r.kind == "send")
        drawn = Counter((w.worker, s.round, s.task) for w in lanes(log).lanes for s in w.spans)
        assert sent == drawn
        assert set(sent.values()) == {1}

    def test_spans_of_a_worker_do_not_overlap(self, log: list[Record]) -> None:
        for lane in lanes(log).lanes:
            free = float("-inf")
            for span in lane.spans:
                assert free <= span.start <= span.used_until <= span.end
                free = span.end

    def test_a_lane_lies_within_its_workers_life(self, log: list[Record]) -> None:
        seen = lanes(log)
        lost = {r.worker: r.time for r in log if r.kind == "lost"}
        joined = {r.worker: r.time for r in log if r.kind == "joined"}
        for lane in seen.lanes:
            assert lane.lost == lost.get(lane.worker)
            assert lane.joined == joined.get(lane.worker)
            for span in lane.spans:
                assert span.end <= lost.get(lane.worker, seen.end)
                assert span.start >= joined.get(lane.worker, seen.start)

    def test_rounds_follow_each_other(self, log: list[Record]) -> None:
        rounds = lanes(log).rounds
        assert [r.id for r in rounds] == list(range(1, len(rounds) + 1))
        assert all(r.done and r.start <= r.end for r in rounds)
        assert all(a.end <= b.start for a, b in pairwise(rounds))

    def test_nothing_ends_that_the_log_does_not_end(self, log: list[Record]) -> None:
        ended = {r.task for r in log if r.kind in ("reply", "dropped", "failed")}
        for lane in lanes(log).lanes:
            for span in lane.spans:
                assert (span.task in ended) == (span.state not in ("lost", "open"))
                assert (span.state == "lost") <= (span.end == lane.lost)

    def test_a_round_that_raised(self) -> None:
        """Below the threshold: it ends where the log says so, and the next one is unharmed."""
        engine = VirtualEngine(3, delays=PerUnit(1e-3), membership=Script((Change(0.02, 0),)))
        with kofn.connect(engine) as cluster:
            X = cluster.encode(np.ones((90, 4)), k=3)
            with pytest.raises(kofn.TooFewWorkers):
                X @ np.ones(4)
            cluster.join()
            X @ np.ones(4)
            log = cluster.log
        first, second = lanes(log).rounds
        assert (first.done, second.done) == (False, True)
        assert [r.time for r in log if r.kind == "raised"] == [first.end]

    def test_with_equal_workers_all_is_used(self) -> None:
        states = Counter(s.state for lane in lanes(LOGS["calm"]()).lanes for s in lane.spans)
        assert states == {"used": 36}

    def test_a_slow_worker_is_stopped_and_a_lost_one_cut_off(self) -> None:
        seen = {lane.worker: lane for lane in lanes(LOGS["changes"]()).lanes}
        assert {s.state for s in seen[5].spans} == {"wasted"}
        assert seen[2].spans[-1].state == "lost"
        assert seen[2].spans[-1].end == seen[2].lost == 0.02
        assert seen[6].joined == 0.3
        assert "used" in {s.state for s in seen[6].spans}

    def test_streamed_slices_are_kept(self) -> None:
        seen = {lane.worker: lane for lane in lanes(LOGS["streamed"]()).lanes}
        cut = seen[2].spans[-1]
        assert cut.state == "lost"
        assert cut.start < cut.used_until <= cut.end


class TestTimeline:
    def test_one_lane_a_worker(self, log: list[Record]) -> None:
        (axes,) = timeline(log).axes
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert names == [f"worker {lane.worker}" for lane in lanes(log).lanes]

    def test_the_legend_names_what_is_there(self) -> None:
        (legend,) = timeline(LOGS["changes"]()).legends
        assert [text.get_text() for text in legend.get_texts()] == [
            "idle",
            "used",
            "late, stopped",
            "lost with its worker",
            "worker joined",
            "worker lost",
        ]
        (legend,) = timeline(LOGS["calm"]()).legends
        assert [text.get_text() for text in legend.get_texts()] == ["idle", "used"]

    @pytest.mark.slow
    def test_png(self, log: list[Record], tmp_path: Path) -> None:
        path = tmp_path / "rounds.png"
        figure = timeline(log, path, title="six workers")
        assert path.read_bytes().startswith(b"\x89PNG")
        from matplotlib.image import imread

        image = imread(path)
        width, height = figure.get_size_inches() * figure.dpi
        assert image.shape[:2] == (int(height), int(width))
        blue = np.array([0x00, 0x72, 0xB2]) / 255
        assert np.isclose(image[..., :3], blue, atol=1e-2).all(axis=-1).mean() > 0.01

    @pytest.mark.parametrize("suffix", ["svg", "pdf"])
    def test_other_formats(self, suffix: str, tmp_path: Path) -> None:
        path = tmp_path / f"rounds.{suffix}"
        timeline(LOGS["changes"](), path)
        assert path.stat().st_size > 5000

    def test_nothing_is_drawn_outside_the_sheet_or_over_a_neighbour(
        self, log: list[Record]
    ) -> None:
        from matplotlib.text import Text

        figure = timeline(log, title="a title")
        figure.draw_without_rendering()
        (axes,) = figure.axes
        sheet = figure.bbox
        texts = [child for child in axes.get_children() if isinstance(child, Text)]
        boxes = [text.get_window_extent() for text in texts if text.get_text()]
        assert len(boxes) >= 3  # the title, "round" and a number at least
        boxes += [label.get_window_extent() for label in axes.get_yticklabels()]
        boxes += [axes.xaxis.label.get_window_extent(), figure.legends[0].get_window_extent()]
        for i, box in enumerate(boxes):
            assert sheet.x0 <= box.x0 <= box.x1 <= sheet.x1
            assert sheet.y0 <= box.y0 <= box.y1 <= sheet.y1
            assert not any(box.overlaps(other) for other in boxes[:i])

    def test_round_lines_only_while_they_can_be_told_apart(self) -> None:
        few, many = (timeline(run(PerUnit(1e-3), None, rounds=n)).axes[0] for n in (60, 61))
        assert len(few.lines) == 60
        assert len(many.lines) == len(many.texts) == 0

    def test_a_piece_of_the_log(self) -> None:
        log = LOGS["changes"]()
        (axes,) = timeline(log, start=0.1, end=0.25).axes
        assert axes.get_xlim() == pytest.approx((100, 250), rel=1e-12)
        assert axes.get_xlabel() == "milliseconds"
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert names == ["worker 0", "worker 1", "worker 3", "worker 4", "worker 5"]

    @pytest.mark.parametrize(("start", "end"), [(1.0, 0.5), (0.2, 0.2), (1e9, None)])
    def test_an_empty_piece_is_refused(self, start: float, end: float | None) -> None:
        with pytest.raises(BadInput, match="start must be before end"):
            timeline(LOGS["calm"](), start=start, end=end)

    def test_a_log_without_rounds_or_time(self) -> None:
        (axes,) = timeline([note(3.0, "stored", worker=0)]).axes
        assert len(axes.get_yticklabels()) == 1

    def test_a_wrong_path_is_refused_before_any_work(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match=r"\.png"):
            timeline(BEGIN, tmp_path / "rounds.doc")
        with pytest.raises(BadInput, match="directory"):
            timeline(BEGIN, tmp_path / "nowhere" / "rounds.png")

    def test_pyplot_is_left_alone(self) -> None:
        before = "matplotlib.pyplot" in sys.modules
        timeline(BEGIN)
        assert ("matplotlib.pyplot" in sys.modules) == before

    def test_without_matplotlib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(CannotDo, match=r"pip install 'kofn\[plot\]'"):
            timeline(BEGIN)
