"""What a long run has so far, in a file beside its results: one that was ended goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..files import save

NAME = "partial.json"


class Kept:
    """What was measured so far, by name, under these settings. Without a folder it is forgotten.

    Values are as JSON has them, the first time too. `over` is for the end, when all is in
    results.json.
    """

    def __init__(self, folder: Path | None, settings: dict[str, Any]) -> None:
        self.path = None if folder is None else folder / NAME
        self.settings = json.loads(json.dumps(settings))
        self.known: dict[str, Any] = {}
        try:
            found = {} if self.path is None else json.loads(self.path.read_text())
            if found["settings"] == self.settings:
                self.known = dict(found["known"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # there is none, or none that can be used

    def __call__(self, key: str, make: Callable[[], Any]) -> Any:
        """What was found under a key, measured now if it never was."""
        if key not in self.known:
            self.known[key] = json.loads(json.dumps(make()))
            if self.path is not None:
                text = json.dumps({"settings": self.settings, "known": self.known})
                save(self.path, text.encode())
        return self.known[key]

    def over(self) -> None:
        """All is there."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
