"""A round that fetches something from one worker, who may be gone before it has sent it all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model import Command, Dropped, Event, Failed, Leaving, Lost, Reply, Send, Task, Tick
from .base import Round

SILENCE = 1.0  # seconds of silence, after which others are asked instead: a product waits


class CopyRound(Round):
    """One task for one worker. It ends with the task, or without it when that would not come."""

    what = "copy of a share"

    def __init__(self, task: Task) -> None:
        super().__init__(task.round, threshold=1)
        self.whole = False  # whether all has come
        self.values: list[tuple[Any, Any]] = []  # what, value
        self._task = task

    def start(self, time: float) -> list[Command]:
        self.wake = time + SILENCE
        return [Send(self._task)]

    def on(self, event: Event) -> Sequence[Command]:
        worker, task = self._task.worker, self._task.id
        if type(event) is Reply and event.task == task:
            self.wake = event.time + SILENCE
            self.read[worker] = self.read.get(worker, 0) + event.read
            if event.what is not None:
                self.values.append((event.what, event.value))
            self.done = self.whole = self.done or event.last
        elif type(event) is Tick:
            self.done = True
        elif type(event) is Lost:
            self.done = self.done or event.worker == worker
        elif type(event) is Leaving:
            self.done = self.done or (event.worker == worker and event.deadline <= event.time)
        elif type(event) is Failed or type(event) is Dropped:
            self.done = self.done or event.task == task
        return ()

    @property
    def live(self) -> int:
        return 1

    @property
    def owing(self) -> tuple[int, ...]:
        return () if self.done else (self._task.worker,)
