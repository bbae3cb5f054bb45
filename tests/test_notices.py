"""Sources of notices, against stand-ins that speak the real protocols; and who is told what."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata import EC2, AzureVM, Google, Service, Silent, nobody
from support import examples

import kofn
from kofn.engines.protocol import (
    MasterProtocol,
    Message,
    Values,
    Watch,
    WatchFailed,
    WorkerDown,
    WorkerLeaving,
    WorkerProtocol,
    WorkerUp,
)
from kofn.errors import BadInput, CannotDo
from kofn.model import Event, Leaving
from kofn.notices import (
    AWS,
    GCP,
    Azure,
    DaskRetirement,
    NoAnswer,
    NotHere,
    Notice,
    RayDrain,
    SigTerm,
    Slurm,
    Source,
    _http,
    resolve,
    watch,
)
from kofn.notices.books import OVER
from kofn.notices.watch import Watcher

pytestmark = pytest.mark.slow  # together they take seconds

Kind = Callable[[str], Source]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a stand-in may take longer than a service should."""
    monkeypatch.setattr(_http, "TIMEOUT", 30.0)


ALL: list[Any] = [
    pytest.param(EC2, lambda base: AWS(base=base), id="aws"),
    pytest.param(Google, lambda base: GCP(base=base, hang=1), id="gcp"),
    pytest.param(AzureVM, lambda base: Azure(base=base), id="azure"),
]


# AWS.


@pytest.fixture
def ec2() -> Iterator[EC2]:
    with EC2() as service:
        yield service


def test_aws_says_nothing_before_the_notice_and_then_when(ec2: EC2) -> None:
    source = AWS(base=ec2.base)
    source.probe()
    assert [source.look() for _ in range(3)] == [[], [], []]
    at = ec2.announce(120.0)
    assert source.look() == [Notice(at, "AWS spot: terminate")]
    assert ec2.count("PUT") == 1  # one token for all


@pytest.mark.parametrize("action", ["stop", "hibernate"])
def test_aws_tells_what_will_be_done(ec2: EC2, action: str) -> None:
    source = AWS(base=ec2.base)
    source.probe()
    at = ec2.announce(100.0, action)
    assert source.look() == [Notice(at, f"AWS spot: {action}")]


def test_a_recommendation_is_a_notice_a_stated_time_ahead_and_gives_way_to_one(ec2: EC2) -> None:
    source = AWS(base=ec2.base, rebalance=300.0)
    source.probe()
    since = ec2.recommend(ago=60.0)
    assert source.look() == [Notice(since + 300.0, "AWS recommends to rebalance")]
    at = ec2.announce(120.0)
    assert source.look() == [Notice(at, "AWS spot: terminate")]


def test_recommendations_can_be_ignored(ec2: EC2) -> None:
    source = AWS(base=ec2.base, rebalance=0.0)
    source.probe()
    ec2.recommend()
    assert source.look() == []
    assert ec2.count("GET", "rebalance") == 0


def test_an_expired_token_is_replaced_once(ec2: EC2) -> None:
    source = AWS(base=ec2.base)
    source.probe()
    at = ec2.announce(120.0)
    ec2.valid.clear()
    assert source.look() == [Notice(at, "AWS spot: terminate")]
    assert ec2.count("PUT") == 2
    ec2.first = [(401, "Unauthorized"), None, (401, "Unauthorized")]
    with pytest.raises(NoAnswer, match="status 401"):
        source.look()
    assert ec2.count("PUT") == 3


def test_a_wrong_header_is_refused_by_the_stand_ins() -> None:
    """Or they would prove nothing."""
    from kofn.notices._http import ask

    ttl = "X-aws-ec2-metadata-token-ttl-seconds"
    with EC2() as service:
        assert ask(service.base, "/latest/api/token", {}, "PUT").status == 400
        assert ask(service.base, "/latest/api/token", {ttl: "21601"}, "PUT").status == 400
        assert ask(service.base, "/latest/api/token", {ttl: "9"}, "GET").status == 403
        headers = {ttl: "9", "X-Forwarded-For": "10.0.0.1"}
        assert ask(service.base, "/latest/api/token", headers, "PUT").status == 403
        token = ask(service.base, "/latest/api/token", {ttl: "9"}, "PUT").body
        path, name = "/latest/meta-data/spot/instance-action", "X-aws-ec2-metadata-token"
        assert ask(service.base, path, {}).status == 401
        assert ask(service.base, path, {name: "another"}).status == 401
        assert ask(service.base, path, {name: token}).status == 404
    with Google() as google:
        path = "/computeMetadata/v1/instance/preempted"
        assert ask(google.base, path, {}).status == 403
        assert ask(google.base, path, {"Metadata-Flavor": "Google"}).status == 200
    with AzureVM() as azure:
        path = "/metadata/scheduledevents"
        assert ask(azure.base, f"{path}?api-version=2020-07-01", {}).status == 400
        assert ask(azure.base, path, {"Metadata": "true"}).status == 400


