"""The page's server: who may look, what is streamed, and what it costs the master."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from support import until
from test_report import LOGS

import kofn
from kofn.engines.virtual import VirtualEngine
from kofn.errors import BadInput, CannotDo
from kofn.events import EventLog
from kofn.model import Record
from kofn.page import Page, saved
from kofn.page.html import policy
from kofn.page.server import CONNECTIONS
from kofn.report import RunState

pytestmark = pytest.mark.slow  # together they take seconds


WAIT = 120.0  # seconds for an answer, at most: the machine may be busy


@pytest.fixture
def log() -> EventLog:
    return EventLog(LOGS["changes"]())


@pytest.fixture
def page(log: EventLog) -> Iterator[Page]:
    with Page(log, "virtual", range(6)) as page:
        until(lambda: page.feed.version, "the page to have read the log")
        yield page


_opened: list[http.client.HTTPConnection | http.client.HTTPResponse] = []


@pytest.fixture(autouse=True)
def _connections_are_closed() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def get(page: Page, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=WAIT)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    reply = connection.getresponse()
    _opened.extend((connection, reply))
    return reply


class Stream:
    """Reads server-sent events."""

    def __init__(self, page: Page, last: str = "") -> None:
        headers = {"Last_Event_ID": last} if last else {}
        self.reply = get(page, f"/events?token={page.token}", **headers)
        assert self.reply.status == 200
        assert self.reply.headers["Content-Type"] == "text/event-stream"

    def next(self) -> tuple[str, dict[str, Any]]:
        fields: dict[str, str] = {}
        while (line := self.reply.readline().decode().rstrip("\n")) or "data" not in fields:
            name, _, value = line.partition(": ")
            fields[name] = value
        return fields["id"], json.loads(fields["data"])


@pytest.mark.parametrize("path", ["/", "/events", "/metrics", "/else"])
def test_without_the_token_everything_is_refused(page: Page, path: str) -> None:
    for query in ("", "?token=", "?token=wrong", f"?token={page.token}x"):
        assert get(page, path + query).status == 403
    assert get(page, path, Authorization="Bearer wrong").status == 403


def test_the_token_may_be_in_the_address_or_in_a_header(page: Page) -> None:
    assert get(page, f"/metrics?token={page.token}").status == 200
    assert get(page, "/metrics", Authorization=f"Bearer {page.token}").status == 200
    assert get(page, f"/else?token={page.token}").status == 404
    assert page.token in page.address
    assert len(page.token) >= 20


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://example.com"},
        {"Origin": "https://127.0.0.1"},
        {"Origin": "null"},
        {"Host": "example.com"},
        {"Host": "127.0.0.1.example.com:80"},
        {"Host": "localhost.example.com"},
        {"Host": ""},
    ],
)
def test_other_origins_and_other_names_are_refused(page: Page, headers: dict[str, str]) -> None:
    assert get(page, f"/?token={page.token}", **headers).status == 403


def test_a_name_in_the_request_itself_counts_as_the_hosts(page: Page) -> None:
    host = f"127.0.0.1:{page.port}"
    for name, status in (("example.com", 403), (host, 200)):
        assert get(page, f"http://{name}/?token={page.token}", Host=host).status == status


def test_this_machine_may_look_by_either_name(page: Page) -> None:
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{page.port}"
        reply = get(page, f"/?token={page.token}", Host=host, Origin=f"http://{host}")
        assert reply.status == 200


def test_the_page_is_one_file_with_a_policy(page: Page) -> None:
    reply = get(page, f"/?token={page.token}")
    text = reply.read().decode()
    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in reply.headers["Content-Security-Policy"]
    assert policy() in text
    assert "{{" not in text
    assert "http://" not in text.replace("http-equiv", "")
    assert "https://" not in text


def test_a_stream_begins_with_all_and_goes_on_with_what_is_new(page: Page, log: EventLog) -> None:
    stream = Stream(page)
    first, update = stream.next()
    assert update["new"]
    assert update["head"]["rounds"] == 6
    assert len(update["workers"]) == 8
    end = log[-1].time
    log.append(Record(end, "round", 7, -1, -1, 3, "X @ w"))
    log.append(Record(end + 1, "lost", -1, 1, -1, 0, "killed"))
    second, update = stream.next()
    assert not update["new"]
    assert [event[3] for event in update["events"]] == ["worker 1 was lost: killed"]
    assert update["spans"] == []
    # Who has lost the connection gets the same again, and no more.
    _, again = Stream(page, last=first).next()
    assert not again["new"]
    assert again["events"] == update["events"]
    _, nothing = Stream(page, last=second).next()
    assert nothing["events"] == []
    for unknown in ("x-1-2-3-4-5", second + "0", "a", first.split("-")[0]):
        assert Stream(page, last=unknown).next()[1]["new"]


def test_a_long_run_comes_bit_by_bit_and_whole() -> None:
    log = EventLog(Record(0.1 * i, "joined", -1, i, -1, 0) for i in range(900))
    with pytest.MonkeyPatch.context() as patch, Page(log, "virtual", ()) as page:
        patch.setattr("kofn.page.server.PIECE", 400)
        stream = Stream(page)
        id, first = stream.next()
        assert first["head"]["joined"] == 900
        assert len(first["events"]) == 400
        told = first["events"] + stream.next()[1]["events"] + stream.next()[1]["events"]
        assert [event[2] for event in told] == [*range(900)]
        # Who has lost the connection in between goes on there.
        assert Stream(page, last=id).next()[1]["events"] == told[400:800]


def test_at_most_five_updates_come_a_second(page: Page, log: EventLog) -> None:
    stream = Stream(page)
    stream.next()
    began = time.monotonic()
    for i in range(4):
        log.append(Record(log[-1].time + 1, "joined", -1, 100 + i, -1, 0))
        stream.next()
    assert time.monotonic() - began >= 3 * 0.2


def test_the_end_of_a_page_ends_its_streams(log: EventLog) -> None:
    page = Page(log, "virtual", range(6))
    stream = Stream(page)
    stream.next()
    page.close()
    page.close()
    assert stream.reply.read() == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", page.port))


def test_who_looks_is_told_the_end_before_the_page_goes(log: EventLog) -> None:
    """And that it was the end: a browser need not ask again."""
    page = Page(log, "virtual", range(6))
    stream = Stream(page)
    assert not stream.next()[1]["last"]
    log.append(Record(log[-1].time, "closed", -1, -1, -1, 0))
    page.close()
    _, update = stream.next()
    assert update["head"]["closed"]
    assert update["last"]
    assert stream.reply.read() == b""


def test_a_run_that_is_over_holds_no_connection(log: EventLog) -> None:
    log.append(Record(log[-1].time, "closed", -1, -1, -1, 0))
    with Page(log, "virtual", range(6)) as page:
        until(lambda: page.feed.state.closed, "the page to have read the log")
        stream = Stream(page)
        assert stream.next()[1]["last"]
        assert stream.reply.read() == b""


def test_workers_are_listed_when_nothing_comes_any_more(page: Page, log: EventLog) -> None:
    """Two things that happen within a second; the second comes with no list of workers."""
    stream = Stream(page)
    stream.next()
    for worker in (1, 3):
        log.append(Record(log[-1].time, "leaving", -1, worker, -1, 0, "soon"))
        update = stream.next()[1]
    while "workers" not in update:
        update = stream.next()[1]
    assert [worker["id"] for worker in update["workers"] if worker["leaving"]] == [1, 3]


def test_a_cluster_has_a_page_that_outlives_it() -> None:
    with kofn.connect(VirtualEngine(4)) as cluster:
        X = cluster.encode(np.eye(8), k=2)
        X @ np.ones(8)
        cluster.lose(1)
        page = cluster.page(price=2.0, title="mine")  # who was there at the start is found out
        X @ np.ones(8)
    with page:
        until(lambda: page.feed.state.closed, "the end of the run")
        head = page.feed.state.head()
        assert (head["live"], head["lost"], head["rounds"], head["k"]) == (3, 1, 2, 2)
        assert (head["cost"] > 0, head["title"], head["engine"]) == (True, "mine", "virtual")
        assert head["story"][0].startswith("The run is over")
        assert page.address in repr(page)


def test_a_port_that_is_taken_and_a_price_that_is_none_are_said(page: Page) -> None:
    with kofn.connect(VirtualEngine(2)) as cluster:
        with pytest.raises(CannotDo, match=f"port {page.port} is not"):
            cluster.page(port=page.port)
        with pytest.raises(BadInput, match="price"):
            cluster.page(price=-1.0)


def test_a_saved_page_has_the_run_in_it(log: EventLog) -> None:
    state = RunState("virtual", range(6))
    state.take([*log, Record(log[-1].time, "leaving", -1, 1, -1, 0, "</script><b>")])
    text = saved(state)
    assert "</script><b>" not in text
    data = text.split('id="run">')[1].split("</script>")[0]
    assert json.loads(data) == json.loads(json.dumps(state.whole()))


def test_numbers_that_json_has_none_of_reach_no_browser() -> None:
    wild = (("read", float("nan")), ("eta", float("inf")), ("error_bound", 1.0))
    state = RunState("virtual", range(2), price=1e308)
    log = [Record(0.0, "round", 1, -1, -1, 2, "X @ w"), Record(9e9, "done", 1, -1, -1, 0)]
    state.take([*log, Record(9e9, "result", 1, -1, -1, 5, "", wild)])
    data = saved(state).split('id="run">')[1].split("</script>")[0]

    def refuse(name: str) -> None:
        raise AssertionError(name)

    head = json.loads(data, parse_constant=refuse)["head"]
    assert (head["read"], head["eta"], head["cost"]) == (None, None, None)
    assert head["used"] == 5


def test_more_connections_than_it_has_threads_for_are_hung_up_on(page: Page) -> None:
    """Whoever opens them, and says nothing; those who look go on, and others can when they end."""
    stream = Stream(page)
    stream.next()
    silent = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(CONNECTIONS + 5)]
    silent[-1].settimeout(WAIT)
    assert silent[-1].recv(1) == b""
    page.feed.state.engine = "another"  # and the stream goes on
    with page.feed.changed:
        page.feed._notify()
    assert stream.next()[1]["head"]["engine"] == "another"
    for one in silent:
        one.close()

    def answers() -> bool:
        try:
            return get(page, f"/metrics?token={page.token}").status == 200
        except OSError:
            return False

    until(answers, "an answer")


def test_a_reader_that_never_reads_keeps_nobody_waiting(log: EventLog) -> None:
    with Page(log, "virtual", range(6)) as page, socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", page.port))
        ask = f"GET /events?token={page.token} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        stuck.sendall(ask.encode())
        end = log[-1].time + 3_000
        for i in range(3_000):  # far more than the buffers of a connection hold
            log.append(Record(end - 3_000 + i, "leaving", -1, 1, -1, 0, "x" * 2_000))
        log.append(Record(end, "lost", -1, 1, -1, 0, "the last"))
        until(lambda: page.feed.state.now == end, "the page to have read the log")
        assert Stream(page).next()[1]["events"][-1][3] == "worker 1 was lost: the last"
        assert get(page, f"/metrics?token={page.token}").status == 200


def test_a_page_of_a_thousand_workers_does_not_follow_every_task() -> None:
    """The rounds come as fast as the virtual engine makes them: 2,000 records each.

    How little of the master's time that takes is measured by `kofn bench page`.
    """
    with kofn.connect(VirtualEngine(1_000)) as cluster, cluster.page() as page:
        X = cluster.encode(np.zeros((2_000, 1)), k=20)
        w = np.ones(1)
        X @ w  # what is made once
        stream = Stream(page)
        stream.next()
        began, mine, rounds = time.monotonic(), time.thread_time(), 0
        compared = page.feed.state.compared
        # Where very much else runs the first rounds may be too much for it.
        while time.thread_time() - mine < 0.5 or (
            not compared.rounds and time.monotonic() - began < WAIT
        ):
            X @ w
            rounds += 1
        until(lambda: page.feed.state.totals.rounds == rounds + 1, "the last round")
        followed = compared.rounds
    assert 1 <= followed < rounds


@pytest.mark.engine
def test_the_demo_waits_for_somebody_to_look_and_ends_where_nobody_can_press_a_key() -> None:
    args = ["demo", "--page", "--json", "--rounds", "60", "--size", "100", "--price", "1"]
    args += ["--pace", "0.01"]
    code = "from kofn.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stderr is not None
        address = urlsplit(demo.stderr.readline().removeprefix("The page: ").strip())
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=WAIT)
        _opened.append(connection)
        connection.request("GET", f"/metrics?{address.query}")
        assert b"kofn_workers_live 6.0" in connection.getresponse().read()
        connection.request("GET", f"/?{address.query}")
        assert connection.getresponse().read().startswith(b"<!doctype html>")
        out, _ = demo.communicate(timeout=2 * WAIT)
    assert json.loads(out)["lost"] == 3
    assert demo.returncode == 0
