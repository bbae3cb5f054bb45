"""A node among what a worker keeps."""

from __future__ import annotations

import weakref

from .keys import Keys
from .node import Node


class Kept:
    """A node for a worker to keep: it is closed when that is forgotten. Made there, by a Build."""

    def __init__(self, token: bytes, everywhere: bool = False, keys: Keys | None = None) -> None:
        self.node = Node(token, everywhere, keys=keys)
        weakref.finalize(self, self.node.close)
