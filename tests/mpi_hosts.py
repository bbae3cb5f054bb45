#!/usr/bin/env python3
"""Open MPI on several hosts (hosts.py): mpiexec on one of them, by the documented command.

    with Hosts("A", "B", share=[folder]) as hosts, MPIHosts(hosts, folder) as mpi:
        process = mpi.start(["python", "script.py"], {"A": 3, "B": 2})  # ranks on each

mpiexec starts a daemon on every other host by ssh, which is not there: this file, as a program,
stands in for it. It is called where mpiexec runs, as `ssh` would be, with a host and a command, and
cannot enter that host itself. So it passes both on to the tests, by a socket in the folder.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from hosts import Hosts

_SOCKET = "KOFN_TESTS_SSH"  # the variable that names the socket
# What mpiexec needs as root, and what keeps it quiet about ranks that were killed.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_plm_ssh_agent": str(Path(__file__)),
}


class MPIHosts:
    """Runs mpiexec on hosts. `folder` is one that all of them see."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self._folder = hosts, folder
        self._asked = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._asked.bind(str(folder / "ssh"))
        self._asked.listen()
        self._held: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Serve no more; what was started goes on."""
        for held in (self._asked, *self._held):
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()

    def start(
        self, command: Sequence[str | Path], ranks: Mapping[str, int], **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command on so many ranks of each host, by letter; `options` are of Popen."""
        hostfile = self._folder / "hostfile"
        lines = [f"{self.hosts[letter].name} slots={count}" for letter, count in ranks.items()]
        hostfile.write_text("\n".join([*lines, ""]))
        words = ("mpiexec", "--with-ft", "ulfm", "--hostfile", hostfile)
        more = ("--map-by", "slot:oversubscribe", "-n", str(sum(ranks.values())))
        env = {**ENVIRONMENT, _SOCKET: str(self._folder / "ssh"), **options.pop("env", {})}
        return self.hosts[min(ranks)].start([*words, *more, *command], env, **options)

    def _serve(self) -> None:
        """Start what is asked for, on the host where it is asked for."""
        with suppress(OSError):  # until the socket is closed
            while True:
                held, _ = self._asked.accept()
                self._held.append(held)
                with held.makefile() as lines:
                    name, command = json.loads(lines.readline())
                with (self._folder / f"{name}.log").open("a") as log:
                    self.hosts[name.removeprefix("host")].start(
                        ["bash", "-c", command], ENVIRONMENT, stdout=log, stderr=log
                    )


def _main(words: Sequence[str]) -> None:
    """Pass on a host and a command, then stay for as long as mpiexec does: it looks at that."""
    parent = os.getppid()
    names = [i for i, word in enumerate(words) if word.startswith("host")]
    name, command = words[names[0]], " ".join(words[names[0] + 1 :])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.connect(os.environ[_SOCKET])
        asked.sendall(json.dumps([name, command]).encode() + b"\n")
        while os.getppid() == parent:
            time.sleep(0.2)


if __name__ == "__main__":
    _main(sys.argv[1:])
