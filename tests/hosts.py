"""Several hosts on this machine, for tests of what happens between machines: Linux, as root.

    with Hosts("A", "B", "C", share=[folder]) as hosts:
        server = hosts["A"].start(["dask", "scheduler"])
        hosts["B"].run([sys.executable, "-c", "..."])
        hosts["B"].cut()

A host is a process with name spaces of its own: its own address, host name, process ids, /tmp and
/dev/shm. All else of the file system is the same on all hosts, and so are the folders `share`. A
switch, which is one more name space, connects them with each other, and with nothing else. So two
runs at a time cannot meet, and no name or address outside is taken.

Nothing is left behind, also after a kill -9 of the tests: a host ends when the pipe that this
process holds is closed, with all that runs on it, and its part of the network with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

REPOSITORY = Path(__file__).parents[1]
MOST = 32  # hosts on one switch
_TOOLS = {"ip": "iproute2", **dict.fromkeys(("unshare", "nsenter", "setsid"), "util-linux")}
_START = 300.0  # seconds for a host to come up, or to be gone
_FIRST = (sys.executable, "-I", __file__)  # the first process of a host
_OWN = ("/tmp", "/dev/shm")  # folders of which each host has its own
_BIND, _MOVE, _PRIVATE = 0x1000, 0x2000, 0x44000  # of mount(2); private: with all below


class HostsUnavailable(Exception):
    """Hosts cannot be made here; the text says why."""


def why_not() -> str:
    """Say why hosts cannot be made here, as far as that shows without trying; "" if they can."""
    if sys.platform != "linux":
        return f"hosts are made of Linux's name spaces; this is {sys.platform}"
    if os.geteuid() != 0:
        return f"making hosts takes root; this is user {os.geteuid()}"
    missing = [f"{tool} ({package})" for tool, package in _TOOLS.items() if not shutil.which(tool)]
    return f"hosts need {', '.join(missing)}, which is not installed" if missing else ""


class Host:
    """One host. `address` and `name` are those that other hosts reach it by."""

    def __init__(self, hosts: Hosts, letter: str, number: int) -> None:
        self.letter, self.number = letter, number
        self.name, self.address = f"host{letter}", f"10.77.0.{10 + number}"
        self._hosts, self._port = hosts, f"port{number}"
        self._started: list[subprocess.Popen[Any]] = []
        self._space = _Space("host", self.name, *(str(path) for path in hosts.share))

    def plug_in(self, switch: _Space) -> None:
        """Connect it to the switch. Addresses of all others are known: nobody has to answer."""
        end = f"peer name eth0 address {_mac(self.number)} netns {self._space.pid}"
        switch.ip(
            f"link add {self._port} type veth {end}",
            f"link set {self._port} master switch up",
        )
        self._space.ip(
            "link set lo up",
            f"addr add {self.address}/24 dev eth0",
            "link set eth0 up",
            *(
                f"neigh replace 10.77.0.{10 + n} lladdr {_mac(n)} dev eth0 nud permanent"
                for n in range(MOST)
                if n != self.number
            ),
        )

    def start(
        self,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "/tmp",
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command there, with `env` besides what is needed to run this repository.

        `options` are those of Popen. Use `kill` to end what was started: the process that is
        returned only waits for it, here.
        """
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        paths = f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY / 'tests'}"
        given = {**os.environ, "PATH": path, "PYTHONPATH": paths, "TMPDIR": "/tmp", "HOME": "/tmp"}
        # Not nsenter itself waits: it would stop with what is frozen, and not go on with it.
        wait = ("--no-fork", "--", "setsid", "--fork", "--wait", "env", "-C", cwd)
        words = [*self._space.enter("-m", "-u", "-n", "-i", "-p"), *wait, *command]
        options = {"stdin": subprocess.DEVNULL, **options}
        process = subprocess.Popen(
            [str(word) for word in words],
            env={**given, **(env or {})},
            start_new_session=True,
            **options,
        )
        self._started.append(process)
        return process

    def run(
        self,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        timeout: float = 150.0,
    ) -> str:
        """Run a command to its end and return what it prints; fail where it fails."""
        pipe = subprocess.PIPE
        process = self.start(command, env, stdout=pipe, stderr=pipe, text=True)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            self.kill(process)
            process.communicate()
            raise
        assert process.returncode == 0, f"{command} on {self.name}: {out}{err}"
        return str(out)

    def pids(self) -> list[int]:
        """Processes of this host, by their numbers outside of it."""
        return [pid for pid in self._space.pids() if pid != self._space.pid]

    def kill(self, process: subprocess.Popen[Any], signum: int = signal.SIGKILL) -> None:
        """Send a signal to what `start` has started, not to what waits for it outside."""
        for pid in set(self.pids()) & set(_children(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def kill_all(self) -> None:
        """Kill all that runs on it; its kernel lives, and tells others that nobody is there."""
        self._send(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop all that runs on it; its kernel still acknowledges what arrives."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let what was frozen go on."""
        self._send(signal.SIGCONT)

    def cut(self) -> None:
        """Cut it off: whatever is sent to it, or by it, vanishes."""
        self._hosts.switch.ip(f"link set {self._port} nomaster")  # its own link stays up

    @contextlib.contextmanager
    def fuse(self) -> Iterator[Callable[[], None]]:
        """How to cut it off in no time: cutting it off takes a process, of cores that all share."""
        command = [*self._hosts.switch.enter("-n"), "ip", "-batch", "-"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
            assert process.stdin
            stdin = process.stdin

            def cut() -> None:
                stdin.write(f"link set {self._port} nomaster\n")
                stdin.flush()

            yield cut

    def heal(self) -> None:
        """Connect it again."""
        self._hosts.switch.ip(f"link set {self._port} master switch")

    def off(self) -> None:
        """Switch it off, for good: silent at once."""
        self.cut()
        self.close()

    def close(self) -> None:
        """End it, and all that runs on it."""
        self._space.close()
        for process in self._started:
            process.wait(_START)

    def _send(self, signum: int) -> None:
        done: set[int] = set()
        while new := set(self.pids()) - done:  # again, for who was only just forked
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
            done |= new


class Hosts:
    """Hosts that reach each other and nobody else, by their letters.

    `share`: folders below /tmp that all of them see; this repository and its Python are seen
    anyway. Raises HostsUnavailable where they cannot be made.
    """

    def __init__(self, *letters: str, share: Iterable[str | Path] = ()) -> None:
        if reason := why_not():
            raise HostsUnavailable(reason)
        own = (REPOSITORY, sys.prefix, sys.base_prefix)
        paths = sorted({Path(path).resolve() for path in (*own, *share)})
        self.share = [path for path in paths if path.is_relative_to("/tmp")]
        self._letters, self._hosts = letters, dict[str, Host]()
        self._number = 0

    def __enter__(self) -> Self:
        self.switch = _Space("switch", "switch")
        try:
            self.switch.ip("link add switch type bridge", "link set switch up")
            for letter in self._letters:
                self.add(letter)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, letter: str) -> Host:
        return self._hosts[letter]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def add(self, letter: str) -> Host:
        """Make one more host."""
        assert letter not in self._hosts, f"there is a host {letter}"
        self._number += 1
        host = self._hosts[letter] = Host(self, letter, self._number)
        host.plug_in(self.switch)
        return host

    def close(self) -> None:
        """End all hosts, and all that runs on them."""
        for host in self:
            host.close()
        self.switch.close()


class _Space:
    """A process with name spaces of its own, which live as long as it does."""

    def __init__(self, *arguments: str) -> None:
        kinds = ("--net", "--mount", "--uts", "--pid", "--ipc")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["unshare", *kinds, "--fork", "--kill-child", *_FIRST, *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests, which then end this
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.strip().isdigit():
            self.close()
            raise HostsUnavailable(f"name spaces cannot be made here: {self._said.strip()}")
        self.pid = int(line)
        self._kind = os.readlink(f"/proc/{self.pid}/ns/pid")

    def enter(self, *kinds: str) -> list[str]:
        """Return how to run a command in these of its name spaces."""
        return ["nsenter", "-t", str(self.pid), *kinds]

    def ip(self, *lines: str) -> None:
        """Change its network."""
        command = [*self.enter("-n"), "ip", "-batch", "-"]
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
        if done.returncode:
            raise HostsUnavailable(f"a network cannot be made here: {done.stderr.strip()}")

    def pids(self) -> list[int]:
        """All that runs in it, by the numbers outside of it."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/pid") == self._kind:
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        """End it; the kernel then ends all that runs in it."""
        if not self._process.stdin or self._process.stdin.closed:
            return
        self._process.stdin.close()
        try:
            self._process.wait(_START)
        finally:
            self._process.kill()  # and with it what it has forked
            self._process.wait()
            assert self._process.stdout
            assert self._process.stderr
            self._process.stdout.close()
            self._said = self._process.stderr.read()
            self._process.stderr.close()


def _mac(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == pid:
                found.append(int(entry.name))
    return found


# The first process of a host, which this file is as a program.


def _mount(source: str, target: str, kind: str = "none", flags: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _furnish(name: str, share: Sequence[str]) -> None:
    """Give this process the host's name, files and folders."""
    Path("/proc/sys/kernel/hostname").write_text(name)
    tmp, shm = _OWN
    _mount("tmpfs", shm, "tmpfs")  # put together here, then moved to its place
    for folder in share:
        place = shm + folder.removeprefix(tmp)
        os.makedirs(place, exist_ok=True)
        _mount(folder, place, flags=_BIND)
    names = [f"10.77.0.{11 + n} host{chr(ord('A') + n)}" for n in range(26)]
    own = Path(shm, ".hosts")
    own.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
    _mount(str(own), "/etc/hosts", flags=_BIND)
    os.chmod(shm, 0o1777)
    _mount(shm, tmp, flags=_MOVE)
    _mount("tmpfs", shm, "tmpfs")
    os.chmod(shm, 0o1777)


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _main(kind: str, name: str, *share: str) -> None:
    outer = os.readlink("/proc/self")  # its number outside, which the old /proc still tells
    _mount("none", "/", flags=_PRIVATE)
    if kind == "host":
        _furnish(name, share)
    _mount("proc", "/proc", "proc")
    signal.signal(signal.SIGCHLD, _reap)
    print(outer, flush=True)
    sys.stdin.read()  # until those who made it let go of the other end


if __name__ == "__main__":
    _main(*sys.argv[1:])
