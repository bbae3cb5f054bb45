"""What holds for all tests."""

from __future__ import annotations

import signal

# nohup, background jobs and some CI ignore SIGINT, and so do the children of who ignores it: tests
# that interrupt a child would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
