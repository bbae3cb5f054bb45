"""The future work that Wang et al., 2019 name: a network, trained under recorded delays.

A small convolutional network learns MNIST's digits in mini-batches: each of the parts gives a
fraction of its rows, the same ones wherever it lies. Time is simulated from what AWS Lambda workers
really took; gradients are real. A recording's whole batch counts as one step of all parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import BadInput, FractionalRepetition, Uncoded, connect, exact, first
from ..delays import Delays
from ..engines.virtual import VirtualEngine
from ..learn.torch import CodedBackward, Term, flat, pieces_of, tensor
from ..sums.functions import Fixed
from ..sums.rivals import Stale
from . import datasets
from .kept import Kept
from .timing import OnStep
from .training import Memo, Method

RECORDING = "cnn_mbp_Canada_batch256"
TARGET = 0.97
LOOK = ("step", "seconds", "accuracy")
WAITS = (11 / 30, 1 / 2, 2 / 3)  # of the workers: δ


@dataclass(frozen=True)
class Sizes:
    """How much is trained, and how."""

    steps: int = 300
    batch: float = 0.025  # of each part's rows
    rate: float = 0.01  # of Adam
    every: int = 10  # steps between two looks at the test rows
    rows: int = 60_000
    fresh: tuple[int, ...] = (8, 11, 20)  # of the workers: DSAG waits for so many

    @property
    def progress_steps(self) -> int:
        """How often `table` calls `on_step`."""
        return len(methods(30, 1)) + len(self.fresh)


def made_network() -> Any:
    """Two convolutions and two lines, 28 x 28 to ten classes; from the same start each time."""
    import torch

    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 28),
        nn.ReLU(),
        nn.Linear(28, 10),
    )


class _Once(CodedBackward):
    """Coded gradients whose terms are evaluated once, though several workers hold them."""

    _memo: Memo | None = None

    def _term(self) -> Any:
        term = super()._term()
        if self._memo is None or self._memo.term is not term:
            self._memo = Memo(term)
        return self._memo


def images(folder: Path, part: Any, rows: int | None = None) -> tuple[Any, Any]:
    """Images (rows, 1, 28, 28) and labels."""
    pixels, labels = datasets.read_mnist(folder, part)
    shaped = pixels.reshape(-1, 1, 28, 28).astype(np.float32)
    return shaped[:rows], labels.astype(np.int64)[:rows]


def accuracy(module: Any, data: tuple[Any, Any]) -> float:
    """The fraction of the rows that the network has right."""
    import torch

    with torch.no_grad():
        predicted = module(torch.from_numpy(data[0])).argmax(dim=1).numpy()
    return float((predicted == data[1]).mean())


def table(
    folder: Path, n: int, wait: int, sizes: Sizes, on_step: OnStep, kept: Kept
) -> dict[str, Any]:
    """Accuracy against simulated seconds by method, time to the target, and the last accuracy."""
    try:
        import torch as torch

        recording = datasets.recording(folder, RECORDING)
        train, test = images(folder, "train", sizes.rows), images(folder, "test")
    except (BadInput, ImportError) as error:
        for _ in range(sizes.progress_steps):
            on_step("network: left out")
        return {"problem": f"this needs torch, MNIST and recorded timings: {error}"}
    delays = recording.delays(float(n), work="measured")
    runs: dict[str, list[tuple[int, float, float]]] = {}
    for name, method in methods(n, wait).items():
        run = partial(_coded, method, train, test, n, delays, sizes)
        runs[name] = kept(f"network, {name}", run)
        on_step(f"network: {name}")
    for fresh in sizes.fresh:
        run = partial(_stale, min(fresh, n), train, test, n, delays, sizes)
        runs[f"dsag_{fresh}"] = kept(f"network, DSAG, {fresh}", run)
        on_step(f"network: DSAG, {fresh} fresh")
    return _results(runs, n, sizes)


def methods(n: int, wait: int) -> dict[str, Method]:
    """Waiting for all, exact codes, ignoring stragglers, and approximate codes at several δ."""
    two, three = FractionalRepetition(2, "whole"), FractionalRepetition(3, "whole")
    waits = [round(fraction * n) for fraction in WAITS]
    return {
        "uncoded": Method(Uncoded("whole"), exact()),
        "egc2": Method(two, exact()),
        "egc3": Method(three, exact()),
        "ignore": Method(Uncoded("whole"), first(wait)),
        **{f"agc2_{r}": Method(two, first(r) | exact()) for r in waits},
        "agc3": Method(three, first(wait) | exact()),
    }


def _coded(
    method: Method, train: Any, test: Any, n: int, delays: Delays, sizes: Sizes
) -> list[tuple[int, float, float]]:
    """Train by coded sums; (step, seconds, accuracy) at every look."""
    import torch

    module = made_network()
    optimiser = torch.optim.Adam(module.parameters(), lr=sizes.rate)
    engine = VirtualEngine(n, delays=delays)
    seen = []
    with connect(engine) as cluster:
        loss = torch.nn.functional.cross_entropy
        options: Any = {"code": method.code, "parts": n, "batch": sizes.batch}
        coded = _Once(module, loss, cluster, train, **options)
        start = engine.now()
        for step in range(1, sizes.steps + 1):
            optimiser.zero_grad()
            coded.backward(stop=method.stop, weights=method.weights)
            optimiser.step()
            if step % sizes.every == 0:
                seen.append((step, engine.now() - start, accuracy(module, test)))
    return seen


def _stale(
    fresh: int, train: Any, test: Any, n: int, delays: Delays, sizes: Sizes
) -> list[tuple[int, float, float]]:
    """The same by DSAG: each worker's rows in pieces of a batch, which it takes in turn."""
    import torch

    module = made_network()
    optimiser = torch.optim.Adam(module.parameters(), lr=sizes.rate)
    pieces = round(1 / sizes.batch)
    rows = len(train[0])
    engine, seen = VirtualEngine(n, delays=delays), list[tuple[int, float, float]]()
    with connect(engine) as cluster:
        start = engine.now()
        term = Term(Fixed(made_network()), torch.nn.functional.cross_entropy)

        def advance(t: int, time: float, total: Any, covered: float) -> Any:
            _set_gradient(module, total[0] / (covered * rows))
            optimiser.step()
            if t % sizes.every == 0:
                seen.append((t, time - start, accuracy(module, test)))
            return None if t == sizes.steps else (flat(module), t + 1)

        data = (*train, np.arange(rows))
        stale = Stale(cluster, data, parts=n * pieces)
        stale.run(term, (flat(module), 1), advance, fresh, portion=1 / pieces)
    return seen


