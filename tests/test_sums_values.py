"""What fn may return: numbers of any type, each added as it is; anything else is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import kofn

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def cluster() -> Iterator[kofn.Cluster]:
    with kofn.connect("local", workers=3) as found:
        yield found


KINDS: list[tuple[Any, ...]] = [
    ("i8", "f8"),
    ("f8", "c16"),
    ("?", "f4", "c8"),
    ("u1", "i8", "f2"),
    ("i8", "c16", "u1"),
]


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("backwards", [False, True])
def test_stacks_of_different_types_are_added_as_they_are(
    cluster: kofn.Cluster, kinds: Any, backwards: bool
) -> None:
    # A stack is as wide as its widest term: the later ones may be wider than the first.
    terms = [
        (np.arange(60) % 2 * (1 + 0.5j if kind[0] == "c" else 1)).astype(kind) for kind in kinds
    ]
    terms = terms[::-1] if backwards else terms
    each = [one for kind in terms for one in kind]

    def stacked(parts: Any, x: Any) -> Any:
        made = np.stack(parts)  # of the type that these need
        return made, made[:, None] * np.ones(2, made.dtype)

    for code in (kofn.RandomGroups(1), kofn.LT(), kofn.FractionalRepetition(3)):
        parts = cluster.parts(each, code)
        found = parts.sum(stacked, vectorised=True)
        assert found.exact
        assert found.report.error_bound is not None
        for value in (found.value[0], *found.value[1]):
            # Halves are added in single precision; LT's weights are a decode.
            assert abs(value - sum(map(complex, each))) <= found.report.error_bound * len(each)


def test_whole_numbers_then_fractions(cluster: kofn.Cluster) -> None:
    terms = [1, 2, 3] * 100 + [0.5] * 300
    parts = cluster.parts(terms, kofn.RandomGroups(1))
    found = parts.sum(lambda part, x: np.array(part), vectorised=True)
    assert found.exact
    assert found.value == 750.0


def odd(kind: str) -> Any:
    """What a fn might return that is no array of numbers, made where it is returned."""

    class Labelled:
        """As pandas' are: NumPy takes the values, and the labels are gone."""

        class index:
            equals = None

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.ones(2)

    made: dict[str, Any] = {
        "masked": lambda: np.ma.masked_less(np.arange(2.0), 1),
        "a masked number": lambda: np.ma.masked,
        "masked in a list": lambda: [np.ma.masked_less(np.arange(2.0), 1)] * 2,
        "nothing": lambda: None,
        "no leaves": lambda: (),
        "ragged": lambda: [[1.0], [1.0, 2.0]],
        "objects": lambda: np.array([1.0, None], object),
        "words": lambda: ["a", "b"],
        "dates": lambda: np.zeros(2, "M8[s]"),
        "sparse": lambda: scipy.sparse.eye_array(2, format="csr"),
        "labels": Labelled,
        "masked scattered": lambda: kofn.Scattered(
            np.arange(2), np.ma.masked_less(np.arange(2.0), 1), 4
        ),
        "scattered words": lambda: kofn.Scattered(np.arange(2), np.array(["a", "b"]), 4),
    }
    return made[kind]


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("masked", "it returned MaskedArray with masked entries"),
        ("a masked number", "it returned MaskedConstant with masked entries"),
        ("masked in a list", "it returned list with masked entries"),
        ("nothing", "fn must return numbers.* it returned NoneType"),
        ("no leaves", "an empty tuple is none"),
        ("ragged", "it returned list, of which NumPy makes none: .*inhomogeneous"),
        ("objects", "it returned ndarray of type object"),
        ("words", "it returned list of type <U1"),
        ("dates", "it returned ndarray of type datetime64"),
        ("sparse", "it returned csr_array"),
        ("labels", "knows no labels; fn returned Labelled"),
        ("masked scattered", "numbers that all count; got masked entries"),
        ("scattered words", "it returned Scattered of type <U1"),
    ],
)
def test_values_that_are_no_numbers(
    cluster: kofn.Cluster, kind: str, said: str, vectorised: bool
) -> None:
    make = odd(kind)
    parts = cluster.parts([np.zeros(1)] * 6, kofn.Uncoded())
    with pytest.raises(kofn.WorkerError, match=said):
        parts.sum(lambda part, x: make(), vectorised=vectorised)
    if kind == "no leaves":
        return
    with pytest.raises(kofn.WorkerError, match=said):
        parts.sum(lambda part, x: (np.ones(len(part)), make()), vectorised=vectorised)


def test_parts_keep_their_masks_in_a_stack(cluster: kofn.Cluster) -> None:
    rows = [np.ma.masked_less(np.arange(3.0) + i, 2) for i in range(6)]
    parts = cluster.parts(rows)
    true = sum(row.filled(0).sum() for row in rows)
    assert parts.sum(lambda part, x: part.filled(0).sum(axis=-1)).value == true
    assert parts.sum(lambda part, x: part.filled(0).sum(axis=-1), vectorised=True).value == true
