"""Where results are to be written: found out before the work, not after it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ..errors import BadInput


def file(path: Path) -> None:
    """Raise BadInput where a file cannot be written."""
    if path.is_dir():
        raise BadInput(f"--out must be a file; {path} is a directory. Name a file in it.")
    if not path.parent.is_dir():
        raise BadInput(
            f"--out must be a file in a directory that is there; {path.parent} is not. Make the "
            f"directory first."
        )
    _try(path.parent)


def directory(path: Path) -> None:
    """Make a directory; raise BadInput where that, or a file in it, is not allowed."""
    if path.exists() and not path.is_dir():
        raise BadInput(f"--out must be a directory; {path} is a file. Name another.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"--out must be a directory that can be made; {path} cannot: {error.strerror}. Name "
            f"another."
        ) from None
    _try(path)


def results(path: Path, found: Any) -> None:
    """Write what was measured to results.json in a directory."""
    text = json.dumps(found, indent=2) + "\n"
    (path / "results.json").write_text(text, encoding="utf-8")


def _try(path: Path) -> None:
    try:  # permissions do not tell all: some file systems take no files from anybody
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise BadInput(
            f"--out must be where files can be written; {path} takes none: {error.strerror}. Name "
            f"another."
        ) from None
