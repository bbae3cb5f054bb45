"""Linear models, trained through coded products: they go on while workers are lost and join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.extmath import safe_sparse_dot

from ..checks import number, one_of, whole
from ..errors import BadInput
from .base import CodedEstimator
from .coded import CodedGradient
from .coded import solve as descend
from .losses import LinearObjective, LossOf, Problem, logistic, multinomial, squared, squared_hinge
from .normal import COLUMNS, normal
from .precondition import sample_of
from .products import Encoded, Here, check, sums_alone
from .saves import Saves
from .solvers import SOLVERS, Floats, OnStep, Solution, solve_columns


@dataclass(repr=False, eq=False)
class _Linear(CodedEstimator):
    """Fitting and scoring that all linear models share."""

    _: KW_ONLY
    fit_intercept: bool = True
    solver: str | CodedGradient = "lbfgs"
    tol: float = 1e-6
    max_iter: int = 1000
    products: str = "coded"
    solvers: ClassVar[tuple[str, ...]] = tuple(SOLVERS)
    coef_: NDArray[Any] = field(init=False)
    intercept_: Any = field(init=False)
    n_iter_: int = field(init=False)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        number(self.tol, "tol", ">= 0")
        whole(self.max_iter, "max_iter", 1)

    def _check(self, X: Any, y: Any, **options: Any) -> tuple[Any, NDArray[Any]]:
        if self._gradients is not None:
            sums_alone(self.products, self.k, X)
        else:
            one_of(self.solver, "solver", sorted([*self.solvers, "coded-gradient"]))
            check(self.products, str(self.solver), self.k, X)
        return super()._check(X, y, **options)

    @property
    def _gradients(self) -> CodedGradient | None:
        """How to descend by coded sums of gradients, where that is the solver."""
        if isinstance(self.solver, CodedGradient):
            return self.solver
        return CodedGradient() if self.solver == "coded-gradient" else None

    def _minimise(
        self, problem: Problem, tol: float, checkpoint: object, start: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """W (d, m) and b (m,), through products with X or by sums of gradients."""
        given = problem.X
        start = np.zeros(problem.size) if start is None else start
        if (how := self._gradients) is not None:
            with self._opened() as cluster, self._shown() as show:
                saves = self._saves(checkpoint, given, None, problem.targets, problem.weight)
                solution = descend(cluster, problem, how, tol, self.max_iter, show, saves, start)
        else:
            with self._placed(given, self.products) as matrix, self._shown() as show:
                saves = self._saves(checkpoint, given, matrix, problem.targets, problem.weight)
                preconditioned = self.solver in ("lbfgs", "newton-cg")
                sample = sample_of(given, matrix, problem.intercept) if preconditioned else None
                objective = LinearObjective(replace(problem, X=matrix), sample)

                def on_step(iteration: int, loss: float, x: Floats) -> None:
                    show(iteration, loss, x, matrix)

                solution = self._solve(objective, start, tol, on_step, saves)
        if not solution.converged:
            self._unmet(f"max_iter={self.max_iter}", self.tol, "", "or scale the data")
        self.n_iter_ = solution.iterations
        return problem.split(solution.x)

    def _solve(
        self, objective: LinearObjective, start: Floats, tol: float, on_step: OnStep, saves: Saves
    ) -> Solution:
        return SOLVERS[str(self.solver)](objective, start, tol, self.max_iter, on_step, saves)

    def _scores(self, X: Any) -> Any:
        X = self._rows(X, accept_sparse="csr")
        return safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_


@dataclass(repr=False, eq=False)
class Ridge(MultiOutputMixin, RegressorMixin, _Linear):
    """Least squares with penalty `alpha` ‖w‖², as scikit-learn's Ridge.

    solver: "cg" (conjugate gradients on the normal equations, the default), "gd" (batch gradient
    descent with line search, as in Yang et al., 2019) or "lbfgs". Every iteration is
    one product with X and one with X.T. `n_iter_` counts them. Or "coded-gradient", or a
    CodedGradient: coded sums of gradients over parts of the rows, exact or approximate.

    With up to 256 columns "cg" forms the normal equations in one pass, where that is exact enough.
    For that an array is not sent to the workers, which takes as long: this process makes the pass,
    and `where_` is "here". Else it is "workers", as it is for what is there (`cluster.encode(X)`).

    tol: relative to the gradient at w = 0 (for coded sums of gradients: the largest entry of the
    gradient itself, or as far as rounding lets it fall).

    cluster: an open Cluster, or an engine's name to open one with `workers` workers; any `k` of
    them are enough. callback(iteration, loss, matrix) is called after every iteration; `verbose`
    shows a progress bar on a terminal.

    products: "coded", or one that coding is compared with, in plain blocks: "noiseless" (needs
    every worker), "replication" (two holders a block); and with solver "gd" alone "ignore" (the
    rows of lost workers are left out) and "stale" (what a lost worker last replied is used again:
    Elastic Distr-BGD). Who joins takes the place of a lost one.
    """

    solvers: ClassVar[tuple[str, ...]] = ("cg", "gd", "lbfgs")

    alpha: float = 1.0
    _: KW_ONLY
    solver: str | CodedGradient = "cg"
    tol: float = 1e-10
    max_iter: int = 10_000
    where_: str = field(init=False)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, checkpoint: object = None) -> Self:
        """Fit to X (N, d), an array, CSR matrix, CodedMatrix or store path; y is (N,) or (N, t).

        checkpoint: a folder (or a kofn.Checkpoint) that the fit is saved in now and then, and goes
        on from if it was killed. None: it is not saved.
        """
        X, y = self._check(X, y, multi_output=True, y_numeric=True)
        weight = self._weight(sample_weight, X)
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        if self.solver == "cg":
            coded = self.products == "coded"
            here = coded and isinstance(X, np.ndarray) and X.shape[1] <= COLUMNS
            with self._placed(X, "here" if here else self.products) as matrix:
                saves = self._saves(checkpoint, X, matrix, targets, weight)
                W, b = self._normal_equations(X, matrix, targets, weight, saves)
        else:
            intercept, penalty = self.fit_intercept, float(self.alpha)
            problem = Problem(X, targets, weight, squared, 1.0, penalty, intercept)
            W, b = self._minimise(problem, self.tol, checkpoint)
            self.where_ = "workers"
        one = np.ndim(y) == 1
        self.coef_ = W[:, 0] if one else W.T
        self.intercept_ = (float(b[0]) if one else b) if self.fit_intercept else 0.0
        return self

    def predict(self, X: Any) -> Any:
        """Return the predictions (N,) or (N, t), computed here."""
        return self._scores(X)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        number(self.alpha, "alpha", ">= 0")

    @contextmanager
    def _shown(self) -> Iterator[Callable[[int, float, Floats, Any], None]]:
        # Solvers minimise half of what a ridge minimises; the callback gets the whole.
        with super()._shown() as on_step:
            yield lambda iteration, loss, x, data: on_step(iteration, 2.0 * loss, x, data)

    def _solve(
        self, objective: LinearObjective, start: Floats, tol: float, on_step: OnStep, saves: Saves
    ) -> Solution:
        # Relative to the gradient at 0, as conjugate gradients have it.
        _, first = objective.value_and_gradient(start)
        scale = max(1.0, float(np.abs(first).max(initial=0.0)))
        return super()._solve(objective, start, tol * scale, on_step, saves)

    def _normal_equations(
        self, given: Any, X: Encoded | Here, y: Floats, weight: Floats, saves: Saves
    ) -> tuple[Floats, Floats]:
        """Solve (Xcᵀ D Xc + alpha) W = Xcᵀ D yc, X and y centred."""
        shift = np.zeros(y.shape[1])
        if self.fit_intercept:
            shift = (weight * y).sum(axis=0) / float(weight.sum())
        left = weight * (y - shift)
        start = (left * (y - shift)).sum(axis=0)  # the loss of each target at w = 0
        losses = saves.state.get("losses", start.copy())
        saves = saves.beside(losses=losses)
        equations = normal(given, X, left, weight, float(self.alpha), self.fit_intercept)
        mean, B = equations.mean, equations.B
        with self._shown() as show:

            def count(iteration: int, R: Floats, W: Floats) -> None:
                # With H W = B - R the loss y'Dy - 2 b'w + w'Hw needs no product of its own.
                losses[:] = np.maximum(0.0, start - (W * (B + R)).sum(axis=0))
                show(iteration, 0.5 * float(losses.sum()), W, equations.data)

            W, self.n_iter_, unmet = solve_columns(
                equations.apply, B, self.tol, self.max_iter, count, saves, equations.M
            )
        if unmet and self.n_iter_ == self.max_iter:
            self._unmet(f"max_iter={self.max_iter}", self.tol, "", "or scale the data")
        self.where_ = "here" if isinstance(equations.data, Here) else "workers"
        return W, shift - mean @ W


@dataclass(repr=False, eq=False)
class LinearRegression(Ridge):
    """Ordinary least squares: Ridge without a penalty."""

    alpha: float = field(default=0.0, init=False)
    tol: float = field(default=1e-12, kw_only=True)


@dataclass(repr=False, eq=False)
class _LinearClassifier(ClassifierMixin, _Linear):
    C: float = 1.0
    _: KW_ONLY
    class_weight: Mapping[Any, float] | str | None = None
    warm_start: bool = False
    hinge: ClassVar[bool] = False
    classes_: NDArray[Any] = field(init=False)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        number(self.C, "C", "> 0")
        given = self.class_weight
        if given is not None and given != "balanced" and not isinstance(given, Mapping):
            raise BadInput(
                f"class_weight is 'balanced', a dict with the weight of each class, or None; got "
                f"{given!r}."
            )

    def _model(self, codes: NDArray[np.intp], classes: int) -> tuple[LossOf, Floats]:
        """The loss, and its targets for labels as numbers."""
        raise NotImplementedError

    @property
    def _strengths(self) -> tuple[float, float]:
        """The factors of the loss, and of ½‖w‖²."""
        return float(self.C), 1.0

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, checkpoint: object = None) -> Self:
        """Fit to X (N, d): an array, CSR matrix, CodedMatrix or store path, and labels y (N,).

        checkpoint: a folder that the fit is saved in, and goes on from; see Ridge.fit.
        """
        X, y = self._check(X, y)
        before = vars(self).get("classes_")
        self.classes_, codes = self._classes(y)
        weight = self._weight(sample_weight, X)
        loss, targets = self._model(codes, len(self.classes_))
        if self.class_weight is not None:
            weight = self._by_class(y, codes, weight, targets)
        scale, penalty = self._strengths
        # Of the gradient of the mean loss, where that is scikit-learn's rule.
        tol = self.tol if self.hinge else self.tol * scale * float(weight.sum())
        problem = Problem(X, targets, weight, loss, scale, penalty, self.fit_intercept, self.hinge)
        W, b = self._minimise(problem, tol, checkpoint, self._start(problem, before))
        self.coef_ = W.T.copy()
        self.intercept_ = b.copy()
        return self

    def _by_class(self, y: Any, codes: NDArray[np.intp], weight: Floats, targets: Floats) -> Floats:
        """The weights of the rows, (N, 1), times those of their classes."""
        try:
            weights = compute_class_weight(
                self.class_weight, classes=self.classes_, y=y, sample_weight=weight[:, 0]
            )
        except ValueError as error:
            raise BadInput(f"class_weight does not go with the labels: {error}") from None
        if not (np.isfinite(weights).all() and (weights >= 0.0).all()):
            raise BadInput(f"class_weight must not be negative or NaN; got {self.class_weight!r}.")
        if self.hinge and targets.shape[1] > 1:
            # One against the rest: the one is weighted, the rest is not, as in scikit-learn.
            return np.asarray(weight * np.where(targets > 0.0, weights, 1.0))
        return np.asarray(weight * weights[codes][:, None])

    def _start(self, problem: Problem, classes: NDArray[Any] | None) -> Floats | None:
        """Where the last fit ended: with `warm_start`, for the same classes and columns."""
        if not self.warm_start or classes is None or not np.array_equal(classes, self.classes_):
            return None
        W, b = self.coef_.T, np.atleast_1d(self.intercept_)
        if self.coef_.size != problem.targets.shape[1] * problem.X.shape[1]:
            return None
        start = np.append(W.ravel(), b) if problem.intercept else W.ravel().copy()
        if problem.loss is multinomial:  # the best parameters add up to zero over the classes
            start = (start.reshape(-1, len(b)) - start.reshape(-1, len(b)).mean(1)[:, None]).ravel()
        return start

    def decision_function(self, X: Any) -> Any:
        """Scores: (N,) for two classes, (N, classes) for more."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Any:
        """Return the most likely classes, computed here."""
        scores = self.decision_function(X)
        at = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[at]


