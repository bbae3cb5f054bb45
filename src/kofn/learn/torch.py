"""Torch modules, trained with coded sums of gradients over parts of a data set.

    coded = CodedBackward(module, loss, cluster, (images, labels))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(100):
        optimiser.zero_grad()
        coded.backward(stop=kofn.first(11) | kofn.exact())   # adds to .grad, as loss.backward()
        optimiser.step()

Any nn.Module, any loss that is a mean over rows, any optimiser of torch. Parameters travel as one
flat vector, once a round; buffers beside them. Needs torch: pip install 'kofn[torch]'.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import number, plain
from ..cluster import Cluster
from ..codes.assignment import SumCode
from ..errors import BadInput, CannotDo
from ..interrupts import imported
from ..rounds.stop import Stop
from ..sums import Parts, Sum
from ..sums.functions import Fixed, Look
from ..sums.scattered import Scattered
from ..sums.tally import Kind
from .terms import batch_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    Loss = Callable[[Tensor, Tensor], Tensor]


MEAN = "loss(outputs, targets) must be the mean over the rows that it is given"
REMEDY = "Use reduction='mean' without class weights, or divide by len(targets) in the loss."
_TENSORS = ("_parameters", "_buffers", "_modules")  # of a module: looked at apart from the rest


@cache
def _torch() -> Any:
    try:
        return imported("torch")
    except ImportError:
        raise CannotDo(
            "kofn.learn.torch needs torch, which is not installed: pip install 'kofn[torch]'"
        ) from None


class CodedBackward:
    """Gradients of the mean loss over all rows of a data set, as coded sums over its parts.

    data: (inputs, …, targets), arrays or tensors with equally many rows; a part's rows go through
    module(*inputs) at once. loss(outputs, targets) must be the mean over the rows it is given: no
    reduction="sum", no class weights (what can be seen of that is refused). code, parts: see
    `cluster.parts`. device: where workers compute. batch: a step takes this fraction of the rows of
    each part, drawn anew, the same ones wherever the part lies (default: all rows).

    Workers compute with the module as it is at each call: an attribute that was set, a layer that
    was replaced or put into eval(), a frozen parameter that was changed are noticed and sent.
    Batch statistics are those of a part. What a forward pass makes of buffers (running means, say)
    comes back: the mean over the parts that are in the sum, weighted by rows.
    Random layers draw by step and part, so every holder of a part draws the same.
    """

    def __init__(
        self,
        module: Module,
        loss: Loss,
        cluster: Cluster,
        data: Sequence[Any],
        *,
        code: SumCode | None = None,
        parts: int | None = None,
        device: str = "cpu",
        batch: float | None = None,
    ) -> None:
        if batch is not None:
            batch = number(batch, "batch", "in (0, 1]", "It is a fraction of each part.")
        _check_module(module)
        arrays = _check_data(data)
        _check_loss(loss, _copied(module), arrays)
        self.module, self.rows, self.steps = module, len(arrays[0]), 0
        self._loss, self._device, self._batch = loss, device, batch
        self._known: tuple[Look, Term] | None = None
        self._frozen = _frozen(module)
        self.parts: Parts = cluster.parts((*arrays, np.arange(self.rows)), code, parts=parts)

    def backward(self, stop: Stop | None = None, weights: Kind = "covered") -> Sum:
        """Add to .grad of every parameter; return the sum: its value is the mean loss, and `exact`.

        One round. As in torch, gradients add up until `zero_grad`, and parameters that the loss
        does not depend on get none. See `parts.sum` for stop and weights.
        """
        module = self.module
        if _frozen(module) != self._frozen:
            raise BadInput(
                "workers know which parameters are trained; requires_grad of some has changed. "
                "Make another CodedBackward."
            )
        buffers = tuple(map(_array, module.buffers()))
        x = (flat(module), self.steps, *buffers)
        result = self.parts.sum(self._term(), x, stop=stop, weights=weights)
        self.steps += 1
        if result.value is None:  # only time is simulated
            return result
        gradient, loss, used, rows, *moved = result.value
        self._accumulate(gradient / self.rows, used)
        if moved:
            _move(module, moved[0] / rows)
        value = np.asarray(loss / self.rows)
        return Sum(value, result.exact, result.covered, result.missing, result.report)

    def _term(self) -> Term:
        """What workers evaluate: the module as it is now, copied and sent when it has changed."""
        look = Look(_still(self.module))
        if self._known is None or not look.same(self._known[0]):
            module = Fixed(_copied(self.module))
            term = Term(module, self._loss, self._device, self._batch)
            self._known = look.kept(), term
        return self._known[1]

    def _accumulate(self, gradient: NDArray[Any], used: NDArray[Any]) -> None:
        for (p, piece), times in zip(pieces_of(gradient, _trained(self.module)), used, strict=True):
            if times:
                piece = tensor(piece).to(dtype=p.dtype, device=p.device)
                p.grad = piece if p.grad is None else p.grad + piece


@dataclass(eq=False)
class Term:
    """fn of a sum: what a module makes of one part, or of a batch of its rows.

    Flat mean gradient and mean loss, both times the part's rows; which parameters have a gradient;
    the rows; and, if there are buffers, by how much they moved, times the rows.
    """

    module: Fixed
    loss: Loss
    device: str = "cpu"
    batch: float | None = None

    def __call__(self, part: Any, x: Any) -> tuple[Any, ...]:
        torch = _torch()
        vector, step, *buffers = x
        module = self.module.value.to(self.device)
        with torch.no_grad():
            for p, piece in pieces_of(vector, _trained(module)):
                p.copy_(tensor(piece))
                p.grad = None
            for buffer, value in zip(module.buffers(), buffers, strict=True):
                buffer.copy_(tensor(value))
        *inputs, targets, rows = part
        if self.batch is not None:
            some = batch_of(self.batch, rows, step)
            *inputs, targets = (one[some] for one in (*inputs, targets))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step * 1_000_003 + int(rows[0]))
            outputs = module(*(tensor(one).to(self.device) for one in inputs))
            loss = self.loss(outputs, tensor(targets).to(self.device))
            torch.autograd.backward(loss)
        # Frozen or unused parameters have no gradient; a sum needs numbers.
        trained, count = _trained(module), len(rows)
        used = np.asarray([p.grad is not None for p in trained], float)
        pieces = [
            (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).cpu().numpy()
            for p in trained
        ]
        gradient = np.concatenate(pieces, dtype=np.result_type(np.float32, *pieces)) * count
        sums = gradient, np.asarray(loss.item() * count), used * count, np.asarray(float(count))
        if not buffers:
            return sums
        # Most buffers never move: only what does travels.
        before = np.concatenate(buffers, axis=None)
        after = np.concatenate([_array(b) for b in module.buffers()], axis=None)
        where = np.flatnonzero((before != after) & ~((before != before) & (after != after)))
        by = after[where].astype(np.float64) - before[where]
        return *sums, Scattered(where, by * count, before.size)


def _move(module: Module, by: NDArray[Any]) -> None:
    """Move the buffers of a module by so much; whole numbers to the nearest."""
    for buffer, piece in pieces_of(by, list(module.buffers())):
        if piece.any():
            array = _array(buffer)
            new = array + piece
            new = new if array.dtype.kind == "f" else np.rint(new)
            buffer.data.copy_(tensor(new.astype(array.dtype)))


def _still(module: Module) -> list[Any]:
    """All of a module but the values of trained parameters and of buffers, to be looked at."""
    state: list[Any] = []
    for name, one in module.named_modules():
        # Most of what is in a module is empty dicts of hooks.
        kept = [(k, v) for k, v in vars(one).items() if not isinstance(v, dict) or v]
        kept = [(k, v) for k, v in kept if k not in _TENSORS and not _made(v)]
        tensors = [(k, p, p.requires_grad) for k, p in one._parameters.items() if p is not None]
        tensors += [(k, b, True) for k, b in one._buffers.items() if b is not None]
        shapes = [
            (k, tuple(p.shape), str(p.dtype), None if travels else _array(p))
            for k, p, travels in tensors
        ]
        state.append((name, type(one), kept, shapes))
    return state


def _copied(module: Module) -> Module:
    """A copy, without what a forward pass has left behind in it."""
    left = [value for one in module.modules() for value in vars(one).values() if _made(value)]
    return copy.deepcopy(module, {id(value): None for value in left})


def _made(value: Any) -> bool:
    """Whether a value was computed from parameters: torch copies no such."""
    return isinstance(value, _torch().Tensor) and not value.is_leaf


def _array(tensor: Tensor) -> NDArray[Any]:
    return np.asarray(tensor.detach().cpu().numpy())


def _frozen(module: Module) -> list[bool]:
    return [not p.requires_grad for p in module.parameters()]


def flat(module: Module) -> NDArray[Any]:
    """The parameters that are trained, one after the other."""
    return np.concatenate([_array(p) for p in _trained(module)], axis=None)


def _trained(module: Module) -> list[Any]:
    return [p for p in module.parameters() if p.requires_grad]


def pieces_of(vector: NDArray[Any], tensors: list[Any]) -> Iterator[tuple[Any, NDArray[Any]]]:
    """Each tensor, and the entries of a flat vector that are its own, in its shape."""
    at = 0
    for one in tensors:
        yield one, vector[at : at + one.numel()].reshape(one.shape)
        at += one.numel()


def tensor(array: NDArray[Any]) -> Any:
    """The same memory as a tensor. A worker's may be read-only: nobody writes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _torch().from_numpy(np.ascontiguousarray(array).reshape(array.shape))


