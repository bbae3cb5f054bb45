"""kofn fit --search: which settings do best on rows that the model has not seen."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, KFold, ParameterGrid, StratifiedKFold

from ..errors import BadInput
from .output import print_table

Grid = dict[str, list[Any]]

# What may be searched, by model.
SEARCHED = {
    "ridge": ("alpha", "fit_intercept"),
    "logistic": ("C", "fit_intercept"),
    "svm": ("C", "fit_intercept"),
    "mlp": ("learning_rate", "momentum", "batch_size", "max_epochs"),
}


def grid(texts: tuple[str, ...], kind: str, model: Any) -> Grid:
    """Return the values to choose from, by name; raise BadInput for what the model cannot take."""
    known, settings = SEARCHED[kind], Grid()
    for text in texts:
        name, _, values = text.partition("=")
        if name not in known or name in settings:
            raise BadInput(
                f"--search names a setting of {kind} and its values, each setting once; got "
                f"{text!r}. Name one of {', '.join(known)}, as in --search {known[0]}=0.01,0.1,1."
            )
        try:
            settings[name] = [json.loads(value) for value in values.split(",")]
        except ValueError:
            raise BadInput(
                f"--search takes numbers, true and false; got {text!r}. Separate values by commas "
                f"alone, as in {known[0]}=0.01,0.1,1."
            ) from None
    for point in ParameterGrid(settings):
        clone(model).set_params(**point)._check_parameters()
    return settings


def check(folds: int, y: NDArray[Any], classes: bool) -> None:
    """Raise BadInput where a fold would lack a class."""
    counts = np.unique(y, return_counts=True)[1] if classes else [len(y)]
    if min(counts) < folds:
        each = "row of each class" if classes else "row"
        raise BadInput(
            f"each of --folds {folds} needs a {each}; there are only {min(counts)}. Use fewer "
            f"folds, or more data."
        )


def choose(model: Any, values: Grid, folds: int, seed: int, X: Any, y: Any) -> dict[str, Any]:
    """Score every combination of the values by cross-validation, on the model's cluster.

    The folds are drawn at random from `seed`, with the classes in proportion. Scores are the
    model's own: accuracy, or R² for a regression.
    """
    kind = StratifiedKFold if is_classifier(model) else KFold
    cut = kind(folds, shuffle=True, random_state=seed)
    search = GridSearchCV(model, values, cv=cut, refit=False, error_score="raise").fit(X, y)
    means, deviations = (search.cv_results_[f"{name}_test_score"] for name in ("mean", "std"))
    rows = [
        {**point, "score": float(mean), "deviation": float(deviation)}
        for point, mean, deviation in zip(
            search.cv_results_["params"], means, deviations, strict=True
        )
    ]
    return {"folds": folds, "scores": rows, "chosen": search.best_params_}


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the scores, and which was chosen."""
    chosen = result["chosen"]
    columns = {**dict.fromkeys(chosen, "g"), "score": ".4f", "deviation": ".4f", "": ""}
    rows = [
        (*row.values(), "chosen" if row.items() >= chosen.items() else "")
        for row in result["scores"]
    ]
    print_table(console, f"cross-validation, {result['folds']} folds", columns, rows)
