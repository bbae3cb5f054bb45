"""The metadata services of clouds: each is asked over HTTP, from the machine itself."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any, ClassVar
from urllib.parse import quote

from ._http import ADDRESS, Answer, ask, probing, read, refused
from .base import NotHere, Notice, Source


@dataclass(kw_only=True)
class AWS(Source):
    """EC2's spot notices, two minutes ahead, and its rebalance recommendations.

    A recommendation has no deadline, and is often followed by nothing: it counts as a notice
    `rebalance` seconds ahead, which is taken back afterwards; 0 ignores recommendations. `base`:
    where the service is, if not where AWS_EC2_METADATA_SERVICE_ENDPOINT says, or at its address.
    """

    name: ClassVar[str] = "aws"
    base: str = ""
    rebalance: float = 600.0

    def probe(self) -> None:
        """Fetch a token."""
        if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            raise NotHere("AWS_EC2_METADATA_DISABLED is set.")
        self._at = self.base or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ADDRESS
        remedy = "On EC2, see that it is on; in a container, its hop limit may have to be 2."
        with probing(self, "EC2's metadata service must give a token", remedy):
            self._renew()

    def look(self) -> Sequence[Notice]:
        """Ask for a notice first, then for a recommendation."""
        body = self._get("spot/instance-action")
        if body is not None:
            action, at = read(body, lambda data: (str(data["action"]), _unix(data["time"])))
            return [Notice(at, f"AWS spot: {action}")]
        body = self._get("events/recommendations/rebalance") if self.rebalance > 0 else None
        if body is None:
            return []
        at = read(body, lambda data: _unix(data["noticeTime"]))
        return [Notice(at + self.rebalance, "AWS recommends to rebalance")]

    def _renew(self) -> None:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
        answer = ask(self._at, "/latest/api/token", ttl, "PUT")
        token = answer.body.strip()
        if answer.status != 200 or not (token.isascii() and token.isprintable() and token):
            raise refused(answer)
        self._token = token

    def _get(self, what: str) -> str | None:
        """Return the answer of the service, None where it has nothing to announce."""
        answer = self._ask(what)
        if answer.status == 401:  # the token has expired
            self._renew()
            answer = self._ask(what)
        if answer.status not in (200, 404):
            raise refused(answer)
        return answer.body if answer.status == 200 else None

    def _ask(self, what: str) -> Answer:
        return ask(self._at, f"/latest/meta-data/{what}", {"X-aws-ec2-metadata-token": self._token})


@dataclass(kw_only=True)
class GCP(Source):
    """Compute Engine's preemption of spot machines, `seconds` ahead.

    Use 150 where the machine was created with a notice duration of 120 s. `base`: where the service
    is, if not at the host that GCE_METADATA_HOST names, or at its address. One request hangs there
    until something changes, at most `hang` seconds.
    """

    name: ClassVar[str] = "gcp"
    base: str = ""
    seconds: float = 30.0
    hang: int = 20
    every: float = 0.5

    def probe(self) -> None:
        """Read the value plainly, with its tag."""
        host = os.environ.get("GCE_METADATA_HOST")
        self._at = self.base or (f"http://{host}" if host else ADDRESS)
        self._tag = ""
        self._gone_at = 0.0  # when the machine goes, once that is known
        self._fresh = True  # what was read has not been passed on
        remedy = "This may be no machine of Google's."
        with probing(self, "Compute Engine's metadata service must know of preemption", remedy):
            self._read("")

    def look(self) -> Sequence[Notice]:
        """Wait for a change of the value that was seen last."""
        if not self._fresh:
            # Without the tag, a change between two requests would be missed.
            tag = f"&last_etag={quote(self._tag)}" if self._tag else ""
            left = self._gone_at + self.linger - time.time()  # until it is clear that it stays
            hang = min(self.hang, max(1, ceil(left))) if left > 0 else self.hang
            wait = f"?wait_for_change=true&timeout_sec={hang}{tag}"
            self._read(wait, timeout=hang + 5.0)
        self._fresh = False
        return [Notice(self._gone_at, "preempted by GCP")] if self._gone_at else []

    def _read(self, wait: str, timeout: float | None = None) -> None:
        path = f"/computeMetadata/v1/instance/preempted{wait}"
        answer = ask(self._at, path, {"Metadata-Flavor": "Google"}, timeout=timeout)
        value = answer.body.strip()
        google = answer.headers.get("metadata-flavor") == "Google"
        if answer.status != 200 or not google or value not in ("TRUE", "FALSE"):
            raise refused(answer)
        self._tag = answer.headers.get("etag", "")
        if value == "FALSE":
            self._gone_at = 0.0
        elif not self._gone_at:
            self._gone_at = time.time() + self.seconds


@dataclass(kw_only=True)
class Azure(Source):
    """Azure's scheduled events: Preempt, Terminate, Reboot and Redeploy of this machine.

    A Freeze is not among them: a machine that stands still for seconds is a straggler. Events are
    never acknowledged, which would make them start earlier. `base`: where the service is.
    """

    name: ClassVar[str] = "azure"
    base: str = ADDRESS
    every: float = 1.0

    _kinds: ClassVar[frozenset[str]] = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})

    def probe(self) -> None:
        """Ask for the machine's own name: events of others are shown here, too."""
        self._times: dict[str, float] = {}  # of events, by their ids
        # The first request for events switches them on, which may take two minutes.
        self._patience: float | None = 130.0
        remedy = "This may be no machine of Azure's."
        with probing(self, "Azure's metadata service must tell this machine's name", remedy):
            answer = self._ask("instance/compute/name?api-version=2021-02-01&format=text")
            self._name = answer.body.strip()
            if not self._name:
                raise refused(answer)

    def look(self) -> Sequence[Notice]:
        """Return the first of the events that name this machine."""
        answer = self._ask("scheduledevents?api-version=2020-07-01", self._patience)
        self._patience = None
        return sorted(read(answer.body, self._notices))[:1]

    def _ask(self, what: str, timeout: float | None = None) -> Answer:
        answer = ask(self.base, f"/metadata/{what}", {"Metadata": "true"}, timeout=timeout)
        if answer.status != 200:
            raise refused(answer)
        return answer

    def _notices(self, document: Any) -> list[Notice]:
        from email.utils import parsedate_to_datetime  # takes a while: only where it is used

        notices, times = [], {}
        for event in document["Events"]:
            if self._name in [*event["Resources"]] and event["EventType"] in self._kinds:
                id, begins = event["EventId"], event["NotBefore"]
                if begins:
                    at = parsedate_to_datetime(begins).timestamp()
                else:  # it has begun, and has no time any more
                    at = self._times.get(id, time.time())
                times[id] = at
                notices.append(Notice(at, f"Azure: {event['EventType']}"))
        self._times = times
        return notices


def _unix(text: str) -> float:
    """Return a time like 2026-09-18T08:22:00Z in Unix seconds."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
