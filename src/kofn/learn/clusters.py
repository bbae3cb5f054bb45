"""The cluster that an estimator was given: it stays in its process, and a pickle says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster, connect
from ..codes.assignment import SumCode
from ..codes.rateless import groups_for
from ..errors import CannotDo
from ..sums.functions import Look

BATCH = 1024  # rows predicted in one sum


@dataclass(frozen=True)
class LeftBehind:
    """Stands for the cluster in an estimator that was pickled or saved: the engine it was on."""

    engine: str

    def __repr__(self) -> str:
        return f"<left behind, on {self.engine!r}>"


class _Here:
    """A value that copies within this process share; a pickle has `instead` in its place."""

    def __init__(self, value: Any, instead: Any) -> None:
        self.value, self.instead = value, instead

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return copy, (self.instead,)


class OnCluster:
    """For estimators with `cluster`, an open Cluster or an engine's name, and `workers`.

    Copies and clones use the same cluster. A pickle holds what was fitted; the cluster and the
    callback are left behind, and what needs the cluster then raises CannotDo.
    """

    cluster: Cluster | str
    workers: int | None

    def __getstate__(self) -> dict[str, Any]:
        base: Any = super()
        state: dict[str, Any] = dict(base.__getstate__())
        state.pop("_kept", None)  # what lies on workers
        state.pop("_last", None)  # what training goes on from, in this process
        if isinstance(cluster := state.get("cluster"), Cluster):
            state["cluster"] = _Here(cluster, LeftBehind(cluster.engine.name))
        if state.get("callback") is not None:
            state["callback"] = _Here(state["callback"], None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        here = {name: v.value if isinstance(v, _Here) else v for name, v in state.items()}
        base: Any = super()
        base.__setstate__(here)

    @contextmanager
    def _opened(self) -> Iterator[Cluster]:
        """The cluster; one that is opened here is closed again."""
        if isinstance(self.cluster, LeftBehind):
            raise CannotDo(
                f"an estimator that was given an open cluster runs on that one, which stays in the "
                f"process that opened it; this {type(self).__name__} was pickled, by joblib's "
                f"processes or by you, or saved, and its cluster on engine {self.cluster.engine!r} "
                f"was left behind. Use n_jobs=1 or joblib.parallel_config('threading'), or give it "
                f"a cluster of this process with set_params(cluster=...)."
            )
        if isinstance(self.cluster, Cluster):
            yield self.cluster
        else:
            with connect(self.cluster, self.workers) as cluster:
                yield cluster


class CodedTerms(OnCluster):
    """For estimators whose predictions are coded sums of terms, which an open cluster keeps."""

    code: SumCode | None

    def _predicted(
        self,
        fn: Callable[[Any, Any], Any],
        inputs: Iterable[Any],
        made_of: Sequence[Any],
        terms: Callable[[], Any],
        count: int,
        looked_at: Any = None,
        vectorised: bool = True,
    ) -> NDArray[np.float64]:
        """Σ fn(term, x) over `count` terms for each x of `inputs`, some rows of its own: (N, ...).

        `terms()` returns the terms as `cluster.parts` takes them. They are placed once, and again
        when an object that they are `made_of` was replaced, or `looked_at` was changed in place.
        """
        with self._opened() as cluster:
            now, look = (cluster, *made_of), Look(looked_at)
            kept = self.__dict__.get("_kept")
            if (
                kept is None
                or kept[1] != self.code
                or list(map(id, kept[0])) != list(map(id, now))
                or not look.same(kept[2])
            ):
                many = len(cluster.workers)
                code = groups_for(count, many) if self.code is None else self.code
                kept = (now, self.code, look.kept(), cluster.parts(terms(), code, parts=count))
                if isinstance(self.cluster, Cluster):
                    self._kept = kept
            sums = [kept[3].sum(fn, x, vectorised=vectorised).value for x in inputs]
        return np.concatenate(sums)


def batches(rows: Any) -> Iterator[Any]:
    """Some rows of an array or a CSR matrix at a time."""
    return (rows[first : first + BATCH] for first in range(0, rows.shape[0], BATCH))
