"""Workers that announce their leaving."""

from math import inf

from kofn.engines.protocol import MasterProtocol, Values, WorkerDown, WorkerLeaving, WorkerUp
from kofn.model import Joined, Leaving, Lost
from kofn.rounds.roster import Roster


def test_a_notice_becomes_an_event_on_the_masters_clock() -> None:
    master = MasterProtocol(Values())
    assert master.received(3, WorkerLeaving(30.0, "early"), 1.0) == []  # nobody knows it
    master.received(3, WorkerUp(), 2.0)
    assert master.received(3, WorkerLeaving(30.0, "spot"), 5.0) == [Leaving(5.0, 3, 35.0, "spot")]
    assert master.received(3, WorkerLeaving(inf), 6.0) == [Leaving(6.0, 3, inf)]


def test_the_roster_knows_who_leaves_and_when() -> None:
    roster = Roster([0, 1])
    roster.note(Leaving(1.0, 0, 31.0))
    roster.note(Leaving(1.0, 1, 31.0))
    roster.note(Leaving(1.0, 7, 31.0))  # not live
    assert roster.leaving == {0: 31.0, 1: 31.0}
    roster.note(Leaving(2.0, 0, inf))  # it stays after all
    roster.note(Lost(3.0, 1))
    roster.note(Joined(4.0, 2))
    assert roster.leaving == {}


def test_the_lost_are_told_once() -> None:
    master = MasterProtocol(Values())
    master.received(3, WorkerUp(), 2.0)
    master.received(3, WorkerDown("gone"), 3.0)
    assert master.received(3, WorkerLeaving(30.0), 4.0) == []
