"""What a run has so far, in a file beside its results: one that was ended goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..files import save

NAME = "partial.json"


class Kept:
    """What was measured so far, by name, under these settings.

    Values are as JSON has them, the first time too. `over` is for the end, when all is in
    results.json.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.path = folder / NAME
        self.settings = json.loads(json.dumps(settings))
        self.known: dict[str, Any] = {}
        self._before, self._began = 0.0, time.monotonic()
        try:
            saved = json.loads(self.path.read_text())
            if saved["settings"] == self.settings:
                self.known, self._before = dict(saved["known"]), float(saved["seconds"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # there is none, or none that can be used

    def __call__(self, key: str, make: Callable[[], Any]) -> Any:
        """What was found under a key, measured now if it never was."""
        if key not in self.known:
            self.known[key] = json.loads(json.dumps(make()))
            now = {"settings": self.settings, "seconds": self.seconds, "known": self.known}
            save(self.path, json.dumps(now).encode())
        return self.known[key]

    @property
    def seconds(self) -> float:
        """How long this run and those before it took, up to what they kept last."""
        return self._before + time.monotonic() - self._began

    def over(self) -> None:
        """All is there."""
        self.path.unlink(missing_ok=True)
