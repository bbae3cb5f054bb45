"""What a forked child must let go of: with the parent's sockets in it, nobody sees their end."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class House(Protocol):
    """What a master holds."""

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets."""


_houses: weakref.WeakSet[House] = weakref.WeakSet()


def watch(house: House) -> None:
    """Have it abandoned in every child that is forked while it lives."""
    _houses.add(house)


def _after_fork() -> None:
    for house in list(_houses):
        house.abandon()


os.register_at_fork(after_in_child=_after_fork)
