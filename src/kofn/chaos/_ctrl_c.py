"""A program: sends its parent SIGINT. A line of input says in how many seconds.

Another process does it, so that it can come between any two steps of the parent. It ends with its
input. A SIGINT to itself is of a user who has pressed Ctrl-C; it ends then, and its parent sees it.
"""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> None:
    parent = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for line in sys.stdin:
        time.sleep(float(line))
        if os.getppid() != parent:
            return
        os.kill(parent, signal.SIGINT)


if __name__ == "__main__":
    main()
