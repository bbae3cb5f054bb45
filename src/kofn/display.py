"""Output beside results: tables in a notebook, and lines of the `kofn` logger.

The logger has no handler of its own, so nothing appears unless it is asked for:
`logging.basicConfig(level=logging.INFO)`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any, ClassVar

from .errors import KofnError

LOGGER = logging.getLogger("kofn")
LOGGER.addHandler(logging.NullHandler())
NEWS = {
    "lost": "worker %d is lost",
    "joined": "worker %d has joined",
    "leaving": "worker %d will leave",
    "staying": "worker %d will stay after all",
    "failed": "a task on worker %d has failed",
}
LONGEST = 200  # letters of a value in a table


def log_event(kind: str, worker: int, why: str) -> None:
    """Log an event that a person would want to know of, at INFO."""
    if kind in NEWS and LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info(NEWS[kind] + (": %s" if why else "%s"), worker, why)


class Displayed:
    """Shows itself in a notebook as a table: the attributes `_displayed`, or a dataclass's fields.

    What is empty is left out.
    """

    __slots__ = ()
    _displayed: ClassVar[tuple[str, ...]] = ()

    def _repr_html_(self) -> str:
        names = self._displayed
        if not names and is_dataclass(self):
            names = tuple(field.name for field in fields(self))
        facts: dict[str, Any] = {}
        for name in names:
            with suppress(KofnError):  # of a cluster that is closed
                facts[name] = getattr(self, name)
        title = repr(self) if self._displayed else type(self).__name__
        return table(title, {k: v for k, v in facts.items() if not _empty(v)})


def table(title: str, facts: Mapping[str, Any]) -> str:
    """An HTML table of names and values."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name.replace('_', ' '))}</th>"
        f"<td style='text-align:left'>{escape(_text(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def grid(title: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table with a line of names, and of values in each row; None is a dash."""
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in names)
    body = ""
    for row in rows:
        cells = ("–" if value is None else escape(_text(value)) for value in row)
        body += "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells)
        body += "</tr>"
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>"


def figure(value: float, form: str = ".4g") -> str:
    """A number in this format, but never as 2.875e+04: from 1,000 to a thousand million whole."""
    return f"{value:,.0f}" if form.endswith("g") and 1e3 <= abs(value) < 1e9 else f"{value:{form}}"


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, tuple | list | dict) and not value)


def _text(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if isinstance(value, Displayed):
        return type(value).__name__
    if shape:
        return f"{type(value).__name__} of shape {shape}"
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}: {_text(one)}" for name, one in value.items())
    elif isinstance(value, tuple | list):
        text = ", ".join(map(_text, value))
    else:
        text = figure(value) if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
