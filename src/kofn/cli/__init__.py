"""The command kofn."""

from .app import main

__all__ = ["main"]
