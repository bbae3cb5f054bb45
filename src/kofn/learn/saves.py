"""A solver's side of checkpoints: a state to begin from, and where to offer the next one.

A checkpoint belongs to one problem. It is identified by the estimator and its settings, a hash of
the targets and the weights, and a product of the data with known signs. The product serves for data
on workers too, whose numbers are not in this process.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import Checkpoint
from ..errors import BadInput, CannotWrite, CheckpointWarning

# Settings that may be others when a fit goes on: where it runs, what is shown, when it ends.
FREE = {"cluster", "workers", "k", "callback", "verbose", "code"}
FREE |= {"tol", "max_iter", "max_epochs", "partition", "grid"}


@dataclass(frozen=True)
class Saves:
    """`state` is what a solver goes on from, {} for the start. The default saves nowhere."""

    state: Mapping[str, Any] = field(default_factory=dict)
    write: Callable[[dict[str, Any]], object] | None = None

    def offer(self, **state: Any) -> None:
        """Tell the state after an iteration; it is saved, as it is now, if that is due."""
        if self.write is not None:
            self.write(state)

    def beside(self, **more: Any) -> Saves:
        """The same for a solver within another, which has more to save."""
        write = self.write
        return self if write is None else Saves(self.state, lambda state: write({**more, **state}))


NOWHERE = Saves()
_STRANGE = "they were not written by an estimator"


def saves(
    checkpoint: object, estimator: Any, X: Any, targets: NDArray[Any], weight: NDArray[Any] | None
) -> Saves:
    """The saves of a fit to X, in memory or on workers: one product with X.T.

    BadInput if the folder's checkpoints are of another fit.
    """
    if checkpoint is None:
        return NOWHERE
    where = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    saved = where.read()
    about = _about(estimator, X, targets, weight)
    try:
        other = "" if saved is None else _difference(saved[0], about)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        other = _STRANGE
    if other:
        raise BadInput(
            f"checkpoints go on with the same data and settings; those in {where.place.url} are of "
            f"another fit: {other}. Choose another folder, or remove this one to begin anew."
        )
    where.prepare()
    where.about = about
    return Saves({} if saved is None else saved[1], partial(_write, where))


def _write(where: Checkpoint, state: dict[str, Any]) -> None:
    try:
        where.offer(state)
    except CannotWrite as error:  # a full disk is no reason to lose the fit as well
        text = f"{error} The fit goes on, and will try again."
        warnings.warn(text, CheckpointWarning, stacklevel=2)


def _about(
    estimator: Any, X: Any, targets: NDArray[Any], weight: NDArray[Any] | None
) -> dict[str, Any]:
    settings = estimator.get_params(deep=False)
    rows = int(X.shape[0])
    signs = np.random.default_rng(rows).choice([-1.0, 1.0], rows).astype(X.dtype)
    product = np.asarray(X.T @ signs, dtype=np.float64)
    report = getattr(X, "report", None)
    bound = getattr(report, "error_bound", None) or rows * float(np.finfo(X.dtype).eps)
    return {
        "estimator": type(estimator).__name__,
        "settings": {k: _plain(v) for k, v in sorted(settings.items()) if k not in FREE},
        "shape": list(map(int, X.shape)),
        "targets": _hash(targets),
        "weights": None if weight is None else _hash(weight),
        "data": product,
        "bound": float(bound),
    }


def _plain(value: Any) -> Any:
    """A setting as JSON, or as text that another process writes alike: without addresses."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    known = value is None or isinstance(value, bool | int | float | str)
    return value if known else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _hash(array: NDArray[Any]) -> str:
    data = np.ascontiguousarray(array)
    return hashlib.sha256(f"{data.dtype} {data.shape}".encode() + data.tobytes()).hexdigest()


def _difference(theirs: Any, ours: dict[str, Any]) -> str:
    """In what two fits differ, in words; "" where they are the same."""
    if not isinstance(theirs, dict) or theirs.keys() != ours.keys():
        return _STRANGE
    for name in ("estimator", "shape", "targets", "weights"):
        if theirs[name] != ours[name]:
            if name in ("targets", "weights"):
                return f"its {name} were others"
            return f"its {name} was {theirs[name]}, here it is {ours[name]}"
    before, now = theirs["settings"], ours["settings"]
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            return f"it had {name}={before.get(name)!r}, here it is {now.get(name)!r}"
    # Both are right to their bounds. NaN: only time is simulated, and there are no values.
    apart = float(np.linalg.norm(theirs["data"] - ours["data"]))
    size = max(float(np.linalg.norm(theirs["data"])), float(np.linalg.norm(ours["data"])))
    if apart > (theirs["bound"] + ours["bound"]) * size:
        return "the numbers in X were others"
    return ""
