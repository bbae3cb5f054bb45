"""Replies that cannot be what was asked for: whatever they are, their worker is to blame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kofn
from kofn.arrays.gram import gram
from kofn.engines.base import Engine, Wrapped
from kofn.engines.virtual import VirtualEngine
from kofn.model import Event, Reply

A = np.random.default_rng(0).standard_normal((90, 6))
COLUMNS = np.column_stack([A[:, 0], np.ones(90)])


class Wrong(Wrapped):
    """An engine of which one worker says something else: `form` of the first array of a value."""

    def __init__(self, engine: Engine, worker: int, form: Callable[[Any], Any]) -> None:
        super().__init__(engine)
        self._worker, self._form = worker, form

    def events(self, timeout: float) -> list[Event]:
        return [self._spoilt(event) for event in super().events(timeout)]

    def _spoilt(self, event: Event) -> Event:
        if type(event) is not Reply or event.value is None or event.worker != self._worker:
            return event
        value = event.value
        if isinstance(value, tuple):
            return event._replace(value=(self._form(value[0]), *value[1:]))
        return event._replace(value=self._form(value))


def total(part: Any, x: Any) -> Any:
    return part.sum(axis=0)


def both(part: Any, x: Any) -> Any:
    return part.sum(axis=0), part.sum()


def scattered(part: Any, x: Any) -> Any:
    return kofn.Scattered(np.arange(6), part.sum(axis=0), 6)


def squares(cluster: kofn.Cluster) -> Any:
    found = gram(cluster.encode(A, k=3), COLUMNS)
    assert found is not None
    assert found.part == pytest.approx(2 / 3)  # without a worker's block
    assert not found.whole
    rest = np.delete(np.arange(90), np.arange(30, 60))
    assert np.allclose(found.squares, A[rest].T @ A[rest])
    return None


def sequence(cluster: kofn.Cluster) -> Any:
    stream = cluster.sequence(code=kofn.DIP(x=4, y=1, delay=1, lam=3))
    return [job.result() for job in [stream.submit(A, A.T) for _ in range(3)]]


def coded_sum(fn: Any, **options: Any) -> Callable[[kofn.Cluster], Any]:
    code = kofn.FractionalRepetition(c=2)
    return lambda cluster: cluster.parts(A, code=code, parts=6).sum(fn, **options).value


def product(**options: Any) -> Callable[[kofn.Cluster], Any]:
    return lambda cluster: cluster.encode(A, k=3, **options) @ np.ones(6)


WORKS: dict[str, tuple[Callable[[kofn.Cluster], Any], Any]] = {
    "X w": (product(), A.sum(axis=1)),
    "X B": (lambda cluster: cluster.encode(A, k=3) @ np.eye(6)[:, :2], A[:, :2]),
    "X w, not finite": (product(check_finite=False), A.sum(axis=1)),
    "X w, probed": (product(verify="probe"), A.sum(axis=1)),
    "X w, parity": (product(verify="parity", margin=2), A.sum(axis=1)),
    "X.T z": (lambda cluster: cluster.encode(A, k=3).T @ np.ones(90), A.sum(axis=0)),
    "rows": (lambda cluster: cluster.encode(A, k=3).toarray(), A),
    "Gram": (squares, None),
    "sum": (coded_sum(total), A.sum(axis=0)),
    "sum of tuples": (coded_sum(both), (A.sum(axis=0), A.sum())),
    "scattered sum": (coded_sum(scattered), A.sum(axis=0)),
    "audited sum": (coded_sum(total, verify=1.0), A.sum(axis=0)),
    "LT": (
        lambda cluster: cluster.parts(A, code=kofn.LT(symbols=72), parts=18).sum(total).value,
        A.sum(axis=0),
    ),
    "sequence": (sequence, [A @ A.T] * 3),
}
FORMS: dict[str, Callable[[Any], Any]] = {
    "too short": lambda value: np.zeros((0, *value.shape[1:])),
    "too long": lambda value: np.zeros((value.shape[0] + 1, *value.shape[1:])),
    "no shape": lambda value: np.array(0.5),
    "words": lambda value: np.full(value.shape, "nan"),
    "objects": lambda value: np.full(value.shape, None),
    "no array": lambda value: {},
    "list": lambda value: [0.5],
    "None": lambda value: None,
}
# A function of a sum may return any numbers, in any shape.
OF_PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "whole numbers": lambda value: np.ones(value.shape, int),
    "complex numbers": lambda value: np.ones(value.shape, complex),
    "one axis more": lambda value: np.ones((1, *value.shape)),
    "axes in another order": lambda value: np.ones((*value.shape[1:], value.shape[0], 1)),
    "list of as many": lambda value: np.ones(value.shape).tolist(),
}
PRODUCTS = ("X w", "X B", "X w, not finite", "X.T z", "rows", "Gram", "sequence")


CASES = [(work, form) for work in WORKS for form in FORMS]
CASES += [(work, form) for work in PRODUCTS for form in OF_PRODUCTS]


@pytest.mark.parametrize(("work", "form"), CASES)
def test_a_reply_of_another_form_is_its_workers_fault(work: str, form: str) -> None:
    run, right = WORKS[work]
    with kofn.connect(Wrong(VirtualEngine(6), 1, (FORMS | OF_PRODUCTS)[form])) as cluster:
        value = run(cluster)
        wrong = {record.worker for record in cluster.log if record.kind == "wrong"}
    assert wrong == {1}
    if right is not None:
        for one, other in zip(
            *((v if isinstance(v, tuple | list) else [v]) for v in (value, right)), strict=True
        ):
            assert np.allclose(one, other)
