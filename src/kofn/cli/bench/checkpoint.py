"""kofn bench checkpoint: how much of a fit goes into its checkpoints."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from rich.console import Console

from ...checkpoint import Checkpoint
from ...cluster import connect
from ...learn import CodedMLPClassifier, LogisticRegression
from ..output import print_table
from .frame import Figure
from .learn import make_data


class Timed(Checkpoint):
    """Notes how long each offer took, and whether it was written."""

    def __init__(self, folder: object) -> None:
        super().__init__(folder)
        self.offers: list[tuple[float, bool]] = []

    def offer(self, state: Mapping[str, Any]) -> bool:
        """As the original."""
        began = time.perf_counter()
        written = super().offer(state)
        self.offers.append((time.perf_counter() - began, written))
        return written


def run(rows: int, columns: int, workers: int, seconds: float) -> dict[str, Any]:
    """Fit for about so many seconds each, with checkpoints as often as they come by default."""
    X, y = make_data(rows, columns)
    target = (y > 0).astype(np.intp)
    models = {}
    with connect("local", workers=workers) as cluster:
        for name, model in {
            "logistic, descent": LogisticRegression(solver="gd", tol=0.0),
            "network, 100 wide": CodedMLPClassifier((100,), random_state=0, max_epochs=1000),
        }.items():
            models[name] = _measured(model.set_params(cluster=cluster), X, target, seconds)
    figures = {
        f"{name}: of all time": Figure(100 * row["share"], "%", 1.0, "the default of `Checkpoint`")
        for name, row in models.items()
    }
    return {"figures": figures, "models": models}


class _Enough(Exception):
    pass


def _measured(model: Any, X: Any, y: Any, seconds: float) -> dict[str, Any]:
    """Fit over and over until the time is over; what iterations and checkpoints took."""
    steps: list[float] = []
    spent, offers = 0.0, list[tuple[float, bool]]()
    end = time.perf_counter() + seconds

    def on_step(*_: object) -> None:
        steps.append(time.perf_counter())
        if steps[-1] > end:
            raise _Enough

    model.set_params(callback=on_step)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of not having converged
        while time.perf_counter() < end:
            # A new folder: so each fit begins anew.
            timed = Timed(os.path.join(folder, str(len(steps))))
            began = time.perf_counter()
            with suppress(_Enough):
                model.fit(X, y, checkpoint=timed)
            spent += time.perf_counter() - began
            offers += timed.offers
    written = [took for took, wrote in offers if wrote]
    idle = [took for took, wrote in offers if not wrote]
    return {
        "iterations": len(steps),
        "iteration_seconds": _median(np.diff(steps)),
        "written": len(written),
        "write_seconds": _median(written),
        "offer_seconds": _median(idle),
        "share": sum(took for took, _ in offers) / spent,
    }


def _median(seconds: Any) -> float | None:
    return float(np.median(seconds)) if len(seconds) else None


def _times(factor: float, seconds: float | None) -> float | None:
    return None if seconds is None else factor * seconds


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the measurements for a person."""
    title = "checkpoints, at the default interval"
    columns = {"fit": "", "iterations": "d", "one: ms": ".1f", "written": "d"}
    columns |= {"one write: ms": ".2f", "asked, not due: µs": ".1f"}
    rows = [
        (
            name,
            row["iterations"],
            _times(1e3, row["iteration_seconds"]),
            row["written"],
            _times(1e3, row["write_seconds"]),
            _times(1e6, row["offer_seconds"]),
        )
        for name, row in result["models"].items()
    ]
    print_table(console, title, columns, rows)
