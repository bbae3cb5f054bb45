"""Linear models, trained through coded products: they go on while workers are lost and join."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted

from ..checks import is_sparse, number, one_of, whole
from ..errors import BadInput
from .base import CodedEstimator
from .coded import CodedGradient
from .coded import solve as descend
from .hooks import Hooked
from .losses import LinearObjective, LossOf, Problem, logistic, multinomial, squared, squared_hinge
from .normal import COLUMNS, Normal, normal, singular_values
from .precondition import sample_of
from .products import Encoded, Here, check, sums_alone
from .saves import Saves
from .solvers import SOLVERS, Floats, OnStep, Solution, solve_columns

# How scikit-learn's classes that run liblinear say it; here Newton's method stands in.
LIBLINEAR = "Liblinear failed to converge, increase the number of iterations."
SAG_TOL = 1e-4  # above, scikit-learn warns of sparse data
LARGE = 1e30  # beyond, scikit-learn refuses data for liblinear
SMOOTH = "coded products serve smooth losses and penalties."


@dataclass(repr=False, eq=False)
class _Linear(CodedEstimator):
    """Fitting and scoring that all linear models share."""

    _: KW_ONLY
    fit_intercept: bool = True
    solver: str | CodedGradient = "lbfgs"
    tol: float = 1e-6
    max_iter: int | None = 1000
    random_state: Any = None
    products: str = "coded"
    solvers: ClassVar[tuple[str, ...]] = tuple(SOLVERS)
    # scikit-learn's solvers, and ours with the same optimum.
    same_optimum: ClassVar[Mapping[str, str]] = {}
    # By solver: how scikit-learn's warning begins, where not as all the others do.
    unmet_words: ClassVar[Mapping[str, str]] = {}
    least_iterations: ClassVar[int] = 1
    coef_: Any = field(init=False)
    intercept_: Any = field(init=False)
    n_iter_: Any = field(init=False)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        number(self.tol, "tol", ">= 0")
        if self.max_iter is not None:
            whole(self.max_iter, "max_iter", self.least_iterations)

    @property
    def _limit(self) -> int:
        """The most iterations: where `max_iter` is None, as many as by default."""
        limit = type(self).max_iter if self.max_iter is None else self.max_iter
        assert limit is not None
        return limit

    @property
    def _ours(self) -> str:
        """The name of the solver that runs, where it is not one of coded gradients."""
        return self.same_optimum.get(str(self.solver), str(self.solver))

    def _check(self, X: Any, y: Any, **options: Any) -> tuple[Any, NDArray[Any]]:
        if self._gradients is not None:
            sums_alone(self.products, self.k, X)
        else:
            names = sorted({*self.solvers, "coded-gradient", *self.same_optimum})
            one_of(self.solver, "solver", names)
            check(self.products, self._ours, self.k, X)
        X, y = super()._check(X, y, **options)
        self._check_taken(X)
        return X, y

    def _check_taken(self, X: Any) -> None:
        """Refuse what scikit-learn's solver of this name refuses."""

    @property
    def _gradients(self) -> CodedGradient | None:
        """How to descend by coded sums of gradients, where that is the solver."""
        if isinstance(self.solver, CodedGradient):
            return self.solver
        return CodedGradient() if self.solver == "coded-gradient" else None

    def _minimise(
        self,
        problem: Problem,
        tol: float,
        checkpoint: object,
        start: Floats | None = None,
        after: Callable[[Floats], object] = lambda x: None,
    ) -> tuple[Floats, Floats]:
        """W (d, m) and b (m,), through products with X or by sums of gradients.

        after: called with the parameters after every iteration, when all others were.
        """
        given = problem.X
        start = np.zeros(problem.size) if start is None else start
        if (how := self._gradients) is not None:
            with self._opened() as cluster, self._shown() as show:
                saves = self._saves(checkpoint, given, None, problem.targets, problem.weight)

                def on_sum(iteration: int, loss: float, x: Floats, parts: Any) -> None:
                    show(iteration, loss, x, parts)
                    after(x)

                solution = descend(cluster, problem, how, tol, self._limit, on_sum, saves, start)
        else:
            with self._placed(given, self.products) as matrix, self._shown() as show:
                saves = self._saves(checkpoint, given, matrix, problem.targets, problem.weight)
                preconditioned = self._ours in ("lbfgs", "newton-cg")
                sample = sample_of(given, matrix, problem.intercept) if preconditioned else None
                objective = LinearObjective(replace(problem, X=matrix), sample)

                def on_step(iteration: int, loss: float, x: Floats) -> None:
                    show(iteration, loss, x, matrix)
                    after(x)

                solution = self._solve(objective, start, tol, on_step, saves)
        if not solution.converged:
            self._not_converged()
        self.n_iter_ = self._counted(solution.iterations, problem.targets.shape[1])
        return problem.split(solution.x)

    def _counted(self, iterations: int, targets: int) -> Any:
        """What `n_iter_` says: one number, as all targets or classes share the products."""
        return np.full(1, iterations, dtype=np.int32)

    def _not_converged(self) -> None:
        """Warn in scikit-learn's words, which programs filter warnings by."""
        failed = f"{self._ours} failed to converge."
        words = self.unmet_words.get(str(self.solver), failed).format(self._limit)
        warnings.warn(
            f"{words} The max_iter was reached which means the coef_ did not converge "
            f"to tol={self.tol:g}. Increase the number of iterations "
            f"(max_iter={self._limit}), or scale the data.",
            ConvergenceWarning,
            stacklevel=4,
        )

    def _precision(self, X: Any) -> np.dtype[Any]:
        """The type of what is fitted: that of the data."""
        dtype: np.dtype[Any] = X.dtype
        return dtype

    def _solve(
        self, objective: LinearObjective, start: Floats, tol: float, on_step: OnStep, saves: Saves
    ) -> Solution:
        return SOLVERS[self._ours](objective, start, tol, self._limit, on_step, saves)

    def _scores(self, X: Any) -> Any:
        X = self._rows(X, accept_sparse="csr")
        return safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_


