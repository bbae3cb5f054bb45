"""The data plane between workers: a node at each, which others reach.

Over TCP between machines; within one by sockets without a port, and large blobs through memory.

A worker that takes part builds a `Node`, which listens. The master learns its address by the
engine, and hands it to the others with the run's token. Whoever connects proves that it knows the
token before anything else is read. What passes is a small JSON header and raw bytes: nothing is
unpickled. One thread serves all connections of a node without ever waiting for one of them, so a
peer that is dead or frozen blocks nobody. What goes over TCP is encrypted where the engine has keys
for it, and only there; see `keys`.
"""

from .kept import Kept as Kept
from .keys import Encryption as Encryption
from .keys import FindKeys as FindKeys
from .keys import Keys as Keys
from .keys import read_keys as read_keys
from .node import Node as Node
from .place import Address as Address
from .place import machine_name as machine_name