def _set_gradient(module: Any, gradient: Any) -> None:
    for p, piece in pieces_of(gradient, list(module.parameters())):
        p.grad = tensor(piece).to(p.dtype)


def _results(
    runs: dict[str, list[tuple[int, float, float]]], n: int, sizes: Sizes
) -> dict[str, Any]:
    def reached(run: list[tuple[int, float, float]]) -> float | None:
        return next((seconds for _, seconds, right in run if right >= TARGET), None)

    times = {name: reached(run) for name, run in runs.items()}
    # Of the last looks, so that one step up or down does not decide.
    ends = {name: float(np.mean([right for _, _, right in run[-3:]])) for name, run in runs.items()}
    slow = times["uncoded"]
    return {
        "recording": RECORDING,
        "workers": n,
        "target": TARGET,
        "steps": sizes.steps,
        "seconds_to_target": times,
        "faster_than_uncoded": {
            name: None if slow is None or spent is None else slow / spent
            for name, spent in times.items()
        },
        "final_accuracy": ends,
        "seconds_per_step": {name: run[-1][1] / run[-1][0] for name, run in runs.items()},
        "curves": {
            name: dict(zip(LOOK, map(list, zip(*run, strict=True)), strict=True))
            for name, run in runs.items()
        },
        "parameters": sum(p.numel() for p in made_network().parameters()),
        "means": "a convolutional network on MNIST, Adam, mini-batches of "
        f"{sizes.batch:g} of each part's rows; accuracy on the test rows, its mean over the last "
        "three looks at the end. Time is simulated on the recording, gradients are real",
    }
