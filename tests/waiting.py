"""What programs of the tests need, which run in many processes: it imports nothing of size."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def until(done: Callable[[], object], what: str, seconds: float = 600.0) -> None:
    """Wait until `done`, which is asked every few milliseconds; fail after so many seconds."""
    limit = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < limit, f"waited {seconds:g} s for {what}"
        time.sleep(0.005)


def command_line(pid: int) -> bytes:
    """What a process was started by; nothing if it is gone, also while this is read."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def over_the_network() -> int:
    """Bytes that went over the network of the host that this runs on (see hosts.py), both ways."""
    (line,) = [line for line in Path("/proc/net/dev").read_text().splitlines() if "eth0:" in line]
    words = line.split(":")[1].split()
    return int(words[0]) + int(words[8])
