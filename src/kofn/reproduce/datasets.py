"""The public data sets of the experiments, from the folder that `--data` or KOFN_DATA names.

Those of the gradient coding experiments are prepared to the published sizes. Every distinct value
of every field becomes a column of zeros and ones; categories are learnt on all rows; a column of
ones comes last. 80 % of the rows, by scikit-learn's `train_test_split` with random state 0, are for
training. Table 1 of Wang et al., 2019 has the training rows of Amazon and of KC housing, and all
495,141 rows of Covertype.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from dataclasses import dataclass
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.model_selection import train_test_split

from ..delays import Recording, SpotTrace, read_spot_trace, read_timings
from ..delays.traces import Event
from ..errors import BadInput

Floats = NDArray[np.float64]
Images = tuple[Floats, NDArray[np.intp]]  # rows (N, 784) from 0 to 1, and labels (N,)

TIMINGS = "straggler_traces/aws_lambda_256workers_2022.npz"


def find(data: Path, *names: str, remedy: str = "") -> Path:
    """Return the first of these files that the folder `data` holds; BadInput if it holds none."""
    for path in (data / name for name in names):
        if path.is_file():
            return path
    raise BadInput(f"--data must hold {' or '.join(names)}; {data} does not. {remedy}".rstrip())


# Where the data of the gradient coding experiments come from, and the shapes of their training
# parts if they are the published data.
SOURCES = {
    "amazon_access/train.csv": "kaggle.com/c/amazon-employee-access-challenge (train.csv; needs "
    "a login)",
    "covtype/covtype.data": "archive.ics.uci.edu/static/public/31/covertype.zip",
    "kc_house/kc_house_data.csv": "kaggle.com/datasets/harlfoxem/housesalesprediction (needs a "
    "login)",
}
PUBLISHED = {"amazon": (26215, 241915), "covtype": (396112, 15509), "kc_house": (17290, 27654)}


def complete(data: Path) -> None:
    """Raise BadInput where files of SOURCES are not there; it names all of them."""
    lacking = [
        f"{name} from {origin}"
        for name, origin in SOURCES.items()
        if not (data / name).is_file() and not (data / f"{name}.gz").is_file()
    ]
    if lacking:
        raise BadInput(
            f"--data must hold files that {data} does not. Get {', '.join(lacking)}. {LEAVE_OUT}"
        )


def read(data: Path, name: str, remedy: str) -> bytes:
    """Return the content of a file of the folder `data`, packed with gzip or not."""
    path = find(data, name, f"{name}.gz", remedy=remedy)
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read: {error}. {remedy}") from None


def recording(data: Path, name: str) -> Recording:
    """Return what AWS Lambda workers really took, one of the recordings of TIMINGS."""
    known = read_timings(find(data, TIMINGS))
    if name not in known:
        raise BadInput(f"{TIMINGS} must hold the recording {name}; it has {sorted(known)}.")
    return known[name]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows to learn from and rows to test on, as CSR matrices of ones; y is ±1 or a number."""

    name: str
    X: csr_array
    y: Floats
    X_test: csr_array
    y_test: Floats
    regression: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the training matrix."""
        return int(self.X.shape[0]), int(self.X.shape[1])


def load(name: str, data: Path) -> Dataset:
    """Return "amazon", "covtype" or "kc_house" from the folder `data`.

    Where it lacks the file, BadInput says where to get it. Nothing is written to disk.
    """
    if name not in LOADERS:
        raise BadInput(f"the data sets are {', '.join(LOADERS)}; got {name!r}.")
    return LOADERS[name](data)


def amazon(data: Path) -> Dataset:
    """Amazon employee access: 9 ids and 34 of their pairs; 26,215 x 241,915."""
    names, rows = _csv(data, "amazon_access/train.csv")
    if len(names) != 10 or names[0] != "ACTION":
        raise BadInput(
            f"amazon_access/train.csv has the column ACTION and 9 columns of ids; got {names}."
        )
    table = rows.astype(np.int64)
    ids = table[:, 1:].T
    # Pairs of which one almost determines the other are left out, as published.
    without = ({"ROLE_ROLLUP_1", "ROLE_ROLLUP_2"}, {"ROLE_TITLE", "ROLE_FAMILY"})
    pairs = [
        ids[i] * (ids.max() + 1) + ids[j]
        for i, j in combinations(range(9), 2)
        if {names[i + 1], names[j + 1]} not in without
    ]
    return _split("amazon", [*ids, *pairs], np.where(table[:, 0] == 1, 1.0, -1.0))


def cover_types(data: Path) -> NDArray[np.int32]:
    """Forest cover types 1 and 2: rows of 54 fields and the type."""
    text = read(data, "covtype/covtype.data", _remedy("covtype/covtype.data"))
    width = text[: text.find(b"\n")].count(b",") + 1
    numbers: NDArray[np.int32] = np.fromstring(  # the quickest reader of numbers there is
        text.rstrip().replace(b"\n", b","), dtype=np.int32, sep=","
    )
    if width != 55 or numbers.size % 55:
        raise BadInput(f"covtype.data has 55 numbers a line; {numbers.size} in lines of {width}.")
    table = numbers.reshape(-1, 55)
    kept: NDArray[np.int32] = table[(table[:, 54] == 1) | (table[:, 54] == 2)]
    return kept


def covtype(data: Path) -> Dataset:
    """Forest cover types 1 and 2, one-hot; 495,141 rows, of which 396,112 x 15,509 to train on."""
    table = cover_types(data)
    return _split("covtype", table[:, :54].T, np.where(table[:, 54] == 2, 1.0, -1.0))


def house_fields(data: Path) -> tuple[Floats, Floats]:
    """House sales in King County: the 18 fields as numbers, and prices in million USD."""
    names, rows = _csv(data, "kc_house/kc_house_data.csv")
    if "price" not in names or "bedrooms" not in names:
        raise BadInput(f"kc_house_data.csv has columns price and bedrooms; got {names}.")
    fields = rows[:, names.index("bedrooms") :].astype(np.float64)
    return fields, rows[:, names.index("price")].astype(np.float64) / 1e6


def kc_house(data: Path) -> Dataset:
    """House sales in King County, 18 fields; price in million USD; 17,290 x 27,654."""
    fields, price = house_fields(data)
    return _split("kc_house", fields.T, price, regression=True)


LOADERS = {"amazon": amazon, "covtype": covtype, "kc_house": kc_house}


def _remedy(name: str) -> str:
    return f"Get it from {SOURCES[name]}."


def _csv(data: Path, name: str) -> tuple[list[str], NDArray[np.str_]]:
    text = read(data, name, _remedy(name)).decode("utf-8")
    lines = list(csv.reader(StringIO(text)))
    names = lines[0] if lines else []
    for number, line in enumerate(lines, 1):
        if len(line) != len(names):
            raise BadInput(f"line {number} of {name} has {len(line)} fields, not {len(names)}.")
    if len(lines) < 3:
        raise BadInput(f"{name} has a line of names and at least two of data; got {len(lines)}.")
    return names, np.array(lines[1:])


def _split(name: str, fields: Any, y: Floats, regression: bool = False) -> Dataset:
    """One column of ones for each value of each field, and one for all rows."""
    at = np.empty((len(y), len(fields) + 1), dtype=np.int32)
    columns = 0
    for i, field in enumerate((*fields, np.zeros(len(y)))):
        values, codes = np.unique(field, return_inverse=True)
        at[:, i] = columns + codes
        columns += len(values)
    at, at_test, y, y_test = train_test_split(at, y, test_size=0.2, random_state=0)
    return Dataset(name, ones(at, columns), y, ones(at_test, columns), y_test, regression)


def ones(at: NDArray[np.int32], columns: int) -> csr_array:
    """A matrix of zeros, and ones in the columns `at` (rows, ones a row)."""
    rows, each = at.shape
    starts = np.arange(0, rows * each + 1, each, dtype=np.int32)
    return csr_array((np.ones(at.size), at.ravel(), starts), shape=(rows, columns))


def read_mnist(data: Path, part: Literal["train", "test"]) -> Images:
    """Return the images and labels of MNIST, from its idx files in `data`/mnist."""
    prefix = {"train": "train", "test": "t10k"}[part]
    images, labels = _idx(data, f"{prefix}-images-idx3", 3), _idx(data, f"{prefix}-labels-idx1", 1)
    if len(images) != len(labels):
        raise BadInput(
            f"MNIST has as many labels as images; {data}/mnist has {len(labels)} and {len(images)} "
            f"for {part}. Fetch the files again."
        )
    return images.reshape(len(images), -1) / 255.0, labels.astype(np.intp)


def _idx(data: Path, name: str, dimensions: int) -> NDArray[np.uint8]:
    name = f"mnist/{name}-ubyte"
    raw = read(data, name, "These are MNIST's idx files, gzipped or not.")
    head = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(raw[4:head], ">i4").tolist())
    if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) != head + np.prod(shape):
        raise BadInput(f"{name} is not an idx file of bytes in {dimensions} dimensions.")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def made_up_images(rows: int, seed: int) -> Images:
    """Images of MNIST's shape in ten classes: each a pattern of its own, and noise."""
    patterns = np.random.default_rng(0).random((10, 784))
    rng = np.random.default_rng((seed, rows))
    labels = rng.integers(0, 10, rows)
    return 0.5 * (patterns[labels] + rng.random((rows, 784))), labels.astype(np.intp)


