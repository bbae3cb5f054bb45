"""The costs of moving data and of running a master: the numbers of a simulation.

One set for all: the virtual engine charges them, `kofn calibrate` measures them on a cluster.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from os import PathLike, fspath
from pathlib import Path
from typing import Self

from .errors import BadInput
from .files import save

PIECE = 256 * 1024  # bytes: what is passed on goes in such pieces (kofn.peers.blobs.PIECE)


@dataclass(frozen=True)
class Costs:
    """Prices of a cluster: links, machines that start, and the master's own time.

    Each machine has a link of `bandwidth` bytes a second both ways, the master too. A message takes
    `latency` seconds. A machine that is added is a worker after `start_up` seconds. The master
    takes `per_event` seconds for each task that it sends and each event that it receives, and
    `per_number` seconds for each number of a reply, and each that is combined in decoding.
    """

    latency: float = 5e-5
    bandwidth: float = 1.25e9
    start_up: float = 0.0
    per_event: float = 0.0
    per_number: float = 0.0

    def __post_init__(self) -> None:
        for name in ("latency", "start_up", "per_event", "per_number"):
            if not 0 <= float(getattr(self, name)) < float("inf"):
                raise BadInput(f"{name} is seconds >= 0; got {getattr(self, name)!r}.")
        if not self.bandwidth > 0:
            raise BadInput(f"bandwidth is bytes a second, > 0; got {self.bandwidth!r}.")

    def transfer(self, size: float) -> float:
        """Seconds of a link for so many bytes, beside the latency."""
        return size / self.bandwidth

    def ring(self, workers: int, size: float) -> float:
        """Seconds of an all-gather: each worker passes on workers - 1 pieces of `size` bytes."""
        return (workers - 1) * (self.latency + self.transfer(size))

    def passed_on(self, machines: int, size: float) -> float:
        """Seconds until so many machines have `size` bytes that one of them was sent.

        They pass it on piece by piece: in a chain, or with many machines in a binary tree.
        """
        pieces = max(1, math.ceil(size / PIECE))
        levels = math.log2(max(1, machines))
        chain, tree = 1 + (machines - 1) / pieces, 2 + 2 * levels / pieces
        return min(chain, tree) * self.transfer(size) + self.latency * min(machines, levels + 1)

    @classmethod
    def of(cls, given: Costs | str | PathLike[str] | None) -> Costs:
        """Those that are given, or are in a file; else the usual ones."""
        if given is None:
            return cls()
        return given if isinstance(given, Costs) else cls.load(given)

    def save(self, path: str | PathLike[str]) -> None:
        """Write them as JSON."""
        save(Path(path), (json.dumps(asdict(self), indent=2) + "\n").encode(), "the costs")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` or `kofn calibrate` wrote; other fields of the file are ignored.

        Files of before `per_number` are read too.
        """
        known = [field.name for field in fields(cls)]
        try:
            with open(path, encoding="utf-8") as file:
                numbers = {"per_number": 0.0, **json.load(file)}
            return cls(**{name: float(numbers[name]) for name in known})
        except OSError as error:
            problem = error.strerror or str(error)
        except KeyError as error:
            problem = f"it has no {error.args[0]}"
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            problem = f"this is no such file ({type(error).__name__}: {error})"
        raise BadInput(
            f"costs are a JSON file with {', '.join(known)}; {fspath(path)}: {problem}. Write one "
            f"with `kofn calibrate`."
        )
