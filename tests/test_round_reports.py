"""A report's words mean the same whatever the round computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kofn
from kofn.arrays.baselines import Replicated
from kofn.delays import PerUnit
from kofn.engines.virtual import VirtualEngine

A = np.random.default_rng(0).standard_normal((24, 24))
w = np.ones(24)


def margin(cluster: kofn.Cluster) -> Any:
    X = cluster.encode(A, k=2, margin=1, late=None)
    X @ w
    return X.report


def stood_in_for(cluster: kofn.Cluster) -> Any:
    X = cluster.encode(A, k=2)
    X @ w
    return X.report


def transpose(cluster: kofn.Cluster) -> Any:
    X = cluster.encode(A, k=2)
    X.T @ w
    return X.report


def copies(cluster: kofn.Cluster) -> Any:
    X = Replicated(cluster, A, 2)
    X @ w
    return X.report


def exact_sum(cluster: kofn.Cluster) -> Any:
    parts = cluster.parts(A, kofn.FractionalRepetition(2))
    return parts.sum(lambda part, x: part.sum(axis=0)).report


def sequence(cluster: kofn.Cluster) -> Any:
    stream = cluster.sequence(kofn.Polynomial(3, 1))
    stream.submit(A, A).result()
    assert stream.report.overdue == ()
    return stream.report


@pytest.mark.parametrize(
    "run", [margin, stood_in_for, transpose, copies, exact_sum, sequence], ids=lambda f: f.__name__
)
def test_late_names_the_workers_that_were_not_waited_for(
    run: Callable[[kofn.Cluster], Any],
) -> None:
    with kofn.connect(VirtualEngine(4, delays=PerUnit(0.01, {2: 1e4}))) as cluster:
        assert run(cluster).late == (2,)


def test_a_product_reports_rows_and_a_sum_parts() -> None:
    with kofn.connect("virtual", workers=4) as cluster:
        product, total = stood_in_for(cluster), exact_sum(cluster)
    assert isinstance(product, kofn.ProductReport)
    assert product.rows_used == 24 == sum(product.rows_read.values())
    assert isinstance(total, kofn.SumReport)
    assert total.parts_used == 4
    assert total.parts_wasted == sum(total.parts_read.values()) - 4
    assert not hasattr(total, "rows_read")


def test_the_old_names_of_a_sequence_are_refused() -> None:
    with (
        kofn.connect("virtual", workers=4) as cluster,
        pytest.raises(TypeError, match="accuracy"),
    ):
        cluster.sequence(kofn.Polynomial(2, 1), accuracy=1e-6)  # type: ignore[call-arg]
