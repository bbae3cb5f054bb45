"""Records `kofn demo`: as it looks in a terminal, and with --page as its page looks at the end.

`python site/record.py` writes docs/demo.svg. The run is real. Forty of its pictures are the frames
of an animated SVG; who asked for less motion sees the last one. `python site/record.py --page`
writes docs/page.png; it needs Playwright and Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import threading
import time
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from kofn.cli import demo
from kofn.cli.demo_view import View

EVERY, FRAMES, HOLD = 0.1, 40, 4.0  # seconds between two looks; frames; seconds of the last one
COLUMNS, CELL, LINE = 80, 8.0, 17.0
INK, PAPER = "#e6e6e6", "#16191d"
COLOURS = {"blue": "#58a6e8", "yellow": "#e3b341", "red": "#ff7b6b", "green": "#5fd38d"}

DOCS = Path(__file__).parent.parent / "docs"

Frame = tuple[float, list[list[tuple[str, str, bool]]]]


def lines(picture: Any) -> list[list[tuple[str, str, bool]]]:
    """What a terminal would show: of each line its runs of text, their colour and weight."""
    console = Console(width=COLUMNS, color_system="standard", force_terminal=True)
    out = []
    for line in console.render_lines(picture, console.options, pad=False):
        runs: list[tuple[str, str, bool]] = []
        for segment in line:
            style = segment.style
            colour = style.color.name if style is not None and style.color is not None else ""
            name = colour if colour in COLOURS else "ink"
            bold = bool(style and style.bold)
            if runs and runs[-1][1:] == (name, bold):
                runs[-1] = (runs[-1][0] + segment.text, name, bold)
            else:
                runs.append((segment.text, name, bold))
        out.append(runs)
    return out


def record(rounds: int) -> list[Frame]:
    """Run the demo, and look at it now and then."""
    frames: list[Frame] = []
    views: list[View] = []
    enter = View.__enter__

    def entered(view: View) -> View:
        views.append(view)
        return enter(view)

    View.__enter__ = entered  # type: ignore[method-assign]
    result: dict[str, Any] = {}
    work = threading.Thread(
        target=lambda: result.update(demo.run(rounds, 2000, 0, 0.08, None, quiet=True))
    )
    work.start()
    began = None
    while work.is_alive():
        if views:
            began = began or time.monotonic()
            frames.append((time.monotonic() - began, lines(views[0].picture())))
        time.sleep(EVERY)
    frames = frames[:: -(-len(frames) // FRAMES)]
    last = Group(views[0].picture(), Text(""), Text(demo.closing(result), "bold"))
    frames.append((frames[-1][0] + EVERY, lines(last)))
    return frames


def svg(frames: list[Frame]) -> str:
    """The frames as one animated picture."""
    whole = frames[-1][0] + HOLD
    tall = max(len(frame) for _, frame in frames)
    width, height = COLUMNS * CELL + 24, (tall + 2) * LINE + 20
    style = [f".{name}{{fill:{colour}}}" for name, colour in (*COLOURS.items(), ("ink", INK))]
    style += [
        "text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}",
        ".f{visibility:hidden}",
    ]
    body = []
    ends = [at for at, _ in frames[1:]] + [whole]
    for i, ((start, frame), end) in enumerate(zip(frames, ends, strict=True)):
        a, b = 100 * start / whole, 100 * end / whole
        stays = f"{a:.2f}%{{visibility:visible}}" if i else "0%{visibility:visible}"
        before = "0%{visibility:hidden}" if i else ""
        after = f"{b:.2f}%{{visibility:hidden}}" if end < whole else ""
        style.append(f"@keyframes k{i}{{{before}{stays}{after}}}")
        style.append(f"#f{i}{{animation:k{i} {whole:.2f}s step-end infinite}}")
        body.append(f'<g class="f" id="f{i}">{_text(frame)}</g>')
    last = len(frames) - 1
    style.append(
        f"#f{last}{{visibility:visible}}"  # where nothing moves
        "@media(prefers-reduced-motion:reduce){.f{animation:none!important}}"
    )
    title = (
        "kofn demo: three of six workers are killed; beside it six plain workers that wait, and die"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img"><title>{title}</title>'
        f"<style>{''.join(style)}</style>"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}"/>'
        f'<text x="12" y="24" fill="#9aa4ad">$ kofn demo</text>' + "".join(body) + "</svg>\n"
    )


def _text(frame: list[list[tuple[str, str, bool]]]) -> str:
    out = []
    for row, runs in enumerate(frame):
        column = 0
        for text, colour, bold in runs:
            bare = text.strip()
            if bare:
                x = 12 + CELL * (column + len(text) - len(text.lstrip()))
                weight = ' font-weight="bold"' if bold else ""
                out.append(
                    f'<text x="{x:g}" y="{24 + LINE * (row + 1.5):g}" class="{colour}"{weight} '
                    f'textLength="{CELL * len(bare):g}">{escape(bare)}</text>'
                )
            column += len(text)
    return "".join(out)


def photograph(rounds: int, out: Path) -> None:
    """Run the demo with a browser on its page, and keep what that shows at the end."""
    from playwright.sync_api import sync_playwright

    args = ["demo", "--page", "--price", "0.35", "--rounds", str(rounds)]
    command = [sys.executable, "-c", "from kofn.cli import main; main()", *args]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with (
        sync_playwright() as play,
        play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        ) as browser,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **quiet) as run,
    ):
        assert run.stderr is not None
        tab = browser.new_page(viewport={"width": 1200, "height": 1000})
        tab.goto(run.stderr.readline().removeprefix("The page: ").strip())
        over = "() => document.getElementById('status').textContent === 'the run is over'"
        tab.wait_for_function(over, timeout=300_000)
        tab.screenshot(path=out, full_page=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="The page, in place of the terminal.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    out = options.out or DOCS / ("page.png" if options.page else "demo.svg")
    if options.page:
        photograph(options.rounds, out)
    else:
        out.write_text(svg(record(options.rounds)))


if __name__ == "__main__":
    main()
