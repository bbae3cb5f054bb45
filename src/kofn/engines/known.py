"""The engines that are known by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from typing import Any

from .. import checks
from ..errors import BadInput, EngineUnavailable
from ..interrupts import held
from .base import Engine

GROUP = "kofn.engines"


def engines() -> dict[str, EntryPoint]:
    """Every engine known by name, also those of other packages (entry points `kofn.engines`)."""
    return {point.name: point for point in entry_points(group=GROUP)}


def find(name: object) -> Callable[..., Engine]:
    """Return an engine's class by its name; raise EngineUnavailable when it cannot be loaded."""
    known = engines()
    if not isinstance(name, str) or name not in known:
        raise EngineUnavailable(
            f"an engine goes by its name; there is no {name!r}. Use {', '.join(sorted(known))}."
        )
    try:
        with held():
            return known[name].load()  # type: ignore[no-any-return]
    except EngineUnavailable:
        raise
    except ImportError as error:
        raise EngineUnavailable(
            f"engine {name!r} is not installed ({error}): pip install 'kofn[{name}]'."
        ) from error


def start(name: str, workers: int | None, **options: Any) -> Engine:
    """Open an engine by its name, with so many workers and what it is told (None: its default)."""
    if workers is not None:
        workers = checks.whole(workers, "workers", 1, checks.WORKERS)
    kind = find(name)
    given = {option: value for option, value in options.items() if value is not None}
    if not given:
        return kind() if workers is None else kind(workers)
    for option, value in given.items():
        if option not in signature(kind).parameters:
            raise BadInput(f"engine {name!r} takes no {option}; got {value!r}. Leave it out.")
    return kind(workers, **given)
