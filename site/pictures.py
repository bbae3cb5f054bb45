"""Draws the pictures of docs/any-k-of-n.md: `python site/pictures.py` writes docs/pictures/*.svg.

They have a light ground of their own, so that they can be read on dark pages too.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent.parent / "docs" / "pictures"
BLOCKS = ("#2563a8", "#c05a00", "#1c7c54")
USED, GONE, PALE, INK = "#2563a8", "#b3261e", "#d9e2ec", "#1b1f24"


class Picture:
    """An SVG file, drawn piece by piece."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" '
            'font-family="sans-serif" font-size="14">',
            f"<title>{title}</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#fbfaf7"/>',
        ]

    def box(self, x: float, y: float, w: float, h: float, fill: str, dashed: bool = False) -> None:
        edge = f'stroke="{GONE}" stroke-dasharray="5 4"' if dashed else f'stroke="{INK}"'
        self._out.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" {edge}/>'
        )

    def text(
        self, x: float, y: float, what: str, fill: str = INK, at: str = "middle", size: int = 14
    ) -> None:
        self._out.append(
            f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{at}" '
            f'font-size="{size}">{what}</text>'
        )

    def save(self, name: str) -> None:
        HERE.mkdir(exist_ok=True)
        (HERE / f"{name}.svg").write_text("\n".join([*self._out, "</svg>"]) + "\n")


def shares() -> None:
    """Three blocks become six shares."""
    p = Picture("A matrix is cut into three blocks; six coded shares are made of them", 720, 250)
    p.text(80, 28, "your matrix A")
    for b, colour in enumerate(BLOCKS):
        p.box(30, 42 + 60 * b, 100, 60, colour)
        p.text(80, 77 + 60 * b, f"block {b + 1}", "#ffffff")
    p.text(180, 135, "→", size=30)
    rows = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (1, 2, 3), (1, 4, 9))
    for w, row in enumerate(rows):
        x = 225 + 82 * w
        p.text(x + 33, 28, f"worker {w}")
        wide = 66 / sum(c > 0 for c in row)
        left = x
        for c, colour in zip(row, BLOCKS, strict=True):
            if c:
                p.box(left, 42, wide, 60, colour)
                left += wide
        if w >= 3:
            for i, (c, b) in enumerate(zip(row, "123", strict=True)):
                p.text(x + 33, 122 + 16 * i, f"{'+ ' if i else ''}{c} × block {b}", size=11)
        else:
            p.text(x + 33, 122, f"block {w + 1}", size=12)
    p.text(470, 190, "Each worker keeps one share. All are as large as one block.")
    p.text(470, 214, "The last three are sums of the blocks, each with other factors.")
    p.save("shares")


def solve() -> None:
    """Any three give back the blocks: three equations for three unknowns."""
    p = Picture("From any three replies the three results are found", 720, 230)
    lines = ("y₁ ", "y₁ + y₂ + y₃", "y₁ + 2 y₂ + 3 y₃")
    who, came = (0, 3, 4), ("7", "12", "20")
    for w in range(6):
        x = 30 + 112 * w
        here = w in who
        p.box(x, 30, 96, 44, PALE if here else "#fbfaf7", dashed=not here)
        p.text(
            x + 48, 57, f"worker {w}" if here else "slow, or gone", INK if here else GONE, size=12
        )
    for i, (w, line, value) in enumerate(zip(who, lines, came, strict=True)):
        p.text(40, 118 + 28 * i, f"worker {w} says:", at="start")
        p.text(160, 118 + 28 * i, f"{line} = {value}", at="start")
    p.text(360, 146, "→", size=30)
    for i, (value, colour) in enumerate(zip("723", BLOCKS, strict=True)):
        p.text(420, 118 + 28 * i, f"y{'₁₂₃'[i]} = {value}", colour, at="start", size=16)
    p.text(490, 146, "three equations, three unknowns", at="start", size=13)
    p.text(360, 214, "Which three it was makes no difference.")
    p.save("solve")


def windows(name: str, gone: int | None) -> None:
    """Which rows of its share each worker reads: every row is read by three."""
    live = [w for w in range(6) if w != gone]
    n = len(live)
    tall = 180.0
    words = "All six are there" if gone is None else f"Worker {gone} is gone"
    p = Picture(f"{words}: every row of the shares is read by three workers", 720, 280)
    p.text(120, 28, words)
    for w in range(6):
        x = 200 + 84 * w
        p.text(x + 32, 28, f"worker {w}")
        p.box(x, 42, 64, tall, "#fbfaf7", dashed=w == gone)
        if w == gone:
            p.text(x + 32, 42 + tall / 2, "✕", GONE, size=30)
            continue
        at = live.index(w)
        for step in range(3):
            slot = (at + step) % n
            p.box(x, 42 + tall * slot / n, 64, tall / n, USED)
    for r in range(n):
        p.text(185, 42 + tall * (r + 0.5) / n + 5, f"rows {r + 1}/{n}", at="end", size=12)
    share = "three sixths = half" if gone is None else "three fifths"
    p.text(
        360,
        250,
        f"Blue: what a worker reads, {share} of its share. Count across: three blues in every row.",
    )
    p.save(name)


if __name__ == "__main__":
    shares()
    solve()
    windows("windows", None)
    windows("lost", 2)
