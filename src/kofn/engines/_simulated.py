"""A simulated worker, and what its tasks say."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..model import Last, Outline, Piece, Task

# Of a task: what there is now, the seconds it took, and when it goes on; None when it has ended.
Steps = Iterator[tuple[Piece | Exception, float, float | None]]
NOTHING = Piece(None, None)


@dataclass(slots=True)
class SimulatedWorker:
    """A worker of the virtual engine: what it keeps, and its tasks."""

    id: int
    kept: dict[str, Any] = field(default_factory=dict)
    # Each with what was kept then, and when it is there.
    queue: deque[tuple[Task, dict[str, Any], float]] = field(default_factory=deque)
    steps: Steps | None = None  # of the first of them; None: it has just one piece
    piece: Piece | Exception = NOTHING  # that one
    seconds: float = 0.0  # that it takes
    reads: tuple[float, float] = (0.0, 0.0)  # from when to when it reads the rows of that one
    pace: tuple[float | None, float | None] = (None, None)  # of the first task: see Dropped
    rows: int = 0  # that it has read since its last reply
    due: float = float("inf")  # when it goes on
    token: int = 0  # steps scheduled under an older token are void
    parked: bool = False  # until somebody writes something
    ready: float = 0.0  # when all that was put is there
    flying: set[int] = field(default_factory=set)  # tasks whose end is on its way to the master

    def undelivered(self, now: float) -> int:
        """Rows that the first task has read and not delivered."""
        first, last = self.reads
        if isinstance(self.piece, Exception) or last <= first or now <= first:
            return self.rows
        return int(self.piece.read * min(1.0, (now - first) / (last - first)))

    def change(self) -> dict[str, Any]:
        """Return what is kept, to be changed: tasks that wait see it as it was."""
        if self.queue:
            self.kept = dict(self.kept)
        return self.kept


def pieces_of(
    task: Task, kept: dict[str, Any], operand: Any, compute: bool
) -> Sequence[Piece | Exception]:
    """Run a task, or without `compute` say what it would; its pieces, the last perhaps an error."""
    if not compute:
        if type(task.what) is Outline:
            return task.what.pieces or [NOTHING]
        return [Piece(task.what, None, int(task.cost))]
    pieces: list[Piece | Exception] = []
    try:
        for piece in task.body(kept, operand, *task.args):
            pieces.append(Piece(*piece))
            if type(piece) is Last:
                break
    except Exception as error:
        pieces.append(error)
    return pieces or [NOTHING]
