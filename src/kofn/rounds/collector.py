"""Python's garbage collector, while a round is simulated without values.

A round of thousands of workers makes objects by the hundred thousand, and most of them live until
its end. The collector would look through them again and again, and each event of a large cluster
would cost more than one of a small one.
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..engines.base import Engine


class _Resting:
    def __enter__(self) -> None:
        self._was = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: Any) -> None:
        if self._was:
            gc.enable()


def resting(engine: Engine) -> AbstractContextManager[None]:
    """It rests during a round, where no function of a user's is run."""
    return nullcontext() if engine.capabilities.values else _Resting()
