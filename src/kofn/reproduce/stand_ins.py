"""Made-up files that stand in for the data of the gradient coding experiments, of their form."""

from __future__ import annotations

from pathlib import Path

import numpy as np

ROWS = 4000
IDS = (
    *("RESOURCE", "MGR_ID", "ROLE_ROLLUP_1", "ROLE_ROLLUP_2", "ROLE_DEPTNAME", "ROLE_TITLE"),
    *("ROLE_FAMILY_DESC", "ROLE_FAMILY", "ROLE_CODE"),
)
FIELDS = 18  # of a house, from the bedrooms on


def write(folder: Path) -> Path:
    """Write files with the names and columns of the three data sets; the same ones each time."""
    rng, rows = np.random.default_rng(0), ROWS
    _amazon(rng, rows, folder / "amazon_access/train.csv")
    _covtype(rng, rows, folder / "covtype/covtype.data")
    _houses(rng, rows, folder / "kc_house/kc_house_data.csv")
    return folder


def _save(path: Path, head: str, table: np.ndarray, form: str = "%d") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, table, form, delimiter=",", header=head, comments="")


def _amazon(rng: np.random.Generator, rows: int, path: Path) -> None:
    """Each id is worth something; one row in seventeen is of the rare class, as there."""
    ids = np.minimum(rng.geometric(0.02, (rows, len(IDS))), 300)
    worth = rng.standard_normal((301, len(IDS)))
    score = worth[ids, np.arange(len(IDS))].sum(axis=1) + rng.standard_normal(rows)
    action = score > np.quantile(score, 1 / 17)
    _save(path, ",".join(("ACTION", *IDS)), np.column_stack([action, ids]))


def _covtype(rng: np.random.Generator, rows: int, path: Path) -> None:
    """Ten numbers, forty-four bits, and the cover type, 1 or 2."""
    numbers = rng.integers(0, 100, (rows, 10))
    bits = rng.random((rows, 44)) < 0.1
    score = (numbers @ rng.standard_normal(10)) / 30 + bits @ rng.standard_normal(44)
    kind = 1 + (score + rng.standard_normal(rows) > np.median(score))
    _save(path, "", np.column_stack([numbers, bits, kind]))


def _houses(rng: np.random.Generator, rows: int, path: Path) -> None:
    """Prices of about half a million, in which every field counts."""
    fields = rng.integers(1, 40, (rows, FIELDS))
    worth = (fields - 20) @ rng.standard_normal(FIELDS) + 10 * rng.standard_normal(rows)
    price = np.maximum(75_000, 540_000 + 3_000 * worth)
    names = ["id", "price", "bedrooms", *(f"field_{i}" for i in range(1, FIELDS))]
    _save(path, ",".join(names), np.column_stack([np.arange(rows), price, fields]), "%.0f")
