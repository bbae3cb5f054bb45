"""What CodedBackward refuses, before any worker is touched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput

MEAN = "loss(outputs, targets) must be the mean over the rows that it is given"
REMEDY = "Use reduction='mean' without class weights, or divide by len(targets) in the loss."


def module(torch: Any, module: Any) -> None:
    """A module with parameters to train, of types that can travel."""
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
        array(one, name)


def data(torch: Any, data: Any) -> tuple[NDArray[Any], ...]:
    """(inputs, …, targets) as arrays."""
    if not isinstance(data, tuple | list):
        tensors = isinstance(data, torch.utils.data.TensorDataset)
        remedy = "Pass data.tensors." if tensors else "Pass (inputs, targets)."
        raise BadInput(
            f"data must be a tuple (inputs, …, targets) of arrays; got {type(data).__name__}. "
            f"{remedy}"
        )
    if len(data) < 2:
        raise BadInput("data must be a tuple (inputs, …, targets); got fewer than two arrays.")
    return tuple(array(one, f"data[{i}]") for i, one in enumerate(data))


def array(one: Any, name: str) -> NDArray[Any]:
    """A tensor or array as an array."""
    try:
        return np.asarray(one.detach().cpu().numpy() if hasattr(one, "detach") else one)
    except TypeError:
        raise BadInput(
            f"parameters, buffers and data travel as NumPy arrays; {name} is {one.dtype} "
            f"({one.layout}), which NumPy does not have. Convert it, as with .float()."
        ) from None


def loss(torch: Any, loss: Any, module: Any, arrays: Sequence[NDArray[Any]]) -> None:
    """A mean over rows, as far as can be seen here."""
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
    _try(torch, loss, module, arrays)


def _try(torch: Any, loss: Any, module: Any, arrays: Sequence[NDArray[Any]]) -> None:
    """Two rows at once against one by one. What raises is left to the workers, who tell why."""
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
