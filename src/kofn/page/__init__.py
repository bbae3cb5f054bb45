"""A page that shows a run, live or saved."""

from .html import saved
from .server import Page

__all__ = ["Page", "saved"]