# What CodedBackward refuses, before any worker is touched.


def _check_module(module: Any) -> None:
    """A module with parameters to train, of types that can travel."""
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise BadInput(f"module must be a torch.nn.Module; got {type(module).__name__}.")
    if any(map(torch.nn.parameter.is_lazy, [*module.parameters(), *module.buffers()])):
        raise BadInput(
            "the sizes of all parameters must be known; this module is lazy. Call it once on a few "
            "rows first."
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise BadInput("module must have parameters to train; none requires a gradient.")
    for name, one in [*module.named_parameters(), *module.named_buffers()]:
        _check_array(one, name)


def _check_data(data: Any) -> tuple[NDArray[Any], ...]:
    """(inputs, …, targets) as arrays."""
    torch = _torch()
    if not isinstance(data, tuple | list):
        tensors = isinstance(data, torch.utils.data.TensorDataset)
        remedy = "Pass data.tensors." if tensors else "Pass (inputs, targets)."
        raise BadInput(
            f"data must be a tuple (inputs, …, targets) of arrays; got {type(data).__name__}. "
            f"{remedy}"
        )
    if len(data) < 2:
        raise BadInput("data must be a tuple (inputs, …, targets); got fewer than two arrays.")
    return tuple(_check_array(one, f"data[{i}]") for i, one in enumerate(data))


def _check_array(one: Any, name: str) -> NDArray[Any]:
    """A tensor or array as an array."""
    try:
        return _array(one) if hasattr(one, "detach") else plain(one, name)
    except TypeError:
        raise BadInput(
            f"parameters, buffers and data travel as NumPy arrays; {name} is {one.dtype} "
            f"({one.layout}), which NumPy does not have. Convert it, as with .float()."
        ) from None


def _check_loss(loss: Any, module: Any, arrays: Sequence[NDArray[Any]]) -> None:
    """A mean over rows, as far as can be seen here."""
    torch = _torch()
    module_like = isinstance(loss, torch.nn.Module)
    given = loss.keywords if isinstance(loss, partial) else vars(loss) if module_like else {}
    reduction = given.get("reduction", "mean")
    if reduction not in ("mean", "batchmean"):
        raise BadInput(f"{MEAN}; this one has reduction={reduction!r}. {REMEDY}")
    F, nn = torch.nn.functional, torch.nn
    by_class = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    fn = loss.func if isinstance(loss, partial) else loss
    if by_class or fn in (F.cross_entropy, F.nll_loss):
        buffers = loss._buffers if by_class else given
        if buffers.get("weight") is not None:
            raise BadInput(f"{MEAN}; with a weight per class it divides by weights. {REMEDY}")
        ignored = given.get("ignore_index", -100)
        if arrays[-1].dtype.kind in "iu" and (arrays[-1] == ignored).any():
            raise BadInput(f"{MEAN}; it leaves out targets of {ignored}. Drop those rows.")
    _try(loss, module, arrays)


def _try(loss: Any, module: Any, arrays: Sequence[NDArray[Any]]) -> None:
    """Two rows at once against one by one. A function that raises is left to the workers' error."""
    torch = _torch()
    targets = arrays[-1]
    if len(targets) < 2:
        return
    other = (targets != targets[0]).reshape(len(targets), -1).any(axis=1)
    rows = [0, int(other.argmax()) if other.any() else 1]
    where = next(module.parameters()).device
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            *inputs, wanted = (torch.from_numpy(one[rows]).to(where) for one in arrays)
            outputs = module.eval()(*inputs)
            if len(outputs) != 2 or not outputs.is_floating_point():
                return
            both = float(loss(outputs, wanted))
            apart = [float(loss(outputs[i : i + 1], wanted[i : i + 1])) for i in (0, 1)]
    except Exception:
        return
    mean = (apart[0] + apart[1]) / 2
    rounding = 1e-4 if torch.finfo(outputs.dtype).bits >= 32 else 1e-2
    if abs(both - mean) > rounding * max(abs(both), abs(mean), 1e-3):
        raise BadInput(
            f"{MEAN}; of two rows it is {both:.4g}, of each alone {apart[0]:.4g} and "
            f"{apart[1]:.4g}. {REMEDY}"
        )
