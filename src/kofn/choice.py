"""What was chosen for a cluster: calls take it in place of their own options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Choice(ABC):
    """A choice of workers, code and parameters that connect, encode, parts and sequence accept."""

    @abstractmethod
    def arguments(self, call: str) -> tuple[Any, ...]:
        """The options of a call, in its own order; raises BadInput where it is for another one."""


def chosen(given: object, call: str, *otherwise: Any) -> tuple[Any, ...]:
    """The options of a call: those of a choice if one was given, else `otherwise`."""
    return given.arguments(call) if isinstance(given, Choice) else otherwise