@dataclass(repr=False, eq=False)
class Ridge(MultiOutputMixin, RegressorMixin, _Linear):
    """Least squares with penalty `alpha` ‖w‖², as scikit-learn's Ridge.

    alpha: one number, or one for each target.

    solver: "cg" (conjugate gradients on the normal equations, the default), "gd" (batch
    gradient descent with line search, as in Yang et al., 2019) or "lbfgs". Every
    iteration is one product with X and one with X.T, for all targets; `n_iter_` counts
    them. Or "coded-gradient", or a CodedGradient: coded sums of gradients over parts of
    the rows, exact or approximate. scikit-learn's names ("auto", "svd", "sag", …) have
    the same optimum and run as "cg". `solver_` is the name that was given. "svd",
    "cholesky" and "saga" refuse sparse rows, as there: use "cg".

    Other parameters of scikit-learn are taken where the result is the same, and refused
    where it would be another: docs/learn.md has the table. `coef_` and predictions are
    float32 if X is.

    With up to 256 columns "cg" forms the normal equations in one pass, where that is
    exact enough: the workers that were given (an open cluster, or workers= or k=) make
    it, and `where_` is "workers". If none were, this process makes the pass over an
    array, because starting workers and sending it takes longer; `where_` is "here".

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
    same_optimum: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("auto", "svd", "cholesky", "lsqr", "sparse_cg", "sag", "saga"), "cg"
    )
    unmet_words: ClassVar[Mapping[str, str]] = {
        "sparse_cg": "sparse_cg did not converge after {} iterations."
    }

    alpha: Any = 1.0
    _: KW_ONLY
    solver: str | CodedGradient = "cg"
    tol: float = 1e-10
    max_iter: int | None = 10_000
    copy_X: bool = True
    positive: bool = False
    solver_: str = field(init=False)
    where_: str = field(init=False)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, checkpoint: object = None) -> Self:
        """Fit to X (N, d), an array, CSR matrix, CodedMatrix or store path; y is (N,) or (N, t).

        checkpoint: a folder (or a kofn.Checkpoint) that the fit is saved in now and then, and goes
        on from if it was killed. None: it is not saved.
        """
        X, y = self._check(X, y, multi_output=True, y_numeric=True)
        weight = self._weight(sample_weight, X)
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        alpha = self._alphas(targets.shape[1])
        if self._gradients is None and self._ours == "cg":
            few = isinstance(X, np.ndarray) and X.shape[1] <= COLUMNS
            here = few and self.products == "coded" and not self._workers_given
            with self._placed(X, "here" if here else self.products) as matrix:
                saves = self._saves(checkpoint, X, matrix, targets, weight)
                W, b, equations = self._normal_equations(X, matrix, targets, weight, alpha, saves)
            self._note(equations, X, weight)  # with all threads of this process again
        else:
            problem = Problem(X, targets, weight, squared, 1.0, alpha, self.fit_intercept)
            W, b = self._minimise(problem, self.tol, checkpoint)
            self.where_ = "workers"
            self._note(None, X, weight)
        W, b = W.astype(self._precision(X)), b.astype(self._precision(X))
        self.coef_ = W[:, 0] if self._is_flat(y) else W.T
        self.intercept_ = (b[0] if np.ndim(y) == 1 else b) if self.fit_intercept else 0.0
        self.solver_ = "coded-gradient" if self._gradients is not None else str(self.solver)
        return self

    def _is_flat(self, y: NDArray[Any]) -> bool:
        """Whether coef_ is (d,): also for y (N, 1), as in scikit-learn's Ridge."""
        return y.ndim == 1 or y.shape[1] == 1

    def predict(self, X: Any) -> Any:
        """Return the predictions (N,) or (N, t), computed here."""
        return self._scores(X)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if np.ndim(self.alpha) != 1:
            number(self.alpha, "alpha", ">= 0")
        else:
            for alpha in self.alpha:
                number(alpha, "alpha of each target", ">= 0")
        if self.positive:
            raise BadInput(
                f"positive must be False; got {self.positive!r}. Solvers that keep coefficients "
                f"positive are not in kofn: use sklearn.linear_model.{type(self).__name__}."
            )

    def _check_taken(self, X: Any) -> None:
        if not is_sparse(X):
            return
        what = "sparse data" if self.solver == "svd" else ""
        if self.solver in ("svd", "cholesky", "saga") and self.fit_intercept:
            what = "fitting the intercept on sparse data"
        if what:
            raise BadInput(
                f"solver={self.solver!r} does not support {what}, as in scikit-learn. "
                f"Use solver='cg', or encode X with cluster.encode(X) first."
            )
        endless = self.solver == "sag" and self.max_iter is None
        if endless and self.fit_intercept and self.tol > SAG_TOL:
            warnings.warn(
                f'"sag" solver requires a low "tol" to fit an intercept with sparse '
                f"inputs: the intercept has the errors of the coefficients, times the "
                f"means of the columns. Got tol={self.tol:g}; set {SAG_TOL:g} or less.",
                stacklevel=4,
            )

    def _alphas(self, targets: int) -> Floats:
        """The penalty of each target, (t,)."""
        alphas = np.asarray(self.alpha, dtype=np.float64).ravel()
        if len(alphas) not in (1, targets):
            raise BadInput(
                f"alpha must be one number, or one for each target. Number of targets and number "
                f"of penalties do not correspond: {len(alphas)} != {targets}."
            )
        return np.array(np.broadcast_to(alphas, targets))

    def _counted(self, iterations: int, targets: int) -> Any:
        return np.full(targets, iterations, dtype=np.int32)

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
        self,
        given: Any,
        X: Encoded | Here,
        y: Floats,
        weight: Floats,
        alpha: Floats,
        saves: Saves,
    ) -> tuple[Floats, Floats, Normal]:
        """Solve (Xcᵀ D Xc + alpha) W = Xcᵀ D yc, X and y centred."""
        shift = np.zeros(y.shape[1])
        if self.fit_intercept:
            shift = (weight * y).sum(axis=0) / float(weight.sum())
        left = weight * (y - shift)
        start = (left * (y - shift)).sum(axis=0)  # the loss of each target at w = 0
        losses = saves.state.get("losses", start.copy())
        saves = saves.beside(losses=losses)
        equations = normal(given, X, left, weight, alpha, self.fit_intercept)
        mean, B = equations.mean, equations.B
        with self._shown() as show:

            def count(iteration: int, R: Floats, W: Floats) -> None:
                # With H W = B - R the loss y'Dy - 2 b'w + w'Hw needs no product of its own.
                losses[:] = np.maximum(0.0, start - (W * (B + R)).sum(axis=0))
                show(iteration, 0.5 * float(losses.sum()), W, equations.data)

            W, iterations, unmet = solve_columns(
                equations.apply, B, self.tol, self._limit, count, saves, equations.M
            )
        if unmet and iterations == self._limit:
            self._not_converged()
        self.n_iter_ = self._counted(iterations, y.shape[1])
        self.where_ = "here" if isinstance(equations.data, Here) else "workers"
        return W, shift - mean @ W, equations

    def _note(self, equations: Normal | None, given: Any, weight: Floats) -> None:
        """Keep what else the normal equations tell, if they were formed."""


