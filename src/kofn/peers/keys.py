"""How connections between machines are encrypted: by the keys of the engine, where it has some.

An engine that speaks TLS has certificates at every process. Its workers' nodes use the same: both
ends of a connection prove by them that they are of the cluster, besides the proof by the token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl


class Keys(NamedTuple):
    """Those of one process, for connections that it makes and for those that it accepts."""

    connect: ssl.SSLContext
    accept: ssl.SSLContext


# Finds a worker's own keys: it is called there, by the thread that does the work.
FindKeys = Callable[[], Keys]


class Encryption(NamedTuple):
    """The keys of an engine: the master's, and how workers find theirs."""

    master: Keys
    find: FindKeys


def read_keys(cert: str, key: str, ca: str) -> Keys:
    """Return the keys in these files: whoever has a certificate of this authority is let in."""
    import ssl  # workers without keys need not load it

    keys = []
    for purpose in (ssl.Purpose.SERVER_AUTH, ssl.Purpose.CLIENT_AUTH):
        context = ssl.create_default_context(purpose, cafile=ca)
        context.load_cert_chain(cert, key)
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        keys.append(context)
    return Keys(*keys)
