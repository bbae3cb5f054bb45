"""Where a node is: the addresses of this machine, and which one another machine should try."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
_SIOCGIFCONF, _ENTRY = 0x8912, 40  # Linux: the IPv4 addresses of all interfaces


class Address(NamedTuple):
    """How to reach a node. The id is part of the proof: another host may have the same address."""

    id: str  # random, hexadecimal
    machine: str  # see `machine_name`
    hosts: tuple[str, ...]  # IPv4 addresses; any of them may be out of reach from elsewhere
    port: int


def machine_name() -> str:
    """An id that processes share if they reach each other without a network."""
    name = socket.gethostname()
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        name = f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def socket_name(id: str) -> str | None:
    """The name of a node's socket on its own machine; it goes with it. None where there is none."""
    return f"\0kofn-peers-{id}" if sys.platform == "linux" else None


def own_addresses() -> tuple[str, ...]:
    """IPv4 addresses of this machine that others might reach; the loopback if there are none."""
    addresses: list[str] = []
    with suppress(OSError, ImportError):
        import array
        import fcntl

        room = array.array("B", bytes(_ENTRY * 256))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            ask = struct.pack("iL", len(room), room.buffer_info()[0])
            size = struct.unpack("iL", fcntl.ioctl(any_socket, _SIOCGIFCONF, ask))[0]
        names = room.tobytes()
        addresses = [socket.inet_ntoa(names[at + 20 : at + 24]) for at in range(0, size, _ENTRY)]
    if not addresses:
        with suppress(OSError):
            addresses = socket.gethostbyname_ex(socket.gethostname())[2]
    outer = dict.fromkeys(ip for ip in addresses if not ip.startswith("127."))
    return tuple(outer) or (LOOPBACK,)


def in_order(hosts: Sequence[str], mine: Sequence[str]) -> list[str]:
    """The addresses of another node, the likeliest to be reached from here first.

    That is the one that begins like one of our own. One that we have too means another machine: a
    bridge for containers, say.
    """

    def likeness(host: str) -> int:
        theirs = int.from_bytes(socket.inet_aton(host))
        ours = [int.from_bytes(socket.inet_aton(ip)) for ip in mine]
        return max((32 - (theirs ^ own).bit_length() for own in ours if own != theirs), default=-1)

    return sorted(hosts, key=likeness, reverse=True)
