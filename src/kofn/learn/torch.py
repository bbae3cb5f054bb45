"""Torch modules, trained with coded sums of gradients over parts of a data set.

    coded = CodedBackward(module, loss, cluster, (images, labels))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(100):
        coded.backward(stop=kofn.first(11) | kofn.exact())   # fills .grad, as loss.backward() does
        optimiser.step()

Any nn.Module, any loss, any optimiser of torch. Parameters travel as one flat vector, once a round;
buffers beside them. Needs torch: pip install 'kofn[torch]'.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster
from ..codes.assignment import SumCode
from ..errors import BadInput, CannotDo
from ..rounds.stop import Stop
from ..sums import Parts, Sum
from ..sums.tally import Kind

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    Loss = Callable[[Tensor, Tensor], Tensor]


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise CannotDo(
            "kofn.learn.torch needs torch, which is not installed: pip install 'kofn[torch]'"
        ) from None
    return torch


class CodedBackward:
    """Gradients of the mean loss over all rows of a data set, as coded sums over its parts.

    data: (inputs, …, targets), arrays or tensors with equally many rows; a part's rows go through
    module(*inputs) at once. loss(outputs, targets) is the mean over the rows it is given. code,
    parts: see `cluster.parts`. device: where workers compute.

    Buffers (running means, say) are sent as they are here; what workers make of them stays there.
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
    ) -> None:
        torch = _torch()
        if not isinstance(module, torch.nn.Module):
            raise BadInput(f"module must be a torch.nn.Module; got {type(module).__name__}.")
        if not any(p.requires_grad for p in module.parameters()):
            raise BadInput("module must have parameters to train; none requires a gradient.")
        if isinstance(data, np.ndarray | torch.Tensor) or len(data) < 2:
            raise BadInput("data must be a tuple (inputs, …, targets); got fewer than two arrays.")
        arrays = tuple(_array(one) for one in data)
        self.module, self.rows, self.steps = module, len(arrays[0]), 0
        self.parts: Parts = cluster.parts((*arrays, np.arange(self.rows)), code, parts=parts)
        self._term = Term(copy.deepcopy(module), loss, device)

    def backward(self, stop: Stop | None = None, weights: Kind = "covered") -> Sum:
        """Set .grad of every parameter; return the sum: its value is the mean loss, and `exact`.

        One round. See `parts.sum` for stop and weights.
        """
        torch = _torch()
        module = self.module
        buffers = tuple(b.detach().cpu().numpy() for b in module.buffers())
        x = (flat(module), self.steps, module.training, *buffers)
        found = self.parts.sum(self._term, x, stop=stop, weights=weights)
        self.steps += 1
        if found.value is None:  # only time is simulated
            return found
        gradient, loss = found.value
        at = 0
        for p in _trained(module):
            piece = torch.from_numpy(gradient[at : at + p.numel()] / self.rows)
            p.grad = piece.view(p.shape).to(dtype=p.dtype, device=p.device)
            at += p.numel()
        value = np.asarray(loss / self.rows)
        return Sum(value, found.exact, found.covered, found.missing, found.report)


@dataclass(eq=False)
class Term:
    """fn of a sum: flat gradient and loss, both times the rows, of a module on one part."""

    module: Module
    loss: Loss
    device: str = "cpu"

    def __call__(self, part: Any, x: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        torch = _torch()
        vector, step, training, *buffers = x
        module = self.module.to(self.device).train(training)
        with torch.no_grad():
            at = 0
            for p in _trained(module):
                p.copy_(_tensor(vector[at : at + p.numel()]).view(p.shape))
                p.grad = None
                at += p.numel()
            for buffer, value in zip(module.buffers(), buffers, strict=True):
                buffer.copy_(_tensor(value))
        *inputs, targets, rows = part
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step * 1_000_003 + int(rows[0]))
            outputs = module(*(_tensor(one).to(self.device) for one in inputs))
            loss = self.loss(outputs, _tensor(targets).to(self.device)) * len(rows)
            torch.autograd.backward(loss)
        # Frozen or unused parameters have no gradient; a sum needs numbers.
        pieces = [
            (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).cpu().numpy()
            for p in _trained(module)
        ]
        return np.concatenate(pieces), np.asarray(loss.item())


def flat(module: Module) -> NDArray[Any]:
    """The parameters that are trained, one after the other."""
    return np.concatenate([p.detach().cpu().numpy().reshape(-1) for p in _trained(module)])


def _trained(module: Module) -> list[Any]:
    return [p for p in module.parameters() if p.requires_grad]


def _array(one: Any) -> NDArray[Any]:
    return np.asarray(one.detach().cpu().numpy() if hasattr(one, "detach") else one)


def _tensor(array: NDArray[Any]) -> Any:
    """The same memory as a tensor; that workers may only read theirs is fine: nobody writes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _torch().from_numpy(np.ascontiguousarray(array).reshape(array.shape))
