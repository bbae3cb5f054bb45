"""A program: sends its parent SIGINT. A line of input says in how many seconds; the last counts.

Another process does it, so that it can come between any two steps of the parent. It ends with its
input. A SIGINT to itself is of a user who has pressed Ctrl-C; it ends then, and its parent sees it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time


def main() -> None:
    parent, due = int(sys.argv[1]), None
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        left = None if due is None else max(0.0, due - time.monotonic())
        if select.select([0], [], [], left)[0]:
            words = os.read(0, 1 << 16).split()
            if not words:
                return
            due = time.monotonic() + float(words[-1])
        elif os.getppid() == parent:
            due = None
            os.kill(parent, signal.SIGINT)
        else:
            return


if __name__ == "__main__":
    main()
