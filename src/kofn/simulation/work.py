"""What is to be done, as sizes alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

from ..checks import one_of, whole_fields
from ..errors import BadInput

Kind = Literal["product", "gradient", "sequence", "sum"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ITEM = 8  # bytes of a number
LARGEST = 1e15  # bytes of a matrix: how long larger ones take says nothing, and is slow to simulate


@dataclass(frozen=True)
class Work:
    """One round's work, by its kind and sizes. Numbers are float64.

    product: X @ w, for X (rows, columns) and w (columns, width).
    gradient: the sum of gradients of `columns` numbers over `parts` parts of the rows (default:
    one for each worker).
    sequence: a job X Y, for X (rows, columns) and Y (columns, width).
    sum: the sum of `rows` terms; each is of `columns` numbers of data, and has `width` itself.
    """

    kind: Kind
    rows: int = 100_000
    columns: int = 100
    width: int = 1
    parts: int | None = None

    def __post_init__(self) -> None:
        one_of(self.kind, "work", KINDS)
        whole_fields(self, rows=1, columns=1, width=1)
        sizes = self.rows, self.columns, self.width
        if max(a * b for a, b in combinations(sizes, 2)) * ITEM > LARGEST:
            raise BadInput(
                f"a matrix of Work has {LARGEST:g} bytes at most, {ITEM} for each number; got rows="
                f"{self.rows}, columns={self.columns}, width={self.width}. Give smaller sizes."
            )
        if self.parts is not None:
            whole_fields(self, parts=1)
            if self.kind != "gradient":
                raise BadInput(f"parts are of a gradient; got parts={self.parts} of a {self.kind}.")

    def units(self, workers: int) -> float:
        """All of the work in the units in which tasks are counted."""
        if self.kind == "gradient":
            return float(self.cut(workers))
        if self.kind == "sequence":
            return float(self.rows) * self.columns * self.width
        return float(self.rows)

    def cut(self, workers: int) -> int:
        """How many terms the sum has."""
        if self.kind == "sum":
            return self.rows
        return workers if self.parts is None else self.parts

    @property
    def data_bytes(self) -> int:
        """What the workers keep together, if each keeps its part once; 0 for a sequence."""
        return 0 if self.kind == "sequence" else self.rows * self.columns * ITEM