@dataclass(repr=False, eq=False)
class LinearRegression(Ridge):
    """Ordinary least squares: Ridge without a penalty.

    `singular_` and `rank_` are those of the centred X: of an array with up to 256
    columns, and of what is on workers if they formed XᵀX.
    """

    alpha: float = field(default=0.0, init=False)
    _: KW_ONLY
    tol: float = 1e-12
    n_jobs: int | None = None
    rank_: int = field(init=False)
    singular_: NDArray[Any] = field(init=False)

    def _is_flat(self, y: NDArray[Any]) -> bool:
        return y.ndim == 1

    def _note(self, equations: Normal | None, given: Any, weight: Floats) -> None:
        for name in ("rank_", "singular_"):
            self.__dict__.pop(name, None)
        if equations is None:
            return
        singular = singular_values(equations, given, weight)
        if singular is not None:
            smallest = singular[0] * max(given.shape) * np.finfo(given.dtype).eps
            self.rank_ = int((singular > smallest).sum())
            self.singular_ = singular.astype(self._precision(given))


@dataclass(repr=False, eq=False)
class _LinearClassifier(ClassifierMixin, Hooked, _Linear):
    C: float = 1.0
    _: KW_ONLY
    class_weight: Mapping[Any, float] | str | None = None
    warm_start: bool = False
    dual: bool | str = False
    intercept_scaling: float = 1.0
    hinge: ClassVar[bool] = False
    least_iterations: ClassVar[int] = 0
    classes_: NDArray[Any] = field(init=False)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        number(self.C, "C", "> 0", infinite=not self.hinge)
        if self._like_a_weight:
            number(self.intercept_scaling, "intercept_scaling", "> 0")
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
    def _like_a_weight(self) -> bool:
        """Whether the intercept is penalized, as the weight of a column of intercept_scaling."""
        return self.hinge and self.fit_intercept

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
        scale, penalty = self._strengths()
        # Of the gradient of the mean loss, where that is scikit-learn's rule.
        tol = self.tol if self.hinge else self.tol * scale * float(weight.sum())
        of_intercept = penalty / self.intercept_scaling**2 if self._like_a_weight else 0.0
        problem = Problem(
            X, targets, weight, loss, scale, penalty, self.fit_intercept, of_intercept
        )
        start = self._start(problem, before)
        start = np.zeros(problem.size) if start is None else start

        def fitted(W: Floats, b: Floats) -> dict[str, Any]:
            dtype = self._precision(X)
            return {"coef_": W.T.astype(dtype, order="C"), "intercept_": b.astype(dtype)}

        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        with self._tasks(self._limit, X=X, y=y, metadata=metadata) as tasks:
            name = f"{self._ours}-iter"
            if tasks is not None:
                tasks.begin(name, lambda: fitted(*problem.split(start)))

            def after(x: Floats) -> None:
                if tasks is not None:
                    tasks.next(name, lambda: fitted(*problem.split(x)))

            found = fitted(*self._minimise(problem, tol, checkpoint, start, after))
            self.coef_, self.intercept_ = found["coef_"], found["intercept_"]
        return self

    def _by_class(self, y: Any, codes: NDArray[np.intp], weight: Floats, targets: Floats) -> Floats:
        """The weights of the rows, (N, 1), times those of their classes."""
        if self.class_weight == "balanced":
            counts = np.bincount(codes, weight[:, 0])
            with np.errstate(divide="ignore"):
                weights = float(weight.sum()) / (len(counts) * counts)
        else:
            try:
                weights = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
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
        W, b = np.asarray(_dense(self.coef_), np.float64).T, np.asarray(self.intercept_, np.float64)
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

    def sparsify(self) -> Self:
        """Make coef_ a CSR array, which predicts as before; it is small if most are zero."""
        check_is_fitted(self)
        self.coef_ = scipy.sparse.csr_array(self.coef_)
        return self

    def densify(self) -> Self:
        """Make coef_ an array again."""
        check_is_fitted(self)
        self.coef_ = _dense(self.coef_)
        return self


