"""Wrong replies by script: what a machine that computes wrongly might send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..checks import one_of

Array = NDArray[Any]
Kind = Literal["bit", "replaced", "sign", "factor", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def corrupted(value: Any, kind: Kind, rng: np.random.Generator, other: Any = None) -> Any:
    """A wrong copy of an array of floats, or of a tuple of them; anything else is left as it is.

    "bit" turns over one bit of one number, exponents and signs included; "replaced" draws all
    numbers anew, of a random size; "sign" turns all signs; "factor" multiplies by a factor, from
    one that is off in its last digits to a huge one; "other" is `other`, the reply of another
    worker, in the shape of this one.
    """
    one_of(kind, "kind", KINDS)
    if isinstance(value, tuple):
        at = int(rng.integers(len(value))) if value else 0
        others = other if isinstance(other, tuple) else (None,) * len(value)
        return tuple(
            corrupted(one, kind, rng, others[i]) if i == at else one for i, one in enumerate(value)
        )
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return value
    return _WAYS[kind](value, rng, other)


def _bit(value: Array, rng: np.random.Generator, other: Any) -> Array:
    wrong = np.array(value, order="C")
    words = wrong.reshape(-1).view(f"u{wrong.dtype.itemsize}")
    at, bit = rng.integers(words.size), rng.integers(8 * wrong.dtype.itemsize)
    words[at] ^= words.dtype.type(1) << words.dtype.type(bit)
    return wrong


def _replaced(value: Array, rng: np.random.Generator, other: Any) -> Array:
    drawn = rng.standard_normal(value.shape) * 10.0 ** rng.uniform(-8, 8)
    return np.asarray(drawn, value.dtype)


def _sign(value: Array, rng: np.random.Generator, other: Any) -> Array:
    return -value


def _factor(value: Array, rng: np.random.Generator, other: Any) -> Array:
    off = rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(-15, 6)
    return np.asarray(value * (1.0 + off), value.dtype)


def _other(value: Array, rng: np.random.Generator, other: Any) -> Array:
    if not isinstance(other, np.ndarray) or not other.size:
        return value
    return np.resize(other, value.shape).astype(value.dtype)


_WAYS: dict[Kind, Callable[[Array, np.random.Generator, Any], Array]] = {
    "bit": _bit,
    "replaced": _replaced,
    "sign": _sign,
    "factor": _factor,
    "other": _other,
}
