"""Notices to a worker's own process: signals, and the end of its Slurm job."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

from .base import NotHere, Notice, Source

_LOOK = 10.0  # seconds that one look waits for a signal


@dataclass(kw_only=True)
class SigTerm(Source):
    """SIGTERM of a worker's process, which then has `grace` seconds: Kubernetes' way.

    The worker goes on, and ends after that time, if nobody has killed it before. For workers of the
    local engine and of MPI; a process of Ray's or Dask's has another master. With "auto" it is used
    in a Pod of Kubernetes only.
    """

    name: ClassVar[str] = "sigterm"
    each: ClassVar[Literal["worker", "machine", "cluster"]] = "worker"
    grace: float = 30.0
    every: float = 0.0

    def attach(self, worker: Any) -> None:
        """Take the signal, from here on."""
        if self.optional and "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise NotHere("this is no Pod of Kubernetes.")
        if threading.current_thread() is not threading.main_thread():
            raise NotHere(
                "a worker takes SIGTERM itself where it is a process of its own, on engines local "
                "and mpi; this one is not. On Ray use notices='ray': `ray start --block` drains "
                "its node at SIGTERM. On Dask use notices='dask', and retire workers."
            )
        self._gone_at = 0.0
        self._pipe, end = os.pipe()
        os.set_blocking(end, False)

        def note(number: int, _: object) -> None:
            with suppress(OSError):  # it is full: the signal has been noted
                os.write(end, bytes([number]))

        signal.signal(signal.SIGTERM, note)
        # By this a thread knows it at once: the handler waits for the end of a product.
        before = signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        if before >= 0:  # another's
            signal.set_wakeup_fd(before)
        # Or the SIGTERM of a child, however early, would be taken for ours, and not end it.
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_forget)

    def look(self) -> Sequence[Notice]:
        """Wait for the signal; later, for the end."""
        if self._gone_at:
            left = self._gone_at - time.time()
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(min(left, _LOOK))
        elif self._signalled():
            self._gone_at = time.time() + self.grace
        return [Notice(self._gone_at, "SIGTERM")] if self._gone_at else []

    def _signalled(self) -> bool:
        ready = select.select([self._pipe], [], [], _LOOK)[0]
        return bool(ready) and signal.SIGTERM in os.read(self._pipe, 4096)


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _forget() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    _unblock()


@dataclass(kw_only=True)
class Slurm(Source):
    """The end of a Slurm job, as set when the job started; announced `lead` seconds ahead."""

    name: ClassVar[str] = "slurm"
    lead: float = 120.0

    def probe(self) -> None:
        """Read SLURM_JOB_END_TIME, or ask squeue where an older Slurm does not set it."""
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            raise NotHere("SLURM_JOB_ID is not set: this is no job of Slurm's.")
        end = os.environ.get("SLURM_JOB_END_TIME")
        try:
            self._end = float(end) if end else _ask_slurm(job)
        except (ValueError, OSError, subprocess.SubprocessError) as error:
            raise NotHere(
                f"Slurm must say when job {job} ends; SLURM_JOB_END_TIME is {end or 'not set'}, "
                f"and squeue does not tell ({error}). Give the job a time limit."
            ) from error

    def look(self) -> Sequence[Notice]:
        """Say so when the end is near."""
        near = self._end - time.time() <= self.lead
        return [Notice(self._end, "the Slurm job ends")] if near else []


def _ask_slurm(job: str) -> float:
    command = ["squeue", "-h", "-j", job, "-o", "%e"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    return datetime.fromisoformat(answer.strip()).timestamp()  # in local time
