"""Sizes of work as text: rows x columns x width."""

from __future__ import annotations

from typing import Any

from ..errors import BadInput
from ..simulation import Work


def work_of(kind: str, size: str, parts: int | None) -> Work:
    """Work of a kind, with the sizes that are given; the others are 1."""
    try:
        given = [int(one.replace("_", "")) for one in size.lower().replace("×", "x").split("x")]
    except ValueError:
        given = []
    if not 1 <= len(given) <= 3:
        raise BadInput(f"--size is rows x columns x width, as 100000x100x1; got {size!r}.")
    sizes: Any = dict(zip(("rows", "columns", "width"), given, strict=False))
    return Work(kind, parts=parts, **sizes)  # type: ignore[arg-type]  # Work looks at it
