"""A round that is followed task by task, and what is shown of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..model import Record
from .counts import Worker, brief
from .uncoded import Asked, Pace, Uncoded

ANY = ("X @ w", "X.T @ z", "X.iterate")  # any of as many workers as the threshold are enough
AMONG_THEMSELVES = ("copy of a share", "question to all")  # no rounds of the user's


@dataclass(slots=True)
class Followed:
    """The facts of a round; times are the engine's clock."""

    id: int
    start: float
    words: str
    there: list[Worker]  # live workers
    first: dict[int, float] = field(default_factory=dict)  # tasks sent before any answer
    asked_first: set[int] = field(default_factory=set)  # their workers
    answered: bool = False
    ended: dict[int, Asked] = field(default_factory=dict)  # of the first tasks
    others: dict[int, Pace] = field(default_factory=dict)  # of live workers that were not asked
    behind: set[int] = field(default_factory=set)  # those of them whose pace is not known
    gone: dict[int, float] = field(default_factory=dict)  # those that were lost meanwhile, and when
    open: int = 0  # tasks
    asked: int = 0
    lost: int = 0  # workers
    end: float | None = None
    done: bool = False
    result: Record | None = None
    without: Uncoded | None = None

    @property
    def what(self) -> str:
        """The operation; see `Round.what`."""
        return self.words.split(":")[0]

    def row(self, zero: float, now: float) -> list[Any]:
        """It as a row of the page's; times since `zero`."""
        numbers = dict(self.result.numbers) if self.result else {}
        return [
            self.id,
            brief(self.start - zero),
            brief((now if self.end is None else self.end) - zero),
            int(self.done),
            self.asked,
            self.lost,
            self.result.rows if self.result else 0,
            numbers.get("wasted", 0),
            numbers.get("topped_up", 0),
            brief(self.without.seconds) if self.without else None,
            self.words,
        ]
