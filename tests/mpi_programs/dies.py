"""Rank 0 ends before it connects, or in the middle of a join: by kill -9, or by an exception."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import kofn

when, how, later = sys.argv[1], sys.argv[2], float(sys.argv[3])


def end() -> None:
    print("ends", flush=True)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1) if when == "join" else sys.exit("on purpose")


def spawned() -> bool:
    """Whether the rank that is to join has been started, by the command that it runs."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            text = entry.read_bytes()
            if b"Get_parent" in text and f" {os.getpid()} ".encode() in text:
                return True
    return False


if when == "before" and os.environ["PMIX_RANK"] == "0":
    end()
cluster = kofn.connect("mpi")
threading.Thread(target=cluster.engine.join, daemon=True).start()
while not spawned():
    time.sleep(0.001)
time.sleep(later)
end()
