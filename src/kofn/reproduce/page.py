"""A page that shows the figures, each with a sentence; the pictures are in the page itself."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUICK = (
    "This was a quick run: it shows that all works. It is too small for its figures to be quoted."
)

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem }
img { max-width: 100%; height: auto } figure { margin: 2rem 0 } figcaption { color: #333 }
p.small { color: #555; font-size: .9rem } p.quick { font-weight: bold }
"""


def sentences(results: Mapping[str, Any]) -> dict[str, str]:
    """One plain sentence a figure, with the numbers that were obtained."""
    at_20 = results["adaptive_over_nonadaptive"]["20"]
    late, total = results["straggler"], results["rows_moved_total"]
    coded, ends = results["linear_runs"]["coded"], results["linear_runs"]
    stale = [run["final_test_error"] for name, run in ends.items() if name.startswith("distr_bgd")]
    return {
        "figure_2a.png": (
            f"With 20 machines and a threshold of 10, a product that gives every live machine its "
            f"part of the work takes {at_20:.3f} of the time of one in which each multiplies its "
            f"whole share; the paper reports 0.54, and 0.50 is the bound."
        ),
        "straggler.png": (
            f"When one of twelve workers is ten times slower, a round takes {late['margin']:.2f} "
            f"times as long with a margin of one, {late['top_up']:.2f} times with top-up alone, "
            f"and {late['neither']:.1f} times with neither."
        ),
        "speeds.png": (
            f"On machines with speeds 1:2:4, loads that follow the measured speeds finish "
            f"{results['speeds_1_2_4']:.2f} times faster than equal ones; 2.33 is the "
            f"best there is."
        ),
        "rows_moved.png": (
            f"As machines leave one by one, turned windows move {total['6-3']['ratio']:.2f} (from "
            f"6 to 3) and {total['20-10']['ratio']:.2f} (from 20 to 10) of the rows that plain "
            f"cyclic windows move; rows that must be taken over are not counted."
        ),
        "figure_2b.png": (
            f"With half of the machines an iteration of gradient descent takes "
            f"{results['virtual_half_over_all']:.2f} times as long in simulated time, and "
            f"{results['half_over_all']:.2f} times by the wall clock."
        ),
        "figure_2cd.png": (
            f"Gradient descent on a spot market ({results['linear_data']}): while "
            f"{coded['killed']} workers are killed and {coded['added']} join, the coded losses "
            f"differ from the noiseless ones by at most {results['max_loss_difference']:.1e} at "
            f"any of {coded['iterations']} iterations, and {coded['restarted']} rounds were "
            f"restarted. "
            f"The test error ends at {coded['final_test_error']:.4f}; ignoring what is lost, at "
            f"{ends['ignore']['final_test_error']:.4f}, keeping its last gradient (Distr-BGD), at "
            f"{_range(stale)}."
        ),
    }


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.4f}", f"{max(values):.4f}"
    return low if low == high else f"{low} to {high}"


def publish(
    title: str,
    results: Mapping[str, Any],
    drawn: Mapping[str, Figure],
    told: Mapping[str, str],
    out: Path,
) -> None:
    """Save the figures into `out`, and index.html that shows each with its sentence.

    Figures of a quick run say so: pictures travel without their page.
    """
    quick = results.get("quick")
    for name, figure in drawn.items():
        if quick:
            figure.text(0.995, 0.995, "quick run", ha="right", va="top", color="#b00020", size=9)
        figure.savefig(out / name)
    shown = "\n".join(
        f'<figure><img alt="{escape(told[name])}" src="data:image/png;base64,'
        f'{b64encode((out / name).read_bytes()).decode()}">'
        f"<figcaption>{escape(told[name])}</figcaption></figure>"
        for name in drawn
    )
    warning = f'<p class="quick">{escape(quick)}</p>' if quick else ""
    note = f"Measured on {results['settings']['cores']} cores. {results['stood_in']}"
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1>
{warning}
<p class="small">{escape(note)}</p>
{shown}
<p class="small">All numbers and settings are in results.json beside this page.</p>
</body></html>
"""
    (out / "index.html").write_text(page, encoding="utf-8")
