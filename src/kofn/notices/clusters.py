"""Notices of Ray and Dask about their own machines and workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal

from .base import NoAnswer, NotHere, Notice, Source


@dataclass(kw_only=True)
class RayDrain(Source):
    """Nodes that Ray drains. One worker asks for all; a node without a deadline has `seconds`."""

    name: ClassVar[str] = "ray"
    each: ClassVar[Literal["worker", "machine", "cluster"]] = "cluster"
    every: float = 1.0
    seconds: float = 600.0

    def probe(self) -> None:
        """Find the call, which is private to Ray: no public one serves."""
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            raise NotHere("nodes are drained by Ray; this is no worker of Ray's.")
        try:
            self._ask: Any = import_module("ray._private.state").state.get_draining_nodes
        except (ImportError, AttributeError) as error:
            raise NotHere(
                f"Ray {ray.__version__} does not say which of its nodes drain ({error}). Use the "
                f"notices of your cloud."
            ) from error
        self._seen: dict[str, float] = {}  # nodes without a deadline, and when their time is over

    def look(self) -> Sequence[Notice]:
        """Return every node that drains."""
        try:
            nodes: dict[str, int] = self._ask()
        except Exception as error:  # whatever Ray raises when it cannot be reached
            raise NoAnswer(f"Ray: {error!r}") from error
        self._seen = {node: at for node, at in self._seen.items() if node in nodes}
        notices = []
        for node, deadline in nodes.items():
            if deadline:
                at = deadline / 1000
            else:
                at = self._seen.setdefault(node, time.time() + self.seconds)
            notices.append(Notice(at, "Ray drains its node", node))
        return notices


@dataclass(kw_only=True)
class DaskRetirement(Source):
    """Dask workers that are being retired: nobody says until when, so they have `seconds`."""

    name: ClassVar[str] = "dask"
    each: ClassVar[Literal["worker", "machine", "cluster"]] = "worker"
    every: float = 0.2
    seconds: float = 10.0

    def attach(self, worker: Any) -> None:
        """Keep the Dask worker."""
        if not hasattr(worker, "status"):
            raise NotHere("workers are retired by Dask; this is no worker of Dask's.")
        self._worker = worker
        self._gone_at = 0.0

    def look(self) -> Sequence[Notice]:
        """Look at the worker's status, which Dask changes in this process."""
        if getattr(self._worker.status, "name", "") != "closing_gracefully":
            self._gone_at = 0.0
            return []
        self._gone_at = self._gone_at or time.time() + self.seconds
        return [Notice(self._gone_at, "Dask retires it")]
