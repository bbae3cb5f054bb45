"""kofn predict: what a saved model says of rows in a file."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ..errors import BadInput
from ..files import check_file
from ..learn import load
from . import places, tables


def run(
    path: Path, data: Path, out: Path | None, target: str | None, labels: Path | None
) -> dict[str, Any]:
    """Predict, and write it if asked; where there are labels, the score as well."""
    if out is not None and out.suffix not in (".csv", ".npy"):
        raise BadInput(f"--out is a .csv or a .npy file; got {out.name}.")
    if out is not None:
        check_file(out, "--out")
    model = load(path)
    if not hasattr(model, "predict"):
        raise BadInput(f"kofn predict needs a model that predicts; {path.name} is a {model!r}.")
    classes = hasattr(model, "classes_")
    names = vars(model).pop("feature_names_in_", None)  # what is read has none, but their order
    columns = model.n_features_in_
    like = None if names is None else names.tolist()
    X, y = tables.rows(data, target, labels, columns, classes=classes, like=like)
    predictions: NDArray[Any] = np.asarray(model.predict(X))
    if out is not None:
        places.save(out, _npy(predictions) if out.suffix == ".npy" else _csv(predictions))
    return {
        "model": type(model).__name__,
        "rows": int(X.shape[0]),
        "score": None if y is None else float(model.score(X, y)),
        "out": None if out is None else str(out),
        "predictions": predictions.tolist(),
    }


def _npy(predictions: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, predictions.astype(str) if predictions.dtype == object else predictions)
    return file.getvalue()


def _csv(predictions: NDArray[Any]) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["prediction"])
    writer.writerows([value] for value in predictions.tolist())
    return file.getvalue().encode()


def table(console: Console, result: dict[str, Any]) -> None:
    """Print the predictions, a line each; or where they were written."""
    if result["out"] is None:
        print("\n".join(map(str, result["predictions"])))
    score = None if result["score"] is None else f"score {result['score']:.4f}"
    if result["out"] is not None:
        text = f"{result['rows']} predictions in {result['out']}"
        console.print("; ".join(filter(None, (text, score))), markup=False, soft_wrap=True)
    elif score is not None:  # beside the predictions, which a program may read
        print(score, file=sys.stderr)
