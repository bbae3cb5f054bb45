"""The page as one file: page.html with its style sheet, its script, and perhaps a run in it."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Any

from ..report.counts import Json
from ..report.state import RunState


@cache
def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def policy() -> str:
    """The content security policy: this script alone, and nothing from anywhere else."""
    digest = base64.b64encode(hashlib.sha256(_part("page.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def page(run: Json | None = None) -> str:
    """The whole page; `run` is what a saved one shows, a live one asks the server."""
    # In a script "<" might end it.
    data = as_json(run).replace("<", "\\u003c")
    text = (
        _part("page.html").replace("{{policy}}", policy()).replace("{{style}}", _part("page.css"))
    )
    before, after = text.split("{{data}}")
    return before + data + after.replace("{{script}}", _part("page.js"))


def as_json(data: Any) -> str:
    """As JSON that browsers read: they know no NaN and no infinity, which a log may have."""
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(data), separators=(",", ":"))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data


def saved(state: RunState) -> str:
    """The page of a run as a file that needs no server."""
    return page(state.whole())