def _penalty_goes() -> bool:
    """Whether the installed scikit-learn warns of `penalty`: since 1.8."""
    from sklearn import linear_model  # takes long, and few need it

    known = linear_model.LogisticRegression().get_params()
    return bool(known.get("penalty", "gone") != "l2")


def _dense(coefficients: Any) -> NDArray[Any]:
    return coefficients.toarray() if is_sparse(coefficients) else np.asarray(coefficients)


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

    C=inf: no penalty; so is penalty=None, of which scikit-learn warns since 1.8, and we
    with it. set_callbacks takes scikit-learn's callbacks. class_weight: "balanced", or a dict with
    the weight of each class. warm_start: begin where the last fit ended. scikit-learn's
    solvers have the same optimum: "newton-cholesky" runs as "newton-cg", "sag" and
    "saga" as "lbfgs". "liblinear" has another and is taken for two classes: the
    intercept is penalized, as the weight of a column of `intercept_scaling`.
    """

    _: KW_ONLY
    penalty: str | None = "deprecated"
    l1_ratio: float | None = 0.0
    multi_class: str = "auto"
    n_jobs: int | None = None
    same_optimum: ClassVar[Mapping[str, str]] = {
        "newton-cholesky": "newton-cg",
        "liblinear": "newton-cg",  # whose intercept is penalized; see _like_a_weight
        "sag": "lbfgs",
        "saga": "lbfgs",
    }
    unmet_words: ClassVar[Mapping[str, str]] = {
        "liblinear": LIBLINEAR,
        "newton-cholesky": "Newton solver did not converge after {} iterations.",
    }

    def _check_parameters(self) -> None:
        super()._check_parameters()
        use = "Use sklearn.linear_model.LogisticRegression"
        # "deprecated" is the default of a parameter of scikit-learn that is about to go.
        if self.penalty not in ("l2", None, "deprecated", "elasticnet"):
            raise BadInput(f"penalty is 'l2' or None; got {self.penalty!r}. {use}: {SMOOTH}")
        if self.l1_ratio is None if self.penalty == "elasticnet" else self.l1_ratio:
            raise BadInput(f"l1_ratio must be 0; got {self.l1_ratio!r}. {use}: {SMOOTH}")
        if self.multi_class not in ("auto", "multinomial", "deprecated"):
            raise BadInput(
                f"multi_class must be 'auto' or 'multinomial'; got {self.multi_class!r}. Use "
                f"sklearn.multiclass.OneVsRestClassifier for one class against the rest."
            )
        self._warn_of_deprecated()

    def _warn_of_deprecated(self) -> None:
        """Warn as scikit-learn does of parameters that it is about to drop."""
        if self.n_jobs is not None:
            warnings.warn(
                f"'n_jobs' has no effect, as in scikit-learn, which drops it in 1.10; got "
                f"n_jobs={self.n_jobs!r}. Use workers= to say how many workers there are.",
                FutureWarning,
                stacklevel=6,
            )
        if self.penalty != "deprecated" and _penalty_goes():
            warnings.warn(
                f"'penalty' was deprecated in scikit-learn 1.8, which drops it in 1.10; "
                f"got penalty={self.penalty!r}. Use C=np.inf for no penalty, and leave "
                f"penalty= out for 'l2'.",
                FutureWarning,
                stacklevel=6,
            )

    def _check_taken(self, X: Any) -> None:
        if self.solver in ("liblinear", "sag", "saga") and is_sparse(X):
            for index in (X.indices, X.indptr):
                if index.dtype == np.int64:
                    raise BadInput(
                        f"Only sparse matrices with 32-bit integer indices are accepted "
                        f"with solver={self.solver!r}, as in scikit-learn; got "
                        f"{index.dtype} indices. Use solver='lbfgs'."
                    )
        here = is_sparse(X) or isinstance(X, np.ndarray)
        if self.solver == "liblinear" and here and X.max() > LARGE:
            raise BadInput(
                f"Using the 'liblinear' solver while X contains a maximum value > 1e30 "
                f"results in a frozen fit. Please choose another solver or rescale the "
                f"input X. (As in scikit-learn, it is refused here; the maximum is "
                f"{X.max():g}.)"
            )

    @property
    def _like_a_weight(self) -> bool:
        return self.solver == "liblinear" and self.fit_intercept

    def _strengths(self) -> tuple[float, float]:
        if self.penalty is None and self.C != 1.0:
            warnings.warn("Setting penalty=None will ignore the C parameter.", stacklevel=3)
        free = self.penalty is None or bool(np.isinf(self.C))
        return (1.0, 0.0) if free else super()._strengths()

    def _precision(self, X: Any) -> np.dtype[Any]:
        # As scikit-learn's, which hands the data to a library in float64.
        return np.dtype(np.float64) if self.solver == "liblinear" else super()._precision(X)

    def _model(self, codes: NDArray[np.intp], classes: int) -> tuple[LossOf, Floats]:
        if self.solver == "liblinear" and classes > 2:
            raise BadInput(
                f"The 'liblinear' solver does not support multiclass classification; got "
                f"{classes} classes. Use another solver, or sklearn.multiclass.OneVsRestClassifier."
            )
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

    The primal problem, one against the rest beyond two classes; the intercept is
    penalized, as the weight of a column of `intercept_scaling`, as in scikit-learn's
    LinearSVC. `coef_` is float64, as there. solver: "newton-cg" (the default, to the
    last digits), "lbfgs", "gd" or "coded-gradient". tol: the largest entry of the
    gradient. See LogisticRegression for class_weight and warm_start, Ridge for the
    rest.
    """

    _: KW_ONLY
    solver: str | CodedGradient = "newton-cg"
    dual: bool | str = "auto"
    penalty: str = "l2"
    loss: str = "squared_hinge"
    multi_class: str = "ovr"
    hinge: ClassVar[bool] = True
    # scikit-learn's class has one solver; so has its warning.
    unmet_words: ClassVar[Mapping[str, str]] = {"newton-cg": LIBLINEAR}

    def _check_parameters(self) -> None:
        super()._check_parameters()
        only = {"penalty": "l2", "loss": "squared_hinge", "multi_class": "ovr"}
        for name, value in only.items():
            if getattr(self, name) != value:
                raise BadInput(
                    f"{name} must be {value!r}; got {getattr(self, name)!r}. Use "
                    f"sklearn.svm.LinearSVC: {SMOOTH}"
                )

    def _counted(self, iterations: int, targets: int) -> Any:
        return iterations  # a plain int, as scikit-learn's

    def _precision(self, X: Any) -> np.dtype[Any]:
        return np.dtype(np.float64)  # as scikit-learn's

    def _model(self, codes: NDArray[np.intp], classes: int) -> tuple[LossOf, Floats]:
        return squared_hinge, _signs(codes, classes)
