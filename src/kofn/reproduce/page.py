"""A page that shows the figures, each with a sentence; the pictures are in the page itself."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from ..files import save

Results = Mapping[str, Any]
# A line of text, or a table: title, the format of each column by its name ("" for text), rows.
Printed = str | tuple[str, dict[str, str], list[tuple[Any, ...]]]

QUICK = (
    "This was a quick run: it shows that all works. It is too small for its figures to be quoted."
)
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem }
img { max-width: 100%; height: auto } figure { margin: 2rem 0 } figcaption { color: #333 }
p.small { color: #555; font-size: .9rem } p.quick { font-weight: bold }
"""


def fill(texts: Mapping[str, str], *values: Results) -> dict[str, str]:
    """Fill in texts as `str.format` does, from all `values` together; each becomes one line."""
    known = {name: value for some in values for name, value in some.items()}
    return {name: " ".join(text.split()).format_map(known) for name, text in texts.items()}


def publish(shown: Any, results: Results, out: Path) -> None:
    """Save the figures of a paper's page into `out`, and index.html: each with its sentence.

    The function of the page that has a sentence's name draws its figure. Figures of a quick run,
    or of other data than the published, say so: pictures travel without their page.
    """
    quick, foreign, figures = results.get("quick"), results.get("foreign"), []
    marks = [
        text for text, kinds in (("quick run", quick), ("not the published data", foreign)) if kinds
    ]
    for name, sentence in shown.sentences(results).items():
        figure, path, text = getattr(shown, name)(results), out / f"{name}.png", escape(sentence)
        if marks:
            figure.text(
                0.995, 0.995, ", ".join(marks), ha="right", va="top", color="#b00020", size=9
            )
        drawn = BytesIO()
        figure.savefig(drawn)
        save(path, drawn.getvalue())
        picture = b64encode(drawn.getvalue()).decode()
        figures.append(
            f'<figure><img alt="{text}" src="data:image/png;base64,{picture}">'
            f"<figcaption>{text}</figcaption></figure>"
        )
    title, shown_figures = escape(shown.TITLE), "\n".join(figures)
    kinds = " ".join(text for text in (quick, foreign) if text)
    warning = f'<p class="quick">{escape(kinds)}</p>' if kinds else ""
    note = f"Measured on {results['settings']['cores']} cores. {results['stood_in']}"
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>
<h1>{title}</h1>
{warning}
<p class="small">{escape(note)}</p>
{shown_figures}
<p class="small">All numbers and settings are in results.json beside this page.</p>
</body></html>
"""
    save(out / "index.html", page.encode())