LEAVE_OUT = "Leave --data out for made-up data."


@dataclass(frozen=True, eq=False, kw_only=True)
class Prices(Dataset):
    """Houses and their prices, and a market of machines to learn on."""

    trace: SpotTrace


def house_prices(data: Path | None) -> Prices:
    """King County's house prices, one-hot (20,000 x 3,352), and a recorded market.

    Without a directory: made-up ones of the same form, 2,000 x 120.
    """
    if data is None:
        return made_up_prices()
    table = find(data, "kc_house/kc_onehot_3352.npz", remedy=LEAVE_OUT)
    with np.load(table) as arrays:
        rows = *_part(arrays, "train"), *_part(arrays, "test")
    return Prices("kc_onehot_3352", *rows, regression=True, trace=market(data))


def market(data: Path | None) -> SpotTrace:
    """A recorded market of at most 32 machines; without a directory a made-up one."""
    if data is None:
        return _market(np.random.default_rng(0))
    return read_spot_trace(find(data, "spot_traces/aws_p3_events.csv", remedy=LEAVE_OUT))


def _part(arrays: Any, name: str) -> tuple[csr_array, Floats]:
    indices, indptr = (arrays[f"X_{name}_{key}"].astype(np.int32) for key in ("indices", "indptr"))
    shape = tuple(arrays[f"X_{name}_shape"].tolist())
    X = csr_array((np.ones(len(indices)), indices, indptr), shape=shape)
    return X, arrays[f"y_{name}"].astype(np.float64)


