"""What passes between a master and its workers, and the books that each side keeps. No I/O.

A transport carries the messages, in order for each worker, except that a Cancel may come before
messages that were sent earlier; it also packs the values in them (see Values).
"""

from .master import MasterProtocol as MasterProtocol
from .messages import KINDS as KINDS
from .messages import NEVER as NEVER
from .messages import Cancel as Cancel
from .messages import Message as Message
from .messages import Outgoing as Outgoing
from .messages import Values as Values
from .messages import Watch as Watch
from .messages import WatchFailed as WatchFailed
from .messages import WorkerDown as WorkerDown
from .messages import WorkerLeaving as WorkerLeaving
from .messages import WorkerUp as WorkerUp
from .messages import plain as plain
from .messages import typed as typed
from .worker import WorkerProtocol as WorkerProtocol
