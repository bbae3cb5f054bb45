"""Where it is announced that a machine will go: `connect(..., notices="aws")`.

A source is asked on the workers' side, in a thread of its own; see docs/fleet.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from .. import errors
from .base import NoAnswer, NotHere, Notice, Source
from .clouds import AWS, GCP, Azure
from .clusters import DaskRetirement, RayDrain
from .processes import SigTerm, Slurm

__all__ = [
    "AWS",
    "GCP",
    "Azure",
    "DaskRetirement",
    "NoAnswer",
    "NotHere",
    "Notice",
    "RayDrain",
    "SigTerm",
    "Slurm",
    "Source",
    "resolve",
]

_AUTO: tuple[type[Source], ...] = (AWS, GCP, Azure, SigTerm, Slurm, RayDrain, DaskRetirement)
_NAMES = {kind.name: kind for kind in _AUTO} | {"kubernetes": SigTerm}


def resolve(notices: str | Source | Iterable[str | Source] | None) -> list[Source]:
    """Return the sources that `connect(..., notices=...)` asks for.

    By name, as objects, or a list of both; "auto" is every known source, and those that are not
    there are left out in silence.
    """
    if notices is None:
        return []
    several = isinstance(notices, Iterable) and not isinstance(notices, str | Source | Mapping)
    sources: list[Source] = []
    for each in cast("Iterable[object]", notices) if several else [notices]:
        if isinstance(each, Source):
            sources.append(each)
        elif isinstance(each, str) and each == "auto":
            sources += [kind(optional=True) for kind in _AUTO]
        elif isinstance(each, str) and each in _NAMES:
            sources.append(_NAMES[each]())
        else:
            raise errors.BadInput(
                f"notices= takes names of sources, or kofn.notices.Source objects; got {each!r}. "
                f"Use {', '.join(sorted(_NAMES))}, or auto."
            )
    return sources
