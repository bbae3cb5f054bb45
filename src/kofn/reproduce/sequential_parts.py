"""What the parts of a job cost the master and a worker at the published size: really measured.

Encoding and decoding are the master's, multiplying a worker's. With these seconds, simulated time
becomes seconds of a training at the published size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ..delays.stragglers import Pattern
from ..learn.many import alone
from ..learn.network import Network
from ..sequence import SequenceCode
from ..sequence.schemes import Uncoded
from .datasets import Images

Shape = tuple[int, int, int]


def minis_per_job(code: SequenceCode, pattern: Pattern) -> tuple[float, float]:
    """Mean number of uncoded and of coded mini-tasks of a job that are encoded on this pattern.

    By the code's own ledger. One that is given again to the same worker was encoded before.
    """
    ledger = code.ledger(pattern.shape[1])
    seen: set[tuple[int, int]] = set()
    for job, slow in enumerate(pattern.tolist()):
        fine = [slot for slot, late in enumerate(slow) if not late]
        batches = ledger.begin(job)
        for batch in batches:
            seen.update((mini.job, mini.row) for mini in batch.values())
            for slot in fine:
                ledger.deliver(batch[slot])
        if not ledger.may_end(fine):
            fine = list(range(ledger.slots))
            for batch in batches:
                for mini in batch.values():
                    ledger.deliver(mini)
        ledger.end(fine)
    uncoded = sum(row < ledger.k for _, row in seen)
    return uncoded / len(pattern), (len(seen) - uncoded) / len(pattern)


def parts(
    codes: Mapping[str, SequenceCode],
    shapes: Sequence[Shape],
    pattern: Pattern,
    repeats: int,
    on_step: Callable[[str], None],
) -> dict[str, Any]:
    """CPU seconds, means over the shapes of jobs: of a whole product, and by code; one thread.

    `encode`: all mini-tasks of a job; `decode`: weights and blocks, from k random coded results.
    Uncoded mini-tasks are cut out of the operands, which is not called encoding, as in the paper.
    """
    rng = np.random.default_rng(0)
    results: dict[str, Any] = {"codes": {}, "repeats": repeats, "shapes": [list(s) for s in shapes]}
    with threadpool_limits(1):
        factors = {s: (rng.standard_normal(s[:2]), rng.standard_normal(s[1:])) for s in set(shapes)}
        whole = {s: _seconds(partial(np.matmul, *pair), repeats) for s, pair in factors.items()}
        results["whole_job_seconds"] = _mean(whole, shapes)
        for kind, code in codes.items():
            product, coded = code.product, not isinstance(code, Uncoded)
            uncoded, encoded = minis_per_job(code, pattern)
            encode, decode = dict.fromkeys(factors, 0.0), dict.fromkeys(factors, 0.0)
            for shape, (X, Y) in factors.items() if coded else ():
                row = product.k + 1

                def both(X: Any = X, Y: Any = Y, row: int = row, code: Any = product) -> object:
                    return code.encode_left(row, X), code.encode_right(row, Y)

                encode[shape] = encoded * _seconds(both, repeats)
                block = -(-shape[0] // code.x), -(-shape[2] // code.y)
                rows = range(product.k, 2 * product.k)
                replies = {r: rng.standard_normal(block) for r in rows}

                def back(got: Any = replies, s: Shape = shape, code: Any = product) -> object:
                    return code.assemble(code.blocks(code.weights(list(got)), got), (s[0], s[2]))

                decode[shape] = _seconds(back, repeats)
            results["codes"][kind] = {
                "encode_seconds": _mean(encode, shapes),
                "decode_seconds": _mean(decode, shapes),
                "mini_tasks": {"uncoded": uncoded, "coded": encoded},
                "parameters": repr(code),
            }
            on_step(f"encode and decode, {kind}")
    return results


def training_at_full_size(
    widths: Sequence[int], steps: int, batch: int, data: Images, test: Images
) -> dict[str, Any]:
    """Test loss after each step of one network, trained here: what every code computes, too.

    Codes change when a product is there, not what it is: losses agree to 1e-13 (`training`).
    """
    network = Network(widths, 0.1, 0)
    few = test[0][:1000], test[1][:1000]
    losses: list[float] = []
    alone(network.train(*data, steps, batch, lambda step, loss: losses.append(network.loss(*few))))
    return {"test_loss": losses, "widths": list(widths), "steps": steps, "batch": batch}


def _seconds(call: Callable[[], object], repeats: int) -> float:
    """CPU seconds, the least of so many: what else runs on the machine hardly counts."""
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        spent.append(time.process_time() - start)
    return min(spent)


def _mean(seconds: Mapping[Shape, float], shapes: Sequence[Shape]) -> float:
    return float(np.mean([seconds[shape] for shape in shapes]))
