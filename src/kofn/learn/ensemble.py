"""Additive ensembles as coded sums: a fitted forest or boosting, one term a tree."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn import ensemble as sk
from sklearn.base import BaseEstimator, is_classifier
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import check_array, check_is_fitted

from ..checks import convertible
from ..codes.assignment import SumCode
from ..errors import BadInput
from ..sums.trees import Tree, terms
from .clusters import CodedTerms, batches

RANDOM = (sk.RandomForestRegressor, sk.RandomForestClassifier)
FORESTS = (*RANDOM, sk.ExtraTreesRegressor, sk.ExtraTreesClassifier)
BOOSTING = (sk.GradientBoostingRegressor, sk.GradientBoostingClassifier)
DIGITS = 12  # that decide on a class: what lies behind them depends on the order of adding up


@dataclass(repr=False, eq=False)
class CodedEnsemble(CodedTerms, BaseEstimator):
    """A fitted random forest, extra trees or gradient boosting, evaluated as a coded sum of trees.

    predict, predict_proba, decision_function and score are the ensemble's own; classes whose
    probabilities differ by less than rounding are a tie, and the first one is predicted. The trees
    lie on the workers under `code` (default: kofn.RandomGroups, sized for the trees); the sum comes
    without the slow and the lost. With an open cluster they stay there until the ensemble has other
    trees; with an engine's name a cluster is opened for each call.
    """

    estimator: Any
    _: KW_ONLY
    code: SumCode | None = None
    cluster: Any = "local"
    workers: int | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CodedEnsemble:
        """Fit the ensemble itself, here; its trees go to the workers when they are asked."""
        convertible(X, "X")
        convertible(y, "y")
        self.estimator.fit(X, y, sample_weight=sample_weight)
        self.__dict__.pop("_kept", None)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """As the ensemble's own predict."""
        if not is_classifier(self.estimator):
            return self._raw(X)
        model = self.estimator
        if isinstance(model, BOOSTING):
            raw = self.decision_function(X).round(DIGITS)
            chosen = (raw >= 0).astype(int) if raw.ndim == 1 else raw.argmax(axis=1)
        else:
            chosen = self._raw(X).round(DIGITS).argmax(axis=1)
        return np.asarray(model.classes_.take(chosen, axis=0))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """As the ensemble's own predict_proba (N, classes)."""
        self._only_for_classifiers("predict_proba")
        if not isinstance(self.estimator, BOOSTING):
            return self._raw(X)
        raw = self.decision_function(X)
        if raw.ndim > 1:
            return np.asarray(softmax(raw, axis=1))
        up = expit(2 * raw if self.estimator.loss == "exponential" else raw)
        return np.stack([1 - up, up], axis=1)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """As the boosting's own decision_function: (N,) or (N, classes)."""
        self._only_for_classifiers("decision_function")
        if not isinstance(self.estimator, BOOSTING):
            raise BadInput(
                "decision_function is for gradient boosting; a forest has probabilities."
            )
        return self._raw(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy, or R² of a regression."""
        measure = accuracy_score if is_classifier(self.estimator) else r2_score
        return float(measure(y, self.predict(X), sample_weight=sample_weight))

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes of the ensemble."""
        return np.asarray(self.estimator.classes_)

    @property
    def n_features_in_(self) -> int:
        """How many features the ensemble was fitted to."""
        return int(self.estimator.n_features_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self.estimator, "estimators_")

    def __sklearn_tags__(self) -> Any:
        return self.estimator.__sklearn_tags__()

    def _only_for_classifiers(self, what: str) -> None:
        if not is_classifier(self.estimator):
            raise BadInput(f"{what} is for classifiers; {type(self.estimator).__name__} is none.")

    def _raw(self, X: Any) -> NDArray[np.float64]:
        """Means of a forest's trees, or the boosting's raw predictions."""
        model = self.estimator
        trees = _fitted(model)  # whatever is fitted meanwhile: these are added up, and so many
        convertible(X, "X")
        # Trees compare in single precision, as scikit-learn's do; missing values may be theirs.
        inputs = check_array(X, dtype=np.float32, ensure_all_finite=False)
        if inputs.shape[1] != model.n_features_in_:
            raise BadInput(
                f"X must have the {model.n_features_in_} features that the ensemble was fitted "
                f"to; got {inputs.shape[1]}."
            )
        placed = trees, lambda: _terms(model, trees), len(trees)
        sums = self._predicted(terms, batches(inputs), *placed)
        if isinstance(model, BOOSTING):
            total = model._raw_predict_init(X if model.init is not None else inputs)
            total = np.asarray(total, np.float64) + model.learning_rate * sums
            return np.asarray(total.ravel() if total.shape[1] == 1 else total)
        mean: NDArray[np.float64] = sums / len(trees)
        if is_classifier(model) or model.n_outputs_ > 1:
            return mean
        return mean[:, 0]


def _fitted(model: Any) -> tuple[Any, ...]:
    """scikit-learn's trees, those of boosting round by round; BadInput where they do not add up.

    One by one: a refit with warm_start keeps the list and some of what is in it.
    """
    if not isinstance(model, FORESTS + BOOSTING):
        known = ", ".join(kind.__name__ for kind in FORESTS + BOOSTING)
        raise BadInput(
            f"an additive ensemble is one of {known}; got {type(model).__name__}. For any "
            f"other sum give the terms to cluster.parts yourself."
        )
    check_is_fitted(model)
    if isinstance(model, FORESTS) and is_classifier(model) and model.n_outputs_ > 1:
        raise BadInput("a forest of several outputs at once is not a sum; fit one for each.")
    return tuple(one.tree_ for one in np.ravel(model.estimators_))


def _terms(model: Any, trees: tuple[Any, ...]) -> list[Tree]:
    """The terms of an ensemble: one a tree; boosting of several classes has one a class too."""
    if isinstance(model, FORESTS):
        return [_tree(tree, is_classifier(model), None, 1) for tree in trees]
    classes = model.estimators_.shape[1]
    return [_tree(tree, False, i % classes, classes) for i, tree in enumerate(trees)]


def _tree(tree: Any, classifier: bool, column: int | None, width: int) -> Tree:
    if classifier:
        value = np.asarray(tree.value[:, 0, :], np.float64)
        value = value / value.sum(axis=1, keepdims=True)
    elif column is None:
        value = np.asarray(tree.value[:, :, 0], np.float64)
    else:
        value = np.zeros((tree.node_count, width))
        value[:, column] = tree.value[:, 0, 0]
    missing = np.asarray(getattr(tree, "missing_go_to_left", np.zeros(tree.node_count)), bool)
    nodes = (tree.children_left, tree.children_right, tree.feature)
    left, right, feature = (np.asarray(one, np.intp) for one in nodes)
    return Tree(left, right, feature, np.asarray(tree.threshold, np.float64), missing, value)
