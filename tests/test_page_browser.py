"""The page in a real browser: a run with kills and joins is opened, looked at, and taken apart.

Screenshots go to the folder that KOFN_SHOTS names, if it names one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import browser_or_skip
from support import Command
from test_report import LOGS

import kofn
from kofn.events import EventLog
from kofn.model import Record
from kofn.page import Page, saved
from kofn.report import RunState

pytestmark = pytest.mark.engine

SIZES = {"wide": {"width": 1200, "height": 1000}, "phone": {"width": 390, "height": 844}}
WAIT = 120.0  # seconds, at most: a browser on a busy machine may take its time
LINES = "shape && shape.lines.length"  # page.js has it: the lines of the picture


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browser_or_skip() as browser:
        yield browser


Open = Callable[..., Any]


@pytest.fixture
def look(browser: Any) -> Iterator[Open]:
    """Open an address; at the end there must be no error, and no request to anywhere else."""
    said: list[str] = []
    asked: list[str] = []
    contexts: list[Any] = []

    def open_page(address: str, size: str = "wide", dark: bool = False) -> Any:
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport=SIZES[size], color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(1e3 * WAIT)
        tab = context.new_page()
        tab.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(address)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    # A connection that is lost on purpose is the one thing that the browser may complain of.
    assert [text for text in said if "ERR_" not in text] == []
    outside = [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "file:"))]
    assert outside == []


def shoot(tab: Any, name: str) -> None:
    if folder := os.environ.get("KOFN_SHOTS"):
        tab.screenshot(path=Path(folder, f"{name}.png"), full_page=True)


def says(tab: Any, where: str, text: str) -> None:
    condition = "([id, text]) => document.getElementById(id).textContent.includes(text)"
    tab.wait_for_function(condition, arg=[where, text])


def counts(tab: Any, lines: int) -> None:
    # As a function: the page's policy forbids to evaluate text.
    tab.wait_for_function(f"() => ({LINES}) === {lines}")


def test_a_run_with_kills_and_joins_is_seen_as_it_goes_on(look: Open) -> None:
    rng = np.random.default_rng(0)
    A, v = rng.standard_normal((900, 300)), rng.standard_normal(300)
    with kofn.connect("local", workers=6) as cluster, cluster.page(price=0.5) as page:
        tab = look(page.address)
        X = cluster.encode(A, k=3)
        for _ in range(20):
            X.T @ (X @ v)
        counts(tab, 6)
        says(tab, "story", "6 workers are live; any 3 of them are enough, because")
        cluster.lose(2)
        killed = time.monotonic()
        says(tab, "events", "worker 2 was lost")
        print(f"a kill is on the page after {time.monotonic() - killed:.2f} s")
        says(tab, "story", "5 workers are live")
        X @ v
        cluster.join()
        says(tab, "events", "worker 6 joined")
        counts(tab, 7)
        rounds = 41
        while not tab.evaluate("data.spans.some(s => s[0] === 6 && s[5] === 'used')"):
            X @ v  # on a busy machine the newcomer may be late for some
            rounds += 1
        says(tab, "tiles", f"{rounds}")


def test_a_round_and_a_worker_open_by_a_click_and_by_keys(look: Open) -> None:
    with Page(EventLog(LOGS["changes"]()), "virtual", range(6)) as page:
        tab = look(page.address)
        counts(tab, 8)
        lanes = tab.locator("#lanes")
        line = tab.evaluate("shape.height")
        lanes.click(position={"x": 30, "y": 5 * line + 8})
        assert tab.locator("#detail-title").inner_text() == "Worker 5"
        says(tab, "detail-text", "There from the start")
        # The middle of the first task of worker 1.
        at = tab.evaluate(
            "(() => { const s = data.spans.find(s => s[0] === 1); "
            "return shape.left + ((s[1] + s[2]) / 2 - view.from) / (view.to - view.from) "
            "* (shape.width - shape.left - 8) })()"
        )
        lanes.click(position={"x": at, "y": line + 8})
        assert tab.locator("#detail-title").inner_text() == "Round 1"
        says(tab, "detail-text", "every row has come from 3 workers")
        assert tab.locator("#detail-table tr").count() >= 6
        tab.locator("#detail-table button").first.click()
        assert tab.locator("#detail-title").inner_text() == "Worker 0"
        tab.keyboard.press("Escape")
        assert tab.locator("#detail").is_hidden()
        lanes.focus()
        for key in ("]", "]"):
            tab.keyboard.press(key)
        assert tab.locator("#detail-title").inner_text() == "Round 2"
        for key in ("ArrowUp", "ArrowDown", "Enter"):
            tab.keyboard.press(key)
        assert tab.locator("#detail-title").inner_text().startswith("Worker")


def length(tab: Any) -> float:
    tab.evaluate("draw()")
    return float(tab.evaluate("view.to - view.from"))


def test_zoom_pause_and_going_back(look: Open) -> None:
    log = EventLog(LOGS["changes"]())
    with Page(log, "virtual", range(6)) as page:
        tab = look(page.address)
        counts(tab, 8)
        whole = length(tab)
        tab.locator("#in").click()
        assert length(tab) == pytest.approx(whole / 2)
        tab.locator("#lanes").focus()
        tab.keyboard.press("+")
        assert length(tab) == pytest.approx(0.6 * whole / 2)
        end = tab.evaluate("view.to")
        tab.keyboard.press("ArrowLeft")
        assert tab.evaluate("view.to") < end
        assert tab.locator("#follow").get_attribute("aria-pressed") == "false"
        box = tab.locator("#lanes").bounding_box()
        before = tab.evaluate("view.from")
        tab.mouse.move(box["x"] + 400, box["y"] + 30)
        tab.mouse.down()
        tab.mouse.move(box["x"] + 600, box["y"] + 30)
        tab.mouse.up()
        assert tab.evaluate("view.from") < before
        tab.keyboard.press("End")
        assert tab.evaluate("draw(), view.to") == pytest.approx(end)
        tab.locator("#all").click()
        assert length(tab) == pytest.approx(whole)
        tab.keyboard.press("Escape")
        tab.locator("#lanes").focus()
        tab.keyboard.press(" ")
        assert tab.locator("#pause").inner_text() == "Go on"
        log.append(Record(log[-1].time + 1, "lost", -1, 1, -1, 0))
        tab.wait_for_function("() => data.head.lost === 3")
        assert "2 workers were lost" in tab.locator("#story").inner_text()
        tab.keyboard.press(" ")
        says(tab, "story", "3 workers were lost")


def test_a_page_finds_its_server_again(look: Open) -> None:
    log = EventLog(LOGS["changes"]())
    first = Page(log, "virtual", range(6))
    tab = look(first.address)
    counts(tab, 8)
    drawn = tab.evaluate("data.spans.length")
    port, token = first.port, first.token
    first.close()
    says(tab, "status", "connection lost")
    log.append(Record(log[-1].time + 1, "lost", -1, 1, -1, 0))
    with Page(log, "virtual", range(6), port=port, token=token):
        says(tab, "events", "worker 1 was lost")
        says(tab, "status", "running")
        assert tab.evaluate("data.spans.length") == drawn  # all anew, and nothing twice


def test_the_end_of_a_run_is_the_end(look: Open) -> None:
    """Two clusters with a page each; the one that ends says so, and asks for nothing more."""
    with kofn.connect("virtual", workers=4) as other, other.page(title="another") as second:
        with kofn.connect("virtual", workers=6) as cluster:
            page = cluster.page(title="kofn <b>mine</b>")
            tab, beside = look(page.address), look(second.address)
            X = cluster.encode(np.eye(60), k=3)
            X @ np.ones(60)
            says(tab, "tiles", "any 3 are enough")
        page.close()
        says(tab, "status", "the run is over")
        says(tab, "story", "The run is over: 1 round")
        assert tab.title() == "kofn <b>mine</b>"
        assert beside.title() == "another · kofn"
        says(beside, "status", "running")
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.wait_for_timeout(1_500)  # it would have asked again after half a second
        assert asked == []


def many(workers: int, rounds: int) -> list[Record]:
    """A log of equal rounds."""
    log = []
    for round in range(rounds):
        ids = range(round * workers, (round + 1) * workers)
        log.append(Record(float(round), "round", round, -1, -1, 20, "X @ w"))
        log += [Record(round + 0.1, "send", round, w, id, 5) for w, id in enumerate(ids)]
        ends = ((w, id, round + 0.2 + 0.7 * (w % 97) / 97) for w, id in enumerate(ids))
        log += [Record(end, "reply", round, w, id, 5) for w, id, end in ends]
        log.append(Record(round + 0.95, "done", round, -1, -1, 0))
        log.append(Record(round + 0.95, "result", round, -1, -1, 5 * workers))
    return log


def test_a_thousand_workers_are_lines_of_some_and_open_by_a_click(look: Open) -> None:
    with Page(EventLog(many(1_000, 20)), "virtual", range(1_000)) as page:
        tab = look(page.address)
        counts(tab, 40)
        says(tab, "shown", "1,000 workers, 25 to a line")
        took = tab.evaluate(
            "(() => { const t = performance.now(); draw(); return performance.now() - t })()"
        )
        heap = tab.evaluate("performance.memory.usedJSHeapSize") / 1e6
        print(f"drawn in {took:.0f} ms, {heap:.0f} MB")
        shoot(tab, "thousand")
        tab.locator("#lanes").click(position={"x": 30, "y": 30})
        counts(tab, 25)
        tab.locator("#back").click()
        counts(tab, 40)


@pytest.mark.long
def test_an_hour_of_a_thousand_workers_stays_small(look: Open) -> None:
    """18,000 updates, as they come in an hour, each as large as the server makes them."""
    with Page(EventLog(many(1_000, 2)), "virtual", range(1_000)) as page:
        tab = look(page.address)
        counts(tab, 40)
        heap, took = tab.evaluate(
            """() => {
              const spans = data.spans.slice(-100), head = data.head;
              for (let i = 0; i < 18000; i++) {
                const t = 2 + i / 5;
                head.time = t;
                const mine = spans.map(s => [s[0], t, t + .1, t + .1, i, s[5], s[6], s[7]]);
                const rounds = [[i, t, t + .2, 1, 1000, 0, 5000, 0, 0, 1, "X @ w"]];
                const events = i % 10 ? [] : [[t, "lost", 1, "worker 1 was lost", i]];
                const losses = [[t, i, 1 / (i + 1)]];
                take({head, new: false, spans: mine, rounds, losses, levels: [], events});
              }
              view.whole = true;
              const began = performance.now();
              draw();
              return [performance.memory.usedJSHeapSize / 1e6, performance.now() - began];
            }"""
        )
        print(f"{heap:.0f} MB after an hour, all of it drawn in {took:.0f} ms")
        assert heap < 100
        kept = tab.evaluate("[data.spans.length, data.rounds.size, data.events.length]")
        assert kept[0] <= 44_000
        assert kept[1] <= 5_500
        assert kept[2] <= 1_100
        tab.locator("#pause").click()


@pytest.mark.parametrize(
    ("size", "dark"),
    [
        pytest.param(size, dark, marks=[] if (size == "phone") == dark else pytest.mark.long)
        for size in SIZES
        for dark in (False, True)
    ],
)
def test_a_saved_page_needs_no_server_and_fits(
    look: Open, tmp_path: Path, size: str, dark: bool
) -> None:
    state = RunState("virtual", range(6), price=0.5)
    fit = [Record.loss(0.1 * i, i, 1.0 / (1 + i)) for i in range(12)]
    state.take([*LOGS["changes"](), *fit])
    file = tmp_path / "run.html"
    file.write_text(saved(state))
    tab = look(file.as_uri(), size, dark)
    counts(tab, 8)
    assert tab.locator("#status").inner_text() == "a saved run"
    assert tab.locator("#loss-box").is_visible()
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is not dark
    # Nothing is wider than the window: no scrolling to the side.
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert tab.evaluate(wide)
    shoot(tab, f"{size}-{'dark' if dark else 'light'}")
    tab.locator("#theme").click()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != paper


def test_the_commands_write_a_log_and_make_a_page_of_it(
    look: Open, command: Command, tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    done = command("demo", "--json", "--pace", "0.01", "--size", "300", "--log", str(log))
    assert done.returncode == 0, done.stderr
    done = command("report", str(log), "--price", "0.5")
    assert done.returncode == 0, done.stderr
    tab = look((tmp_path / "run.html").as_uri())
    says(tab, "story", "The run is over: 60 rounds")
    says(tab, "story", "3 workers were lost and 3 joined")
    done = command("watch", str(log), "--once")
    assert done.returncode == 0, done.stderr
    assert "worker 1 was lost" in done.stdout
