"""A memory of what was computed, bounded by its size in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from .linear import Weights

K = TypeVar("K", bound=Hashable)


class Memo(Generic[K]):
    """Keeps the weights used last, up to `limit` bytes; safe to use from several threads.

    Not lru_cache: a set of k=500 takes 2 MB and a set of k=10 less than 1 kB, so counting
    entries would either forget the small ones or fill the memory with the large ones.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._kept: OrderedDict[K, Weights] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K, make: Callable[[K], Weights]) -> Weights:
        """Return what is kept under `key`; make and keep it first if need be."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = make(key)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._used += made.matrix.nbytes
            while self._used > self._limit and len(self._kept) > 1:
                self._used -= self._kept.popitem(last=False)[1].matrix.nbytes
        return made
