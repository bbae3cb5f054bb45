"""Opens the built site in Chromium, as on a phone and on a desk, light and dark.

    npm install axe-core
    python site/look.py --axe node_modules/axe-core/axe.min.js --shots shots --only 'api/*'

Reports serious faults of accessibility (by axe), pages that scroll sideways, errors of scripts, and
requests to other hosts. Needs Chromium (.ci/browser) and Playwright.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
WIDTHS = {"phone": (390, 844), "desk": (1440, 900)}
SCHEMES = ("light", "dark")
GRAVE = ("serious", "critical")
AXE = "async () => (await axe.run()).violations"
SIDEWAYS = "() => document.scrollingElement.scrollWidth - innerWidth"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def served(site: Path) -> http.server.ThreadingHTTPServer:
    """The site on a free port of this machine."""
    handler = functools.partial(_Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def faults(page: Any, axe: str | None) -> Iterator[str]:
    """What is wrong with the page that is open."""
    if (over := page.evaluate(SIDEWAYS)) > 0:
        yield f"scrolls sideways by {over} pixels"
    if axe is not None:
        page.evaluate(axe)
        for fault in page.evaluate(AXE):
            if fault["impact"] in GRAVE:
                places = [node["html"][:90] for node in fault["nodes"]]
                yield f"{fault['impact']}, {fault['id']}: {fault['help']} ({places})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("site", type=Path, nargs="?", default=ROOT / "build" / "site")
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core")
    parser.add_argument("--shots", type=Path, help="a folder for pictures of all pages")
    parser.add_argument("--only", default="*", help="which pages: a pattern of their names")
    given = parser.parse_args()
    axe = given.axe and given.axe.read_text()
    server = served(given.site)
    host = f"127.0.0.1:{server.server_port}"
    pages = sorted(path.relative_to(given.site) for path in given.site.rglob("*.html"))
    pages = [name for name in pages if fnmatch(name.as_posix(), given.only)]
    found = 0
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for device, (width, height) in WIDTHS.items():
            for scheme in SCHEMES:
                context = browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                page = context.new_page()
                told: list[str] = []
                page.on("pageerror", lambda error, told=told: told.append(f"error: {error}"))
                page.on(
                    "request",
                    lambda request, told=told: (
                        urlsplit(request.url).netloc in (host, "")
                        or told.append(f"asks another host: {request.url}")
                    ),
                )
                for name in pages:
                    told.clear()
                    page.goto(f"http://{host}/{name}")
                    if given.shots:
                        shot = given.shots / f"{device}-{scheme}" / name.with_suffix(".png")
                        page.screenshot(path=shot, full_page=device == "phone")
                    told += faults(page, axe)
                    found += len(told)
                    for what in told:
                        print(f"{name} ({device}, {scheme}): {what}", flush=True)
                context.close()
        browser.close()
    print(f"{len(pages)} pages, {len(WIDTHS)} widths, {len(SCHEMES)} schemes: {found} faults")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
