"""Additive ensembles as coded sums: a fitted forest or boosting, one term a tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn import ensemble as sk
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from ..checks import convertible, is_sparse
from ..codes.assignment import SumCode
from ..errors import BadInput
from ..sums.trees import Tree, terms
from .clusters import CodedTerms, batches

RANDOM = (sk.RandomForestRegressor, sk.RandomForestClassifier)
FORESTS = (*RANDOM, sk.ExtraTreesRegressor, sk.ExtraTreesClassifier)
BOOSTING = (sk.GradientBoostingRegressor, sk.GradientBoostingClassifier)
DIGITS = 12  # that decide on a class: what lies behind them depends on the order of adding up


def _has(method: str) -> Callable[[CodedEnsemble], bool]:
    """Whether the ensemble that is wrapped has this method."""
    return lambda coded: hasattr(coded._model, method)


@dataclass(repr=False, eq=False)
class CodedEnsemble(CodedTerms, BaseEstimator):
    """A random forest, extra trees or gradient boosting, evaluated as a coded sum of trees.

    Its predictions, the methods that it has and the rows that it takes are the ensemble's own;
    classes whose probabilities differ by less than rounding are a tie, and the first one is
    predicted. The trees lie on the workers under `code` (default: kofn.RandomGroups, sized for the
    trees); the sum comes without the slow and the lost. With an open cluster they stay there until
    the ensemble has other trees; with an engine's name a cluster is opened for each call.

    estimator: the ensemble; one that is fitted is used as it is. `fit` fits a clone, `estimator_`,
    which is then used instead.
    """

    estimator: Any
    _: KW_ONLY
    code: SumCode | None = None
    cluster: Any = "local"
    workers: int | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CodedEnsemble:
        """Fit a clone of the ensemble, here; its trees go to the workers when they are asked."""
        _check_kind(self.estimator)
        convertible(X, "X")
        convertible(y, "y")
        self.estimator_ = clone(self.estimator).fit(X, y, sample_weight=sample_weight)
        self.__dict__.pop("_kept", None)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """As the ensemble's own predict."""
        model = self._model
        if not is_classifier(model):
            return self._raw(X)
        if isinstance(model, BOOSTING):
            raw = self._raw(X).round(DIGITS)
            chosen = (raw >= 0).astype(int) if raw.ndim == 1 else raw.argmax(axis=1)
            return np.asarray(model.classes_.take(chosen, axis=0))
        outputs = self._outputs(self._raw(X).round(DIGITS))
        classes = model.classes_ if len(outputs) > 1 else [model.classes_]
        labels = [c.take(p.argmax(axis=1)) for c, p in zip(classes, outputs, strict=True)]
        return np.stack(labels, axis=1) if len(outputs) > 1 else np.asarray(labels[0])

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """As the ensemble's own predict_proba: (N, classes), a list of such for many outputs."""
        raw = self._raw(X)
        if not isinstance(self._model, BOOSTING):
            outputs = self._outputs(raw)
            return outputs if len(outputs) > 1 else outputs[0]
        if raw.ndim > 1:
            return softmax(raw, axis=1)
        up = expit(2 * raw if self._model.loss == "exponential" else raw)
        return np.stack([1 - up, up], axis=1)

    @available_if(_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """As the ensemble's own predict_log_proba."""
        found = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            return [np.log(p) for p in found] if isinstance(found, list) else np.log(found)

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """As the boosting's own decision_function: (N,) or (N, classes)."""
        return self._raw(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy, or R² of a regression."""
        measure = accuracy_score if is_classifier(self._model) else r2_score
        return float(measure(y, self.predict(X), sample_weight=sample_weight))

    @property
    def classes_(self) -> Any:
        """The classes of the ensemble; a list of such for many outputs."""
        return self._model.classes_

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """The ensemble's own, by impurity."""
        return np.asarray(self._model.feature_importances_)

    @property
    def n_features_in_(self) -> int:
        """How many features the ensemble was fitted to."""
        return int(self._model.n_features_in_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The names of the features, if the ensemble was fitted to a frame."""
        return np.asarray(self._model.feature_names_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self._model, "estimators_")

    def __sklearn_tags__(self) -> Any:
        return get_tags(self._model)

    @property
    def _model(self) -> Any:
        """The ensemble that predictions are made with."""
        return vars(self).get("estimator_", self.estimator)

    def _outputs(self, probabilities: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """The probabilities of each output of a forest, which lie side by side."""
        ends = np.cumsum(np.atleast_1d(self._model.n_classes_))
        return np.split(probabilities, ends[:-1], axis=1)

    def _raw(self, X: Any) -> NDArray[np.float64]:
        """Means of a forest's trees, or the boosting's raw predictions."""
        model = self._model
        trees = _fitted(model)  # whatever is fitted meanwhile: these are added up, and so many
        inputs = self._inputs(X)
        placed = trees, lambda: _terms(model, trees), len(trees)
        dense = (x.toarray() if is_sparse(x) else x for x in batches(inputs))
        sums = self._predicted(terms, dense, *placed)
        if isinstance(model, BOOSTING):
            total = np.asarray(model._raw_predict_init(inputs), np.float64)
            total = total + model.learning_rate * sums
            return np.asarray(total.ravel() if total.shape[1] == 1 else total)
        mean: NDArray[np.float64] = sums / len(trees)
        if is_classifier(model) or model.n_outputs_ > 1:
            return mean
        return mean[:, 0]

    def _inputs(self, X: Any) -> Any:
        """The rows, float32 as scikit-learn's trees compare them: those that the ensemble takes."""
        convertible(X, "X")
        known = isinstance(self._model, FORESTS) and not is_sparse(X)
        missing = known and get_tags(self._model.estimators_[0]).input_tags.allow_nan
        finite = "allow-nan" if missing else True
        options = {"dtype": np.float32, "accept_sparse": "csr", "ensure_all_finite": finite}
        return validate_data(self, X, reset=False, **options)


def _check_kind(model: Any) -> None:
    """Refuse an estimator that is not known to be a sum of trees."""
    if not isinstance(model, FORESTS + BOOSTING):
        known = ", ".join(kind.__name__ for kind in FORESTS + BOOSTING)
        raise BadInput(
            f"an additive ensemble is one of {known}; got {type(model).__name__}. For any "
            f"other sum give the terms to cluster.parts yourself."
        )


def _fitted(model: Any) -> tuple[Any, ...]:
    """scikit-learn's trees, those of boosting round by round; BadInput where they do not add up.

    One by one: a refit with warm_start keeps the list and some of what is in it.
    """
    _check_kind(model)
    check_is_fitted(model)
    return tuple(one.tree_ for one in np.ravel(model.estimators_))


def _terms(model: Any, trees: tuple[Any, ...]) -> list[Tree]:
    """The terms of an ensemble: one a tree; boosting of several classes has one a class too."""
    if isinstance(model, FORESTS):
        classes = np.atleast_1d(model.n_classes_) if is_classifier(model) else None
        return [_tree(tree, classes, None, 1) for tree in trees]
    width = model.estimators_.shape[1]
    return [_tree(tree, None, i % width, width) for i, tree in enumerate(trees)]


def _tree(tree: Any, classes: NDArray[Any] | None, column: int | None, width: int) -> Tree:
    if classes is not None:  # how many there are of each output
        value = np.hstack([tree.value[:, i, :count] for i, count in enumerate(classes)])
        starts = np.cumsum(classes) - classes
        value = value / np.repeat(np.add.reduceat(value, starts, axis=1), classes, axis=1)
    elif column is None:
        value = np.asarray(tree.value[:, :, 0], np.float64)
    else:
        value = np.zeros((tree.node_count, width))
        value[:, column] = tree.value[:, 0, 0]
    missing = np.asarray(getattr(tree, "missing_go_to_left", np.zeros(tree.node_count)), bool)
    nodes = (tree.children_left, tree.children_right, tree.feature)
    left, right, feature = (np.asarray(one, np.intp) for one in nodes)
    return Tree(left, right, feature, np.asarray(tree.threshold, np.float64), missing, value)
