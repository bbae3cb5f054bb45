"""A run's figures in Prometheus' text format."""

from __future__ import annotations

from .counts import BUCKETS
from .state import RunState

BY_WORKER = (
    ("worker_resident_memory_bytes", "gauge", "Memory of a worker's process.", "resident"),
    ("worker_moved_bytes_total", "counter", "Bytes to and from a worker.", "moved"),
)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics(state: RunState) -> str:
    """All metrics, each with its help and type. Seconds are the engine's clock."""
    head, totals = state.head(), state.totals
    gauges = {
        "workers_live": ("Workers that are live.", head["live"]),
        "workers_leaving": ("Live workers that will be gone soon.", head["leaving"]),
        "threshold_workers": ("Fewest workers with which the round can end.", head["k"]),
        "error_bound_ratio": ("Bound on the relative error of the last result.", state.error_bound),
    }
    counters = {
        "workers_lost_total": ("Workers that were lost.", totals.lost),
        "workers_joined_total": ("Workers that joined.", totals.joined),
        "rounds_raised_total": ("Rounds that raised an error.", totals.raised),
        "rows_read_total": ("Rows or parts that workers read.", totals.read),
        "rows_used_total": ("Rows or parts that results were made of.", totals.used),
        "rows_wasted_total": ("Rows or parts delivered and not needed.", totals.wasted),
        "rows_topped_up_total": ("Rows asked a second time, from others.", totals.topped_up),
        "compared_seconds_total": ("Time of the rounds that were compared.", head["took"]),
        "uncoded_seconds_total": ("Time that they would have taken uncoded.", head["without"]),
        "uncoded_restarts_total": ("Restarts that they would have had.", head["restarts"]),
    }
    lines: list[str] = []
    for kind, several in (("gauge", gauges), ("counter", counters)):
        for name, (text, value) in several.items():
            if value is not None:
                lines += _heading(name, kind, text)
                lines.append(f"kofn_{name} {float(value)!r}")
    for name, kind, text, key in BY_WORKER:
        known = [(w.id, x) for w in state.workers.values() if (x := w.usage.get(key)) is not None]
        lines += _heading(name, kind, text) if known else ()
        lines += [f'kofn_{name}{{worker="{id}"}} {float(x)!r}' for id, x in known]
    lines += _heading("round_seconds", "histogram", "How long rounds took.")
    below = 0
    for bound, count in zip((*BUCKETS, None), totals.buckets, strict=True):
        below += count
        lines.append(
            f'kofn_round_seconds_bucket{{le="{"+Inf" if bound is None else bound}"}} {below}'
        )
    lines += [f"kofn_round_seconds_sum {totals.seconds!r}", f"kofn_round_seconds_count {below}"]
    return "\n".join(lines) + "\n"


def _heading(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP kofn_{name} {text}", f"# TYPE kofn_{name} {kind}"]