def _signs(codes: NDArray[np.intp], classes: int) -> Floats:
    """±1 labels: one column for two classes, one a class for more."""
    if classes == 2:
        return np.where(codes == 1, 1.0, -1.0)[:, None]
    return np.where(codes[:, None] == np.arange(classes), 1.0, -1.0)


@dataclass(repr=False, eq=False)
class LogisticRegression(_LinearClassifier):
    """Logistic regression, C · Σ loss + ½‖w‖², as scikit-learn's (multinomial beyond two classes).

    solver: "lbfgs" (the default), "newton-cg" (to the last digits) or "gd" (batch gradient
    descent with line search), or "coded-gradient". The intercept is not penalised. tol: of the
    largest entry of the gradient of the mean loss, as in scikit-learn (whose default is 1e-4). See
    Ridge for the rest.

    penalty: "l2", or None for none (C is then ignored). class_weight: "balanced", or a dict with
    the weight of each class. warm_start: begin where the last fit ended.
    """

    _: KW_ONLY
    penalty: str | None = "l2"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.penalty not in ("l2", None):
            raise BadInput(
                f"penalty is 'l2' or None; got {self.penalty!r}. Products with X serve smooth "
                f"penalties alone."
            )

    @property
    def _strengths(self) -> tuple[float, float]:
        return super()._strengths if self.penalty == "l2" else (1.0, 0.0)

    def _model(self, codes: NDArray[np.intp], classes: int) -> tuple[LossOf, Floats]:
        if classes == 2:
            return logistic, _signs(codes, 2)
        return multinomial, np.eye(classes)[codes]

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, (N, classes)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            p = expit(scores)
            return np.stack([1 - p, p], axis=1)
        return softmax(scores, axis=1)

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of the probabilities, (N, classes)."""
        return np.log(self.predict_proba(X))


@dataclass(repr=False, eq=False)
class LinearSVC(_LinearClassifier):
    """Linear support vector machine with the squared hinge loss: ½‖w‖² + C · Σ max(0, 1 − y f)².

    The primal problem, one against the rest beyond two classes; the intercept is penalised, as in
    scikit-learn's LinearSVC. solver: "newton-cg" (the default, to the last digits), "lbfgs",
    "gd" or "coded-gradient". tol: the largest entry of the gradient. See LogisticRegression for
    class_weight and warm_start, Ridge for the rest.
    """

    _: KW_ONLY
    solver: str | CodedGradient = "newton-cg"
    hinge: ClassVar[bool] = True

    def _model(self, codes: NDArray[np.intp], classes: int) -> tuple[LossOf, Floats]:
        return squared_hinge, _signs(codes, classes)
