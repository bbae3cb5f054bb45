"""scikit-learn's callbacks: objects that are told of a fit and of each of its iterations.

scikit-learn has them since 1.9. They are looked up when some are set: the module takes
long to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self

from sklearn.utils.metaestimators import available_if

Attributes = Mapping[str, Any]  # those that make an estimator fitted, by name


def _framework() -> Any:
    return import_module("sklearn.callback")


class Hooked:
    """For estimators that take scikit-learn's callbacks."""

    @available_if(lambda _: find_spec("sklearn.callback") is not None)  # type: ignore[untyped-decorator]
    def set_callbacks(self, *callbacks: Any) -> Self:
        """Set scikit-learn's callbacks, in place of those set before; see sklearn.callback.

        They are told of every iteration, and get an estimator as if the fit had ended there.
        """
        _framework().CallbackSupportMixin.set_callbacks(self, *callbacks)
        return self

    @contextmanager
    def _tasks(self, most: int, **told: Any) -> Iterator[Tasks | None]:
        """Tell the callbacks, if there are any, of a fit; `told`: X, y, metadata."""
        if not vars(self).get("_skl_callbacks"):
            yield None
            return
        framework = _framework()
        begin = framework.CallbackSupportMixin._init_callback_context
        try:
            # One more than iterations: the last is begun before it is known to be none.
            tasks = Tasks(begin(self, max_subtasks=most + 1), {"estimator": self, **told})
            yield tasks
            tasks.end()
        finally:
            framework.with_callbacks(lambda _: None)(self)  # the end of what it decorates


class Tasks:
    """A fit and its iterations, each of which is told of when it begins and ends."""

    def __init__(self, context: Any, told: dict[str, Any]) -> None:
        self._context, self._told, self._current = context, told, None
        context.call_on_fit_task_begin(**told)

    def begin(self, name: str, fitted: Callable[[], Attributes]) -> None:
        """An iteration begins where the estimator would have these attributes."""
        self._current = self._context.subcontext(task_name=name)
        self._call("begin", fitted)

    def next(self, name: str, fitted: Callable[[], Attributes]) -> None:
        """An iteration has ended there, and another one begins."""
        self._call("end", fitted)
        self.begin(name, fitted)

    def end(self) -> None:
        """The iteration that began is none, and the fit has ended."""
        current: Any = self._current
        current.call_on_fit_task_end(estimator=self._told["estimator"])
        self._context.call_on_fit_task_end(**self._told, reconstruction_attributes={})

    def _call(self, when: str, fitted: Callable[[], Attributes]) -> None:
        call = getattr(self._current, f"call_on_fit_task_{when}")
        call(**self._told, reconstruction_attributes=fitted)
