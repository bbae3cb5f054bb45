"""What passes between a master and its workers, and the books that each side keeps. No I/O.

    MasterProtocol.submit(task) -> [(worker, message), …]     messages to be sent, in order
    MasterProtocol.received(worker, message, now) -> [Event]  what a message from a worker means
    WorkerProtocol.handle(message) -> messages                what a worker answers, as it works

A transport carries the messages: in order for each worker, except that a Cancel may overtake. It
also packs the values in them (see Values). The same two objects serve sockets, Ray, Dask, MPI,
threads and the tests.
"""

from .master import MasterProtocol as MasterProtocol
from .messages import KINDS as KINDS
from .messages import NEVER as NEVER
from .messages import Cancel as Cancel
from .messages import Message as Message
from .messages import Outgoing as Outgoing
from .messages import Values as Values
from .messages import WorkerDown as WorkerDown
from .messages import WorkerUp as WorkerUp
from .messages import plain as plain
from .messages import typed as typed
from .worker import WorkerProtocol as WorkerProtocol