def made_up_prices() -> Prices:
    """Rows of eight ones, prices linear in them but for noise; a market of twenty machines."""
    rng, rows, fields, values = np.random.default_rng(0), 2000, 8, 15
    worth = 0.2 * rng.standard_normal(fields * values)

    def draw(count: int) -> tuple[csr_array, Floats]:
        columns = rng.integers(0, values, (count, fields)) + values * np.arange(fields)
        noise = 0.1 * rng.standard_normal(count)
        X = ones(columns.astype(np.int32), len(worth))
        return X, worth[columns].sum(axis=1) + 0.5 + noise

    drawn = *draw(rows), *draw(rows // 4)
    return Prices("made up", *drawn, regression=True, trace=_market(rng))


def _market(rng: np.random.Generator) -> SpotTrace:
    """Twenty machines at first, never fewer than eleven; every few minutes some go or come."""
    alive = [f"node{i}" for i in range(20)]
    events = [Event(0.0, True, node) for node in alive]
    named = len(alive)
    for minute in range(3, 700, 4):
        many = int(rng.integers(1, 4))
        if len(alive) - many >= 11 and rng.random() < 0.6:
            gone = [alive.pop(int(rng.integers(len(alive)))) for _ in range(many)]
            events += [Event(60.0 * minute, False, node) for node in gone]
        else:
            come = [f"node{named + i}" for i in range(min(many, 20 - len(alive)))]
            named += len(come)
            alive += come
            events += [Event(60.0 * minute, True, node) for node in come]
    return SpotTrace(tuple(events), "a made-up market")
