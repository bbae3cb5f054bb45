"""The cells of `kofn bench peers` as tables: a row for each peer, a column for each setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..frame import number


def grid(cells: Mapping[str, Any]) -> dict[str, tuple[list[str], dict[str, list[str]]]]:
    """By work: the settings, and for each peer a text for each of them."""
    tables: dict[str, tuple[list[str], dict[str, list[str]]]] = {}
    keys = [tuple(key.split(", ")) for key in cells]
    for work in dict.fromkeys(work for _, work, _ in keys):
        settings = list(dict.fromkeys(s for _, w, s in keys if w == work))
        tables[work] = (
            settings,
            {
                peer: [_text(cells.get(f"{peer}, {work}, {s}")) for s in settings]
                for peer in dict.fromkeys(p for p, w, _ in keys if w == work)
            },
        )
    return tables


def _text(cell: Mapping[str, Any] | None) -> str:
    """Seconds of the work, and the worst round in ms."""
    if cell is None:
        return "–"
    for kind, word in (("missing", "not installed"), ("died", "died"), ("hangs", "hangs")):
        if kind in cell:
            return word
    worst = f" ({cell['worst_ms']:,.0f} ms)" if cell["done"] > 1 else ""
    return f"{number(cell['total'])}{worst}"
