"""For those who write their own codes and engines: conformance checks and scripted faults."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codes import CodeChecks, SumCodeChecks
    from .engines import EngineChecks
    from .faults import Faults

__all__ = ["CodeChecks", "EngineChecks", "Faults", "SumCodeChecks"]

_HOMES = {
    "CodeChecks": "codes",
    "EngineChecks": "engines",
    "Faults": "faults",
    "SumCodeChecks": "codes",
}


def __getattr__(name: str) -> Any:
    # Lazily: workers that run a faulty body import this package, and need not import pytest.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home != "faults":
        try:
            import pytest
        except ImportError:
            from ..errors import CannotDo

            raise CannotDo(
                f"kofn.testing.{name} needs pytest, which is not installed: pip install "
                f"'kofn[test]'. Then inherit it, and run python -m pytest FILE."
            ) from None
        parts = [f"{__name__}.{part}" for part in (home, "_probe", "_tasks", "_values")]
        # So that a failed check says why.
        pytest.register_assert_rewrite(*(part for part in parts if part not in sys.modules))
    return getattr(import_module(f".{home}", __name__), name)
