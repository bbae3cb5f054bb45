"""Functions that tests have workers run. Every worker imports this file, so it imports little.

A function of a test file would have each new worker import that, and pytest with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from kofn.model import Piece


def says_and_goes(kept: Any, operand: Any) -> Iterator[Piece]:
    """Reply, and end the process at once."""
    yield Piece(None, "the last", 1)
    os._exit(0)
