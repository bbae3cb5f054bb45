"""Fitted models as saved files: arrays and JSON (kofn.saved), never a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from .. import saved
from ..checks import is_sparse
from ..cluster import Cluster
from ..errors import BadFile, BadInput
from ..files import cause
from .clusters import LeftBehind
from .components import PCA, TruncatedSVD
from .kernel import KernelRidge
from .linear import LinearRegression, LinearSVC, LogisticRegression, Ridge
from .mlp import CodedMLPClassifier

KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Ridge, LinearRegression, LogisticRegression, LinearSVC),
        *(CodedMLPClassifier, KernelRidge, PCA, TruncatedSVD),
    )
}
KIND = "model"
_PAIRS = "pairs"  # of `class_weight`: classes and weights
_LEFT_BEHIND = "left behind"  # of `cluster`: the engine of one that was open
_OPTIONAL = {"feature_names_in_", "solver_", "rank_", "singular_"}  # not of every fit
_COUNT = "arrays"  # of a fitted list: how many arrays there are
_SPARSE = "sparse"  # of a fitted CSR matrix: its shape
_PARTS = ("data", "indices", "indptr")


def save(model: Any, path: object) -> None:
    """Write a fitted model of kofn.learn to a file (a path or URL) that is safe to load.

    It holds the parameters and all that was fitted, as arrays and JSON, and `load` gives the same
    model again. An open cluster and the callback are left behind. Other parameters that are objects
    (a CodedGradient, a code, a RandomState) are refused: set them to text or None first.
    """
    saved.write(path, *_content(model))


def load(path: object) -> Any:
    """Return the model that `save`, or `kofn fit --out`, has written. Nothing in the file is run.

    Raises BadFile where it is cut, altered or of another kind; a pickle, too, is refused.
    """
    arrays, facts = saved.read(path)
    try:
        return _model(arrays, facts)
    except Exception as error:  # whatever a file can raise
        raise BadFile(
            str(path),
            f"a saved model has what it was fitted to, and parameters that go with it; this has "
            f"not ({cause(error)}). Save it anew, or take another copy.",
        ) from error


def pack(model: Any) -> bytes:
    """The bytes of a saved model."""
    return saved.pack(*_content(model))


def _content(model: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    name = type(model).__name__
    if KINDS.get(name) is not type(model):
        raise BadInput(
            f"a saved model is one of {', '.join(KINDS)}; got {name}. Save what scikit-learn has "
            f"fitted by its own means, with skops say."
        )
    check_is_fitted(model)
    arrays: dict[str, NDArray[Any]] = {}
    parameters = {k: _parameter(k, v) for k, v in model.get_params(deep=False).items()}
    names = sorted(vars(model).keys() & _names(type(model)))
    fitted = {name: _fitted(name, getattr(model, name), arrays) for name in names}
    return arrays, {"kind": KIND, "class": name, "parameters": parameters, "fitted": fitted}


def _names(kind: Any) -> set[str]:
    """The names of attributes that fit may set."""
    own = {field.name for field in fields(kind) if not field.init and field.name.endswith("_")}
    return {*own, "n_features_in_", "feature_names_in_"}


def _parameter(name: str, value: Any) -> Any:
    if name == "callback":
        return None
    if isinstance(value, Cluster):
        return {_LEFT_BEHIND: value.engine.name}
    if isinstance(value, LeftBehind):
        return {_LEFT_BEHIND: value.engine}
    if name == "kernel" and callable(value):
        raise BadInput(
            f"a saved model runs no code, so its kernel is one that has a name; got {value!r}. "
            f"Pickle the model, and load that only where you trust the file."
        )
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if name == "class_weight" and isinstance(value, Mapping):
        # In JSON a key would become text.
        return {_PAIRS: [[_parameter("a class", k), float(v)] for k, v in value.items()]}
    if isinstance(value, tuple | list):
        return [_parameter(name, member) for member in value]
    if not isinstance(value, str | int | float | None):
        raise BadInput(
            f"the parameters of a saved model are text, numbers or None; {name} is {value!r}. Set "
            f"another first, by set_params: what was fitted stays."
        )
    return value


def _fitted(name: str, value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """A fitted value as JSON; its arrays are put beside it."""
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        arrays.update((f"{name}{i}", array) for i, array in enumerate(value))
        return {_COUNT: len(value)}
    if is_sparse(value):
        arrays.update((f"{name}_{part}", getattr(value, part)) for part in _PARTS)
        return {_SPARSE: list(value.shape)}
    if isinstance(value, np.floating):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return value.item() if isinstance(value, np.generic) else value
    if value.dtype == object and all(isinstance(one, str) for one in value.ravel()):
        arrays[name] = value.astype(str)
        return "text"  # as Python objects: so pandas' columns and labels come
    arrays[name] = value
    return "array"


def _model(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> Any:
    if facts["kind"] != KIND:
        raise ValueError(f"it is a {facts['kind']}")
    kind = KINDS[facts["class"]]
    given = {name: _given(value) for name, value in facts["parameters"].items()}
    model = kind(**given)
    model._check_parameters()
    names = _names(kind)
    if not names - _OPTIONAL <= facts["fitted"].keys() <= names:
        raise ValueError(f"fit sets {sorted(names)}, and not {sorted(facts['fitted'])}")
    for name, value in facts["fitted"].items():
        if value in ("array", "text"):
            value = arrays[name].astype(object) if value == "text" else arrays[name]
            value = value if value.ndim else value[()]
        elif isinstance(value, dict) and _SPARSE in value:
            value = _sparse(tuple(value[_SPARSE]), *(arrays[f"{name}_{part}"] for part in _PARTS))
        elif isinstance(value, dict):
            value = [arrays[f"{name}{i}"] for i in range(value[_COUNT])]
        setattr(model, name, value)
    _check(model)
    return model


def _sparse(shape: tuple[int, int], data: Any, indices: Any, indptr: Any) -> Any:
    """A CSR matrix of these parts, if they fit together."""
    matrix = scipy.sparse.csr_array((data, indices, indptr), shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def _given(value: Any) -> Any:
    if isinstance(value, dict) and _PAIRS in value:
        return {label: weight for label, weight in value[_PAIRS]}  # noqa: C416
    if isinstance(value, dict):
        return LeftBehind(value[_LEFT_BEHIND])
    return tuple(value) if isinstance(value, list) else value


def _check(model: Any) -> None:
    """Raise unless what was fitted fits together: else a prediction would fail, or be wrong."""
    features, classes = model.n_features_in_, None
    if type(features) is not int:
        raise ValueError("how many features there are is no whole number")
    if "classes_" in _names(type(model)):
        classes = np.asarray(model.classes_)
        if classes.ndim != 1 or len(classes) < 2:
            raise ValueError("a classifier has at least two classes")
    if isinstance(model, CodedMLPClassifier):
        widths = [features, *(len(b) for b in model.intercepts_)]
        expected = [*pairwise(widths), *((width,) for width in widths[1:])]
        arrays = [*model.coefs_, *model.intercepts_]
        right = len(widths) > 1 and widths[-1] == len(model.classes_)
    elif isinstance(model, PCA | TruncatedSVD):
        arrays = [model.components_, model.singular_values_, model.explained_variance_]
        count = len(model.components_)
        expected, right = [(count, features), (count,), (count,)], True
        if isinstance(model, PCA):
            arrays, expected = [*arrays, model.mean_], [*expected, (features,)]
    elif isinstance(model, KernelRidge):
        rows = model.X_fit_.shape[0]
        expected = [(rows, features), (rows, *model.dual_coef_.shape[1:2])]
        arrays, right = [model.X_fit_, model.dual_coef_], True
    else:
        W, b = model.coef_, np.asarray(model.intercept_)
        outputs = W.shape[:-1]  # none for a single target
        expected = [(*outputs, features), b.shape and (outputs or (1,))]
        arrays, right = [W, b], len(outputs) < 2
        if classes is not None:
            right = outputs == ((len(classes),) if len(classes) > 2 else (1,))
    if not right or [each.shape for each in arrays] != expected:
        raise ValueError("its arrays do not fit together")
    if any(each.dtype.kind != "f" for each in arrays):
        raise ValueError("its coefficients are no floating-point numbers")
    names = getattr(model, "feature_names_in_", None)
    if names is not None and names.shape != (features,):
        raise ValueError("there is not a name for each feature")
