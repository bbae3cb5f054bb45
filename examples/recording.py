"""Record `kofn demo` as README shows it: docs/watch.svg, the terminal, and docs/page.png, the page.

    python examples/recording.py [folder]

The run is a real one: six workers of this machine, three of which are killed. The recording is made
from its log, as `kofn watch` shows it at some moments, one after the other. For the picture of the
page Chromium and Playwright are needed; without them it is left out, and that is said.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console

from kofn import Cluster
from kofn.cli.demo import run
from kofn.cli.show import Shown, save_page
from kofn.cli.watch import picture
from kofn.report.logs import LogReader
from kofn.report.state import RunState

FRAMES, EACH, LAST = 16, 0.8, 4.0  # how many, seconds of one, and of the last
WIDTH, HEIGHT = 100, 30  # of the terminal
PRICE = 0.35  # of a worker for an hour
# What rich writes of a terminal, without its fonts: they would be asked for elsewhere.
FRAME = """<g class="frame" id="{unique_id}"><style>{styles}</style><defs>{lines}</defs>
<g transform="translate(14, 14)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></g>"""
WHOLE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
aria-label="kofn watch: three of six workers are killed, three join, and the rounds go on">
<style>
  text {{ font: 20px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
  text {{ fill: #c5c8c6; white-space: pre; }}
  .frame {{ visibility: hidden; animation: shown {seconds}s steps(1) infinite; }}
  @keyframes shown {{ 0% {{ visibility: visible; }} {part}% {{ visibility: hidden; }} }}
  #f{last} {{ animation-name: last; }}
  @keyframes last {{ 0% {{ visibility: visible; }} {rest}% {{ visibility: hidden; }} }}
  {delays}
  @media (prefers-reduced-motion) {{
    .frame {{ animation: none; }}
    #f{last} {{ visibility: visible; }}
  }}
</style>
<rect width="{width}" height="{height}" rx="10" fill="#1b2024"/>
{frames}
</svg>
"""


def terminal(log: Path) -> str:
    """The frames of `kofn watch` over the whole run, as one SVG that moves."""
    reader = LogReader(log)
    records = reader.take()
    reader.close()
    zero, end = records[0].time, max(r.time for r in records)
    state = RunState(reader.first["engine"], reader.first["workers"], PRICE)
    frames, taken = [], 0
    for i in range(FRAMES):
        until = zero + (i + 1) / FRAMES * (end - zero)
        upto = next((n for n, r in enumerate(records) if r.time > until), len(records))
        upto = len(records) if i == FRAMES - 1 else max(upto, taken)
        state.take(records[taken:upto])
        taken = upto
        console = Console(width=WIDTH, height=HEIGHT, record=True, file=StringIO())
        console.print(picture(state, WIDTH))
        frames.append(console.export_svg(code_format=FRAME, unique_id=f"f{i}"))
    seconds = (FRAMES - 1) * EACH + LAST
    delays = "".join(f"#f{i} {{ animation-delay: {i * EACH:g}s; }} " for i in range(FRAMES))
    return WHOLE.format(
        width=round(12.2 * WIDTH + 28),
        height=round(24.4 * HEIGHT + 28),
        seconds=seconds,
        part=round(100 * EACH / seconds, 3),
        rest=round(100 * LAST / seconds, 3),
        last=FRAMES - 1,
        delays=delays,
        frames="\n".join(frames),
    )


def photograph(page: Path, to: Path) -> str:
    """Take a picture of a saved page; return why not, where that is so."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return "there is no Chromium (.ci/browser installs Debian's, as root)"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return "there is no Playwright (pip install playwright)"
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 1000})
        tab.goto(page.resolve().as_uri())
        tab.wait_for_function("() => shape && shape.lines.length > 0")
        tab.screenshot(path=to)
        browser.close()
    return ""


class Recorded(Shown):
    """As with a page, at a pace that one can follow; but nobody looks on."""

    def open(self, cluster: Cluster, wait: bool = False) -> bool:
        return False


def main(folder: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        log = Path(made, "run.jsonl")
        run(300, 2000, 0, None, quiet=True, shown=Recorded(True, None, log))
        Path(folder, "watch.svg").write_text(terminal(log), "utf-8")
        page = save_page(log, None, PRICE)
        if why := photograph(page, Path(folder, "page.png")):
            print(f"page.png is not made: {why}", file=sys.stderr)
        if keep := os.environ.get("KOFN_KEEP"):
            shutil.copy(log, keep)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs")
