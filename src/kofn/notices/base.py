"""The base class of sources of notices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

from ..checks import number, whole
from ..errors import BadInput, KofnError

_KINDS: dict[str, type] = {"str": str, "bool": bool}  # of settings of sources


class Notice(NamedTuple):
    """A machine, or a worker, will be gone at a time."""

    at: float  # Unix seconds
    reason: str
    place: str = ""  # which machine, as the engine names it; left out: the one that is watched


class NotHere(KofnError):
    """There is no such source on this worker; it is not asked again."""


class NoAnswer(KofnError):
    """A source gave no answer that makes sense; it is asked again, ever more rarely."""


class Busy(NoAnswer):
    """A source is there, and cannot answer now."""


@dataclass(kw_only=True)
class Source(ABC):
    """Where notices come from. It is pickled, and used on workers, in a thread of its own.

    `every`: seconds between two looks. `linger`: a worker that is still there so many seconds after
    its time stays. `optional`: that it is not there is not reported.
    """

    name: ClassVar[str]
    each: ClassVar[Literal["worker", "machine", "cluster"]] = "machine"  # one watcher for each
    every: float = 5.0
    linger: float = 5.0
    optional: bool = False

    def __post_init__(self) -> None:
        for one in fields(self):
            given, name = getattr(self, one.name), f"{one.name} of {type(self).__name__}"
            if one.type == "float":
                # Who may look again at once waits in `look`, and says so by its default.
                often = one.name == "every" and type(self).every > 0
                number(given, name, "> 0" if often else ">= 0")
            elif one.type == "int":
                whole(given, name, 0)
            elif not isinstance(given, _KINDS.get(str(one.type), object)):
                raise BadInput(f"{name} must be a {one.type}; got {given!r}. Leave it out.")

    def attach(self, worker: Any) -> None:  # noqa: B027 - most need nothing of the worker
        """Get ready, in the worker's own thread; raise NotHere if that cannot be. Must not wait.

        `worker` is what an engine has for its own sources: the distributed.Worker on Dask.
        """

    def probe(self) -> None:  # noqa: B027 - some are always there
        """See if the source is there; raise NotHere if it is not, NoAnswer to be asked again."""

    @abstractmethod
    def look(self) -> Sequence[Notice]:
        """Return all that is announced now; raises NoAnswer. It may wait, for seconds."""