def test_where_aws_is_says_the_environment(ec2: EC2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", ec2.base + "/")
    AWS().probe()
    assert ec2.count("PUT", "/latest/api/token") == 1
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(NotHere, match="AWS_EC2_METADATA_DISABLED"):
        AWS().probe()


def test_no_proxy_is_asked(ec2: EC2, monkeypatch: pytest.MonkeyPatch) -> None:
    with nobody() as address:
        monkeypatch.setenv("http_proxy", address)
        monkeypatch.setenv("HTTP_PROXY", address)
        AWS(base=ec2.base).probe()


# GCP.


@pytest.fixture
def google() -> Iterator[Google]:
    with Google() as service:
        yield service


def test_gcp_waits_for_the_change(google: Google) -> None:
    source = GCP(base=google.base, hang=1)
    source.probe()
    assert source.look() == []  # what the probe has read
    assert source.look() == []  # after a second of hanging
    google.set("TRUE")
    before = time.time()
    (notice,) = source.look()
    assert before + 30.0 <= notice.at <= time.time() + 30.0
    assert source.look() == [notice]  # the same time, however often it is asked
    google.set("FALSE")
    assert source.look() == []
    hanging = [request.query for request in google.asked[1:]]
    assert all(query["wait_for_change"] == "true" and query["last_etag"] for query in hanging)


def test_gcp_misses_no_change_between_two_requests(google: Google) -> None:
    source = GCP(base=google.base, hang=3600)
    source.probe()
    google.set("TRUE")  # nobody hangs there now
    assert source.look() == []  # of the probe
    assert len(source.look()) == 1  # at once: the tag is another


def test_gcp_does_not_hang_beyond_the_time_at_which_a_machine_that_is_there_stays(
    google: Google,
) -> None:
    google.set("TRUE")
    source = GCP(base=google.base, hang=3600, seconds=0.0, linger=0.5)
    source.probe()
    (notice,) = source.look()
    assert source.look() == [notice]
    assert google.asked[-1].query["timeout_sec"] == "1"


def test_gcp_tells_at_once_what_the_probe_has_seen(google: Google) -> None:
    google.set("TRUE")
    source = GCP(base=google.base, hang=3600, seconds=150.0)
    source.probe()
    (notice,) = source.look()
    assert notice.at > time.time() + 100.0
    assert len(google.asked) == 1


def test_gcp_is_known_by_its_header(ec2: EC2, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2.first = [(200, "FALSE")]
    with pytest.raises(NotHere, match="no machine of Google's"):
        GCP(base=ec2.base).probe()
    monkeypatch.setenv("GCE_METADATA_HOST", ec2.base.removeprefix("http://"))
    with pytest.raises(NotHere):
        GCP().probe()
    assert len(ec2.asked) == 2


# Azure.


@pytest.fixture
def azure() -> Iterator[AzureVM]:
    with AzureVM() as service:
        yield service


def test_azure_heeds_events_of_this_machine_only(azure: AzureVM) -> None:
    source = Azure(base=azure.base)
    source.probe()
    assert source.look() == []
    azure.schedule("Preempt", 30.0, "vm0", "vm10", id="other")
    azure.schedule("Freeze", 900.0, "vm1", id="freeze")
    assert source.look() == []
    late = azure.schedule("Reboot", 900.0, "vm0", "vm1", id="reboot")
    assert source.look() == [Notice(late, "Azure: Reboot")]
    soon = azure.schedule("Preempt", 30.0, "vm1")
    assert source.look() == [Notice(soon, "Azure: Preempt")]
    assert azure.count("POST") == 0  # nothing is ever acknowledged


def test_a_cancelled_event_of_azure_takes_the_notice_back(azure: AzureVM) -> None:
    source = Azure(base=azure.base)
    source.probe()
    azure.schedule("Redeploy", 600.0, "vm1")
    assert len(source.look()) == 1
    azure.cancel()
    assert source.look() == []


def test_an_event_of_azure_that_has_begun_keeps_its_time(azure: AzureVM) -> None:
    source = Azure(base=azure.base)
    source.probe()
    at = azure.schedule("Terminate", 300.0, "vm1")
    source.look()
    azure.begin()
    assert source.look() == [Notice(at, "Azure: Terminate")]
    azure.schedule("Reboot", 0.0, "vm1", id="B2")
    azure.begin("B2")  # a failed host: nobody has seen it scheduled
    (first,) = source.look()
    assert first.reason == "Azure: Reboot"
    assert first.at <= time.time()
    assert source.look() == [first]


def test_the_first_request_for_azures_events_may_take_long(azure: AzureVM) -> None:
    source = Azure(base=azure.base)
    source.probe()
    assert source._patience is not None
    assert source._patience > 120.0
    source.look()
    assert source._patience is None


# All clouds.


@pytest.mark.parametrize(("kind", "make"), ALL)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_throttled_service_is_there(kind: type[Service], make: Kind, status: int) -> None:
    with kind() as service:
        source = make(service.base)
        service.first = [(status, "slow down")]
        with pytest.raises(NoAnswer, match=f"status {status}"):
            source.probe()
        source.probe()
        source.look()
        service.first = [(status, "slow down")]
        with pytest.raises(NoAnswer, match=f"status {status}"):
            source.look()
        assert source.look() == []


@pytest.mark.parametrize(("kind", "make"), ALL)
@pytest.mark.parametrize("status", [302, 400, 403, 404, 405])
def test_what_refuses_the_probe_is_not_there(kind: type[Service], make: Kind, status: int) -> None:
    with kind() as service:
        service.first = [(status, "no")]
        with pytest.raises(NotHere, match=rf"it did not .status {status}"):
            make(service.base).probe()
        assert len(service.asked) == 1


@pytest.mark.parametrize("make", [param.values[1] for param in ALL])
def test_where_nobody_listens_it_is_not_there(make: Kind) -> None:
    with nobody() as address, pytest.raises(NotHere, match=r"it did not .*refused"):
        make(address).probe()


@pytest.mark.parametrize("make", [param.values[1] for param in ALL])
def test_what_hangs_is_not_there_unless_it_was_asked_for_by_name(
    make: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_http, "TIMEOUT", 0.1)
    with Silent() as service:
        source = make(service.base)
        with pytest.raises(NoAnswer, match=r"it did not .*timed out"):
            source.probe()
        source.optional = True
        with pytest.raises(NotHere, match=r"it did not .*timed out"):
            source.probe()


# What a server may send in place of an answer, piece by piece, and without an end.
ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "a head": (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", b"x"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "promises": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("begins", ENDLESS)
@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_what_trickles_in_is_not_waited_for_beyond_the_limit(
    begins: str, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_http, "TIMEOUT", 0.2)
    first, piece = ENDLESS[begins]

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(first)
            while True:  # until whoever asked has gone
                connection.sendall(piece)
                time.sleep(pause)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        with pytest.raises(NoAnswer):
            _http.ask(f"http://127.0.0.1:{server.getsockname()[1]}", "/", {})
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("base", ["http://a b", "http://" + "a" * 70, "http://.a", "http://[::1"])
def test_no_name_of_a_host_is_no_service(base: str) -> None:
    with pytest.raises(NotHere):
        AWS(base=base, optional=True).probe()


@pytest.mark.parametrize("base", ["", "https://host", "http://", "http://host:port", "host:80"])
def test_a_wrong_address_is_said_to_be_one(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.notices.clouds.ADDRESS", "nowhere")
    with pytest.raises(NotHere, match="address"):
        AWS(base=base).probe()


GARBAGE = st.one_of(
    st.text(max_size=20),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["action", "time", "noticeTime", "Events", "Resources", "NotBefore"]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    ).map(lambda value: __import__("json").dumps(value)),
)


def test_garbage_is_no_answer() -> None:
    with ExitStack() as stack:
        services = [(stack.enter_context(kind()), make) for kind, make in (p.values for p in ALL)]

        @given(GARBAGE)
        @examples(60)
        def answered(body: str) -> None:
            for service, make in services:
                source = make(service.base)
                source.probe()
                source.look()
                service.first = [(200, body, {"Metadata-Flavor": "Google"})] * 2
                try:
                    found = source.look()
                except NoAnswer:
                    continue
                finally:
                    service.first = []
                assert all(isinstance(notice, Notice) for notice in found)

        answered()


# What a process is told.


def test_slurm_says_so_when_the_end_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    end = int(time.time()) + 110
    for seconds, expected in ((20, []), (120, [Notice(end, "the Slurm job ends")])):
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(end))
        source = Slurm(lead=seconds)
        source.probe()
        assert source.look() == expected


@pytest.mark.engine
def test_an_older_slurm_is_asked_for_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    squeue = tmp_path / "squeue"
    end = int(time.time()) + 60
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(end))
    squeue.write_text(f'#!/bin/sh\n[ "$*" = "-h -j 17 -o %e" ] && echo {text}\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    source = Slurm()
    source.probe()
    assert source.look() == [Notice(end, "the Slurm job ends")]
    squeue.write_text("#!/bin/sh\necho N/A\n")
    with pytest.raises(NotHere, match="time limit"):
        source.probe()


def test_without_slurm_there_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(NotHere, match="no job of Slurm's"):
        Slurm().probe()


def test_rays_nodes_without_a_deadline_have_a_stated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: dict[str, int] = {"a": 5_000_000, "b": 0}
    state = SimpleNamespace(get_draining_nodes=lambda: dict(nodes))
    ray = SimpleNamespace(is_initialized=lambda: True, __version__="9")
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray._private.state", SimpleNamespace(state=state))
    source = RayDrain(seconds=60.0)
    source.probe()
    first, second = source.look()
    assert first == Notice(5000.0, "Ray drains its node", "a")
    assert second.place == "b"
    assert source.look() == [first, second]
    del state.get_draining_nodes
    with pytest.raises(NotHere, match="Ray 9 does not say"):
        RayDrain().probe()


def test_rays_trouble_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> dict[str, int]:
        raise RuntimeError("the GCS is gone")

    state = SimpleNamespace(get_draining_nodes=fails)
    ray = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray._private.state", SimpleNamespace(state=state))
    source = RayDrain()
    source.probe()
    with pytest.raises(NoAnswer, match="the GCS is gone"):
        source.look()


def test_without_ray_or_dask_there_is_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(NotHere, match="no worker of Ray's"):
        RayDrain().probe()
    with pytest.raises(NotHere, match="no worker of Dask's"):
        DaskRetirement().attach(None)


def test_a_retired_worker_of_dask_may_stay_after_all() -> None:
    worker = SimpleNamespace(status=SimpleNamespace(name="running"))
    source = DaskRetirement(seconds=7.0)
    source.attach(worker)
    assert source.look() == []
    worker.status.name = "closing_gracefully"
    (notice,) = source.look()
    assert notice.at <= time.time() + 7.0
    assert source.look() == [notice]
    worker.status.name = "running"
    assert source.look() == []


# What `connect` takes.


def test_names_and_objects_become_sources() -> None:
    own = AWS(rebalance=0.0)
    assert resolve(None) == []
    assert resolve("aws") == [AWS()]
    assert resolve("kubernetes") == resolve("sigterm") == [SigTerm()]
    assert resolve(own) == [own]
    assert resolve(["gcp", own, "slurm"]) == [GCP(), own, Slurm()]
    assert {type(source) for source in resolve("auto")} >= {AWS, GCP, Azure, Slurm, SigTerm}
    assert all(source.optional for source in resolve("auto"))


@pytest.mark.parametrize("wrong", ["asw", 3, ["aws", "asw"], [None], AWS, {"aws": 9}])
def test_an_unknown_name_is_one_clear_error(wrong: Any) -> None:
    with pytest.raises(BadInput, match=r"notices= takes names .*Use aws, azure, dask, .*auto"):
        kofn.connect("local", workers=2, notices=wrong)


def test_simulated_workers_have_no_machines() -> None:
    with pytest.raises(CannotDo, match="'virtual' has no machines to watch"):
        kofn.connect("virtual", notices="aws")


# The loop on a worker.


class Clock:
    """Stands in for the module time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class Scripted(Source):
    """Says what a test wants it to say."""

    name: ClassVar[str] = "scripted"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.says: Any = []

    def look(self) -> Sequence[Notice]:
        if isinstance(self.says, Exception):
            raise self.says
        return list(self.says)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    return clock


class Told:
    """What a watcher tells."""

    def __init__(self, source: Source, said: Sequence[str] = ()) -> None:
        self.leaving: list[tuple[float, str, str]] = []
        self.failed: list[str] = []
        self.watcher = Watcher(source, lambda *what: self.leaving.append(what), self.fail, said)

    def fail(self, why: str) -> None:
        self.failed.append(why)

    def turn(self) -> float:
        return self.watcher.turn()


def test_a_notice_is_told_once_and_again_when_it_changes(clock: Clock) -> None:
    source = Scripted()
    told = Told(source)
    assert told.turn() == source.every
    source.says = [Notice(1030.0, "soon")]
    told.turn()
    clock.now += 5
    told.turn()
    assert told.leaving == [(30.0, "soon", "")]
    source.says = [Notice(1060.0, "later")]
    told.turn()
    assert told.leaving[1:] == [(55.0, "later", "")]


def test_a_notice_that_is_gone_is_taken_back(clock: Clock) -> None:
    source = Scripted()
    told = Told(source)
    source.says = [Notice(1030.0, "a", "x"), Notice(1040.0, "b", "y")]
    told.turn()
    source.says = source.says[1:]
    told.turn()
    assert told.leaving[2:] == [(inf, "it stays", "x")]


def test_who_is_still_there_after_its_time_says_that_it_stays(clock: Clock) -> None:
    source = Scripted(every=5.0, linger=3.0)
    told = Told(source)
    source.says = [Notice(1006.0, "soon")]
    assert told.turn() == 5.0
    clock.now = 1005.0
    assert told.turn() == 4.0  # then its time is over, and more
    clock.now = 1009.0
    told.turn()
    told.turn()
    assert told.leaving == [(6.0, "soon", ""), (inf, "it stays", "")]
    old = Told(source)
    old.turn()
    assert old.leaving == []  # a notice of long ago


def test_its_time_passes_also_while_the_source_is_silent(clock: Clock) -> None:
    source = Scripted(every=1.0, linger=1.0)
    told = Told(source)
    source.says = [Notice(1003.0, "soon")]
    told.turn()
    source.says = NoAnswer("throttled")
    clock.now = 1004.0
    told.turn()
    assert told.leaving[1:] == [(inf, "it stays", "")]


def test_what_a_source_returns_travels_as_plain_types(clock: Clock) -> None:
    source = Scripted()
    told = Told(source)
    source.says = [Notice(np.float64(1100.0), KeyError("spot"), 7)]  # type: ignore[arg-type]
    told.turn()
    ((seconds, reason, place),) = told.leaving
    assert (type(seconds), type(reason), type(place)) == (float, str, str)
    assert (seconds, place) == (100.0, "7")


def test_a_reason_without_end_is_cut_and_a_time_that_is_none_is_told_of(clock: Clock) -> None:
    source = Scripted()
    told = Told(source)
    source.says = [Notice(1100.0, "x" * 10_000_000)]
    told.turn()
    assert [(seconds, len(reason)) for seconds, reason, _ in told.leaving] == [(100.0, 1000)]
    source.says = [Notice(float("nan"), "spot")]
    with pytest.raises(ValueError, match="NaN"):  # by which the watcher ends, and says so
        told.turn()


def test_a_source_may_yield_its_notices(clock: Clock) -> None:
    class Yielding(Scripted):
        def look(self) -> Any:
            yield from super().look()

    source = Yielding()
    told = Told(source)
    source.says = [Notice(1100.0, "spot")]
    told.turn()
    source.says = NoAnswer("busy")
    told.turn()
    assert told.leaving == [(100.0, "spot", "")]  # it stands


def test_what_does_not_answer_is_asked_ever_more_rarely_and_that_is_told_once(clock: Clock) -> None:
    source = Scripted(every=5.0)
    told = Told(source)
    source.says = NoAnswer("status 429")
    waits = [told.turn() for _ in range(1200)]
    assert waits[:6] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert waits[-1] == 60.0
    assert told.failed == ["no answer to 3 requests, and it is asked again (status 429)"]
    source.says = []
    assert told.turn() == 5.0
    source.says = NoAnswer("status 429")
    assert [told.turn() for _ in range(4)] == [5.0, 10.0, 20.0, 40.0]
    assert len(told.failed) == 1


def test_whoever_takes_over_confirms_what_stands_or_takes_it_back(clock: Clock) -> None:
    source = Scripted()
    source.says = NoAnswer("later")
    told = Told(source, ["x", "y"])
    told.turn()
    assert told.leaving == []  # nothing is known yet
    source.says = [Notice(1030.0, "soon", "y")]
    told.turn()
    assert sorted(told.leaving) == [(30.0, "soon", "y"), (inf, "it stays", "x")]


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), SystemExit(1), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["attach", "probe", "look"])
def test_a_source_that_raises_is_told_of_and_given_up(
    where: str, error: BaseException, clock: Clock
) -> None:
    def raises(*_: object) -> Any:
        raise error

    source = Scripted()
    setattr(source, where, raises)
    told = Told(source)
    told.watcher.start(None)
    if where != "attach":
        told.watcher.thread.join(30)
    assert told.failed == [f"it failed and is not asked again: {error!r}"]


def test_an_optional_source_that_is_not_there_says_nothing(clock: Clock) -> None:
    for optional in (True, False):
        source = Scripted(optional=optional)
        source.says = NotHere("not here")
        told = Told(source)
        told.watcher.start(None)
        told.watcher.thread.join(30)
        assert told.failed == ([] if optional else ["not here"])


def test_a_watcher_ends_when_it_is_stopped() -> None:
    told = Told(Scripted(every=3600.0))
    told.watcher.start(None)
    told.watcher.stop()
    told.watcher.thread.join(30)
    assert not told.watcher.thread.is_alive()
    assert told.failed == []


PLACES = ("", "x", "y")
LOOKS = st.lists(
    st.tuples(
        st.none() | st.dictionaries(st.sampled_from(PLACES), st.integers(0, 40)),
        st.integers(0, 20),
    ),
    max_size=12,
)


@given(LOOKS)
@examples(300)
def test_what_was_told_last_is_what_stands(looks: list[tuple[dict[str, int] | None, int]]) -> None:
    """Of every place: the notice of the last answer, unless its time has passed for long."""
    clock, source = Clock(), Scripted(linger=5.0)
    told = Told(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "time", clock)
        answer: dict[str, float] = {}
        for says, later in looks:
            clock.now += later
            if says is None:
                source.says = NoAnswer("not now")
            else:
                answer = {place: clock.now + ahead for place, ahead in says.items()}
                source.says = [Notice(at, "why", place) for place, at in answer.items()]
            before = len(told.leaving)
            told.turn()
            standing = {p: at for p, at in answer.items() if clock.now < at + 5.0}
            said: dict[str, float] = {}
            for seconds, _, place in told.leaving:
                said[place] = seconds
            assert {p for p, seconds in said.items() if seconds != inf} == set(standing)
            for seconds, _, place in told.leaving[before:]:
                assert seconds == inf or seconds == max(0.0, standing[place] - clock.now)


# The master's books.


class PerWorker(Scripted):
    each: ClassVar[Literal["worker", "machine", "cluster"]] = "worker"


class PerCluster(Scripted):
    each: ClassVar[Literal["worker", "machine", "cluster"]] = "cluster"


def watches(master: MasterProtocol) -> list[tuple[int, int, str, tuple[str, ...]]]:
    """Who is to watch which source, for which place, knowing of which."""
    found = []
    for worker, message in master.watches():
        assert isinstance(message, Watch)
        found.append((worker, message.source, message.place, message.said))
    return found


def master_of(*hosts: str, sources: Sequence[Source] = ()) -> MasterProtocol:
    master = MasterProtocol(Values())
    for worker, host in enumerate(hosts):
        master.received(worker, WorkerUp(host), 0.0)
    master.notices.add(sources)
    return master


def test_one_worker_of_each_machine_watches_and_the_next_when_it_is_lost() -> None:
    master = master_of("a", "a", "b", sources=[Scripted()])
    assert watches(master) == [(0, 0, "a", ()), (2, 0, "b", ())]
    master.received(3, WorkerUp("b"), 0.0)
    assert watches(master) == []
    master.received(0, WorkerDown(), 1.0)
    assert watches(master) == [(1, 0, "a", ())]
    master.received(1, WorkerDown(), 1.0)
    assert watches(master) == []
    master.received(4, WorkerUp("a"), 2.0)
    assert watches(master) == [(4, 0, "a", ())]


def test_every_worker_or_one_of_all_watches_where_the_source_says_so() -> None:
    master = master_of("a", "a", "b", sources=[PerWorker(), PerCluster()])
    assert watches(master) == [(0, 0, "", ()), (0, 1, "", ()), (1, 0, "", ()), (2, 0, "", ())]
    master.received(0, WorkerDown(), 1.0)
    assert watches(master) == [(1, 1, "", ())]


def test_workers_of_unknown_machines_watch_each_for_itself() -> None:
    master = master_of("", "", sources=[Scripted()])
    assert [worker for worker, *_ in watches(master)] == [0, 1]


def test_the_same_source_is_watched_once() -> None:
    master = master_of("a", sources=[AWS(), AWS(), AWS(base="http://other")])
    assert len(watches(master)) == 2
    master.notices.add([AWS()])
    assert watches(master) == []


def test_a_notice_of_a_host_is_told_for_all_its_workers_and_those_that_join() -> None:
    master = master_of("a", "a", "b", sources=[Scripted()])
    master.watches()
    assert master.received(0, WorkerLeaving(30.0, "spot", 0, "a"), 5.0) == [
        Leaving(5.0, 0, 35.0, "spot"),
        Leaving(5.0, 1, 35.0, "spot"),
    ]
    assert master.received(3, WorkerUp("a"), 6.0)[1:] == [Leaving(6.0, 3, 35.0, "spot")]
    assert len(master.received(4, WorkerUp("b"), 6.0)) == 1
    assert master.received(0, WorkerLeaving(inf, "it stays", 0, "a"), 7.0) == [
        Leaving(7.0, worker, inf, "it stays") for worker in (0, 1, 3)
    ]


def test_the_first_of_several_notices_counts() -> None:
    master = master_of("a", sources=[Scripted(), PerWorker()])
    assert master.received(0, WorkerLeaving(600.0, "perhaps", 0, "a"), 0.0) != []
    assert master.received(0, WorkerLeaving(30.0, "SIGTERM", 1), 1.0) == [
        Leaving(1.0, 0, 31.0, "SIGTERM")
    ]
    assert master.received(0, WorkerLeaving(inf, "it stays", 0, "a"), 2.0) == []
    assert master.received(0, WorkerLeaving(inf, "it stays", 1), 3.0) == [
        Leaving(3.0, 0, inf, "it stays")
    ]


def test_a_notice_whose_time_is_long_over_hides_no_later_one() -> None:
    master = master_of("a", sources=[Scripted()])
    assert master.received(0, WorkerLeaving(1.0, "announced here"), 0.0) != []
    # Nobody takes that back: no watcher said it. The worker is there all the same.
    assert master.received(0, WorkerLeaving(120.0, "AWS", 0, "a"), 60.0) == [
        Leaving(60.0, 0, 180.0, "AWS")
    ]


def test_who_takes_over_is_told_what_stands() -> None:
    master = master_of("a", "a", "b", sources=[Scripted(), PerCluster()])
    master.watches()
    master.received(0, WorkerLeaving(30.0, "spot", 0, "a"), 5.0)
    master.received(0, WorkerLeaving(30.0, "drain", 1, "b"), 5.0)
    master.received(0, WorkerDown(), 6.0)
    assert watches(master) == [(1, 0, "a", ("",)), (1, 1, "", ("b",))]


def test_trouble_is_logged_once_for_each_source(caplog: pytest.LogCaptureFixture) -> None:
    master = master_of("a", "b", sources=[Scripted()])
    for worker in (0, 1):
        assert master.received(worker, WatchFailed(0, "not here."), 1.0) == []
    assert [record.getMessage() for record in caplog.records] == [
        "notices 'scripted', on worker 0: not here."
    ]


@pytest.mark.parametrize("wrong", [{"name": None}, {"each": "planet"}])
def test_a_source_without_a_name_or_of_nobody_is_refused(wrong: dict[str, Any]) -> None:
    source = type("Odd", (Scripted,), wrong)()
    with pytest.raises(BadInput, match=r"`each` of worker, machine, cluster; Odd has not"):
        MasterProtocol(Values()).notices.add([source])


def test_what_cannot_be_sent_to_workers_is_refused() -> None:
    source = Scripted()

    source.says = threading.Lock()
    with pytest.raises(BadInput, match="cannot be pickled"):
        master_of("a", sources=[source])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "lose", "say", "stay"]),
        st.integers(0, 5),
        st.integers(0, 2),
        st.integers(0, 50),
    ),
    max_size=30,
)


@given(STEPS)
@examples(300)
def test_all_are_watched_and_each_knows_its_first_deadline(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Under any script: one live watcher for each group, and deadlines as a small model says."""
    sources = [Scripted(), PerWorker(), PerCluster()]
    master = master_of(sources=sources)
    host_of: dict[int, str] = {}
    watcher: dict[tuple[int, object], int] = {}
    stands: dict[tuple[int, object], float] = {}  # by source and worker or host
    known: dict[int, float] = {}  # what the events said of each worker
    first: dict[int, float] = {}  # and what they should have said
    for now, (step, worker, source, ahead) in enumerate(steps):
        events: list[Event] = []
        concerned: list[int] = []
        if step == "join" and worker not in host_of:
            host_of[worker] = "ab"[worker % 2]
            concerned = [worker]
            events = master.received(worker, WorkerUp(host_of[worker]), now)
        elif step == "lose" and worker in host_of:
            del host_of[worker]
            known.pop(worker, None)
            first.pop(worker, None)
            stands = {key: at for key, at in stands.items() if key[1] != worker}
            watcher = {key: who for key, who in watcher.items() if who != worker}
            events = master.received(worker, WorkerDown(), now)
        elif step in ("say", "stay") and worker in host_of:
            place = ["", host_of[worker], "ab"[ahead % 2]][[1, 0, 2][source]]
            key = source, place or worker
            seconds = float(ahead) if step == "say" else inf
            stands.pop(key, None)
            if step == "say":
                stands[key] = now + seconds
            message = WorkerLeaving(seconds, "why", source, place)
            concerned = [who for who, host in host_of.items() if key[1] in (who, host)]
            events = master.received(worker, message, now)
        for who in concerned:  # a notice whose time was long ago says nothing any more
            mine = [at for (_, of), at in stands.items() if of in (who, host_of[who])]
            first[who] = min((at for at in mine if at + OVER > now), default=inf)
        for event in events:
            if isinstance(event, Leaving):
                assert known.get(event.worker, inf) != event.deadline
                known[event.worker] = event.deadline
        for who, number, place, _ in watches(master):
            group = (place, who, "")[number]
            assert (number, group) not in watcher
            watcher[number, group] = who
        groups = {(0, host) for host in host_of.values()} | {(1, who) for who in host_of}
        assert watcher.keys() == groups | ({(2, "")} if host_of else set())
        assert all(known.get(who, inf) == first[who] for who in host_of)


# The worker's side of the protocol.


def test_a_worker_that_cannot_tell_says_so() -> None:
    (answer,) = WorkerProtocol(Values()).handle(Watch(0, b"", "", ()))
    assert answer == WatchFailed(0, "this engine's workers cannot tell notices.")


def test_a_source_that_cannot_be_unpickled_is_told_of() -> None:
    sent: list[Message] = []
    protocol = WorkerProtocol(Values(), None, lambda: sent.append)
    assert list(protocol.handle(Watch(3, b"garbage", "", ()))) == []
    (answer,) = sent
    assert isinstance(answer, WatchFailed)
    assert answer.source == 3
    protocol.close()


def test_a_worker_speaks_for_its_place() -> None:
    import cloudpickle

    sent: list[Message] = []
    protocol = WorkerProtocol(Values(), None, lambda: sent.append)
    source = Scripted(every=3600.0)
    source.says = [Notice(time.time() + 3600.0, "spot"), Notice(time.time() + 9e9, "far", "b")]
    assert list(protocol.handle(Watch(1, cloudpickle.dumps(source), "a", ()))) == []
    (watcher,) = protocol._watchers
    protocol.close()
    watcher.thread.join(30)
    leaving = [message for message in sent if isinstance(message, WorkerLeaving)]
    assert [(m.source, m.place, m.reason) for m in leaving] == [(1, "a", "spot"), (1, "b", "far")]


@pytest.mark.parametrize("every", [0, -1.0, float("nan"), inf, "5", None, True])
def test_how_often_a_source_is_asked_is_a_number_of_seconds(every: Any) -> None:
    with pytest.raises(BadInput, match=r"every of AWS must be a number > 0; got"):
        AWS(every=every)


def test_the_other_settings_of_sources_are_numbers_too() -> None:
    for make in (
        lambda: AWS(rebalance=float("nan")),
        lambda: GCP(seconds=-1.0),
        lambda: SigTerm(grace="30"),  # type: ignore[arg-type]
        lambda: Slurm(lead=inf),
        lambda: Azure(linger=-1.0),
    ):
        with pytest.raises(BadInput, match="must be a number >= 0; got"):
            make()
    for odd, rule in (
        (lambda: GCP(hang=1.5), "hang of GCP must be a whole number"),  # type: ignore[arg-type]
        (lambda: AWS(base=3), "base of AWS must be a str"),  # type: ignore[arg-type]
        (lambda: AWS(optional="no"), "optional of AWS must be a bool"),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadInput, match=rule):
            odd()
    assert SigTerm(every=0.0).every == 0.0  # it waits by itself


def test_a_source_may_be_asked_once_in_a_thousand_years() -> None:
    looked, failed = threading.Event(), list[str]()

    @dataclass(kw_only=True)
    class Rare(Source):
        name: ClassVar[str] = "rare"

        def look(self) -> Sequence[Notice]:
            looked.set()
            return []

    watcher = Watcher(Rare(every=1e12), lambda *_: None, failed.append)
    watcher.start(None)
    assert looked.wait(30)
    watcher.stop()
    watcher.thread.join(30)
    assert not watcher.thread.is_alive()
    assert failed == []
