"""A real browser for tests: Debian's Chromium, driven by Playwright; or the reason why not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def browser_or_skip() -> Iterator[Any]:
    """Open a browser; skip where there is none, with what to do."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs Chromium: .ci/browser installs Debian's, as root")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("needs Playwright: pip install playwright")
    with sync_playwright() as play:
        args = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = play.chromium.launch(executable_path=path, args=args)
        try:
            yield browser
        finally:
            browser.close()
