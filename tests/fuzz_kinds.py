"""Kinds of files for fuzz.py: how good ones are made, how they are read, and what is right."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import kofn
from kofn import saved
from kofn.arrays import coding, store
from kofn.arrays.manifest import checksum
from kofn.arrays.sources import open_source
from kofn.arrays.store import open_store, write_store
from kofn.cli import show, tables
from kofn.codes.mds import MDSCode
from kofn.delays import SpotTrace, read_membership, read_spot_trace, read_timings
from kofn.engines.virtual import VirtualEngine
from kofn.learn import CodedMLPClassifier, LinearSVC, Ridge, load, save
from kofn.report import perfetto, read_log
from kofn.report.logs import LogReader
from kofn.testing import Faults

rng = np.random.default_rng(0)
X = rng.standard_normal((40, 5)).round(3)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
W = np.arange(1.0, 6.0)


@dataclass(frozen=True)
class Kind:
    """A kind of file. `make` writes good files to a folder, `read` reads them.

    `right(good, value, folder)`: whether `value`, read from altered files, is right. `reseal`: make
    checksums right again, where there are any; what is then read is only `whole`.
    """

    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    right: Callable[[Any, Any, Path], bool]
    reseal: Callable[[Path], None] | None = None
    whole: Callable[[Any], bool] = lambda value: bool(np.isfinite(value).all())
    files: str = "*"  # those that are altered
    needs: str = ""  # a package


# Stores.


def product(folder: Path) -> Any:
    """X w by workers that have their shares from the store in the folder."""
    with kofn.connect("virtual", workers=4) as cluster:
        matrix = cluster.encode(folder / "store")
        return matrix @ np.resize(W, matrix.shape[1])


def make_store(folder: Path, fmt: str = "npy", sparse: bool = False) -> Any:
    scaled = fmt == "npy" and not sparse  # rows of very different sizes
    source: Any = X * 10.0 ** np.arange(len(X))[:, None] if scaled else X
    if sparse:
        source = sp.csr_array(np.where(np.abs(X) > 1, X, 0))
    write_store(source, folder / "store", MDSCode(4, 2), fmt=fmt)
    return product_of(source, scaled)


def reseal_store(folder: Path) -> None:
    """Make the checksum of a manifest, or of a note of progress, right."""
    for path in folder.glob("store/*.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "sha256": checksum(content)}))


def close(good: Any, value: Any, folder: Path) -> bool:
    """Equal to rounding. A share may be rebuilt from others, and is then decoded with others: each
    amplifies what rounding a product of so many columns and blocks has by η, at most 100."""
    expected, size = good
    most = np.finfo(float).eps * 100**2 * (len(W) + 2)
    return value.shape == expected.shape and bool((np.abs(value - expected) <= most * size).all())


def product_of(matrix: Any, scaled: bool = False) -> tuple[Any, Any]:
    """What `product` should be, and the sizes of what it is decoded from: of its row set, or of
    each row where rows are scaled."""
    size = (abs(matrix) @ np.abs(W)).reshape(2, -1)
    return matrix @ W, (size if scaled else size.max(axis=0, keepdims=True) + 0 * size).ravel()


@contextmanager
def small() -> Iterator[None]:
    """Many chunks, and a note after each."""
    kept = store.MARK_BYTES, coding.BUDGET
    store.MARK_BYTES, coding.BUDGET = 1000, 2000
    try:
        yield
    finally:
        store.MARK_BYTES, coding.BUDGET = kept


def make_stopped(folder: Path) -> Any:
    """A store that is half written. Its source lies beside the folder, and is not altered."""

    class Stop(Exception):
        pass

    def stop(done: int, of: int) -> None:
        if done > of / 2:
            raise Stop

    matrix = np.tile(X, (8, 1))
    np.save(folder.parent / "source.npy", matrix)
    with small(), suppress(Stop):
        write_store(folder.parent / "source.npy", folder / "store", MDSCode(4, 2), progress=stop)
    assert (folder / "store" / "progress.json").exists()
    return product_of(matrix)


def resumed(folder: Path) -> Any:
    """Go on with it, then multiply."""
    with small():
        write_store(folder.parent / "source.npy", folder / "store", MDSCode(4, 2))
    open_store(folder / "store").verify()
    return product(folder)


# Models.


def make_model(folder: Path, model: Any, y: Any) -> Any:
    save(model.fit(X, y), folder / "model.kofn")
    return scores(folder)


def scores(folder: Path) -> Any:
    model = load(folder / "model.kofn")
    rows = np.resize(X, (3, model.n_features_in_))
    found = model.predict_proba(rows) if hasattr(model, "predict_proba") else model.predict(rows)
    return np.asarray(found, float)


def reseal_saved(folder: Path, pattern: str = "*.kofn") -> None:
    for path in folder.glob(pattern):
        data = path.read_bytes()
        path.write_bytes(data[:-64] + saved._digest(memoryview(data)[:-64]))


def no_object(value: Any) -> bool:
    """Coefficients of a sealed file may be any numbers: NaN, too."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def equal(good: Any, value: Any, folder: Path) -> bool:
    return bool(np.array_equal(good, value))


# Checkpoints.


def make_checkpoints(folder: Path) -> Any:
    """Two of a loop of somebody's own."""
    where = kofn.Checkpoint(folder / "loop", every=0)
    for step in (1, 2):
        assert where.offer({"step": step, "w": W * step})
    return W


def own_loop_right(good: Any, state: Any, folder: Path) -> bool:
    """The newest, or the one before."""
    step = state.get("step")
    return type(step) is int and step in (1, 2) and np.array_equal(state.get("w"), good * step)


def fitted(folder: Path) -> Any:
    """Coefficients of a fit with checkpoints; of one that has ended, by reading them."""
    model = Ridge(cluster="virtual", solver="gd", tol=0.1)
    where = kofn.Checkpoint(folder / "fit", every=0)
    return np.append(model.fit(X, X @ W, checkpoint=where).coef_, model.intercept_)


reseal_checkpoints = partial(reseal_saved, pattern="*/checkpoint-*")


# Tables and matrices, with readers of their own to compare with.


def make_csv(folder: Path) -> None:
    with (folder / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*"abcde", "y"], *([*x, y] for x, y in zip(X, Y, strict=True))])


def table(name: str, labels: str | None = None) -> Callable[[Path], Any]:
    return lambda folder: tables.read(folder / name, None, folder / labels if labels else None)[:2]


def dense(value: Any) -> Any:
    rows, labels = value
    return (rows.toarray() if hasattr(rows, "toarray") else rows), labels


def csv_right(_: None, value: Any, folder: Path) -> bool:
    text = (folder / "data.csv").read_bytes().decode("utf-8-sig")  # \r\n stays within quotes
    rows = list(csv.reader(io.StringIO(text, newline="")))
    rows = [row for row in rows if "".join(row).strip() or row[1:]][1:]
    numbers = np.array([[float(cell) for cell in row[:-1]] for row in rows])
    found, labels = dense(value)
    same = all(
        str(a).strip() == b.strip() or float(a) == float(b.strip())
        for a, b in zip(labels, (row[-1] for row in rows), strict=True)
    )
    return same and np.array_equal(found, numbers, equal_nan=True)


def make_libsvm(folder: Path) -> None:
    lines = [
        f"{y} " + " ".join(f"{i}:{v}" for i, v in enumerate(x, 1))
        for x, y in zip(X, Y, strict=True)
    ]
    (folder / "data.svm").write_text("\n".join(lines) + "\n")


def libsvm_right(_: None, value: Any, folder: Path) -> bool:
    """Each line by itself; what scikit-learn reads more loosely than this is left to it."""
    found, labels = dense(value)
    lines = (folder / "data.svm").read_bytes().split(b"\n")
    lines = [text for line in lines if (text := line.split(b"#")[0]).strip()]
    if len(lines) != len(found) or len(labels) != len(found):
        return False
    try:
        entries = [[entry.split(b":") for entry in line.split()[1:]] for line in lines]
        pairs = [[(int(i), float(v)) for i, v in row] for row in entries]
    except ValueError:
        return bool(np.isfinite(labels).all())
    zero = any(i == 0 for row in pairs for i, _ in row)
    expected = np.zeros_like(found)
    for row, line in enumerate(pairs):
        for i, v in line:
            expected[row, i - (not zero)] += v
    return np.array_equal(found, expected, equal_nan=True)


def make_npy(folder: Path) -> None:
    np.save(folder / "data.npy", X)
    np.save(folder / "labels.npy", Y)


def npy_right(_: None, value: Any, folder: Path) -> bool:
    expected = (np.load(folder / name) for name in ("data.npy", "labels.npy"))
    return all(a.tobytes() == b.tobytes() for a, b in zip(value, expected, strict=True))


def make_parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {**{name: X[:, i] for i, name in enumerate("abcde")}, "y": Y}
    pq.write_table(pa.table(columns), folder / "data.parquet", write_page_checksum=True)


def parquet_right(_: None, value: Any, folder: Path) -> bool:
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "data.parquet")
    columns = [np.asarray(column.to_pylist()) for column in table.columns]
    found, labels = dense(value)
    expected = np.stack(columns[:-1], axis=1).astype(float)
    same = np.array_equal(labels.astype(str), columns[-1].astype(str))
    return same and np.array_equal(found, expected, equal_nan=True)


def source(name: str) -> Callable[[Path], Any]:
    """A matrix as `encode` reads it: all rows, and by pieces."""

    def read(folder: Path) -> Any:
        opened = open_source(folder / name)
        ready = opened.ready(7)
        rows = [ready.rows(a, min(a + 7, opened.shape[0])) for a in range(0, opened.shape[0], 7)]
        return sp.vstack(rows, "csr") if opened.sparse else np.concatenate(rows)

    return read


def source_npy_right(_: None, value: Any, folder: Path) -> bool:
    return np.array_equal(value, np.load(folder / "data.npy").astype(value.dtype), equal_nan=True)


def make_npz(folder: Path) -> None:
    sp.save_npz(folder / "data.npz", sp.csr_array(np.where(np.abs(X) > 1, X, 0)))


def npz_right(_: None, value: Any, folder: Path) -> bool:
    expected: Any = sp.csr_array(sp.load_npz(folder / "data.npz"))
    expected.sum_duplicates()
    return value.shape == expected.shape and all(
        np.array_equal(getattr(value, name), getattr(expected, name), equal_nan=True)
        for name in ("indptr", "indices", "data")
    )


# Traces.


def make_spot(folder: Path) -> None:
    rows = [(0, "add", "a"), (0, "add", "b"), (900, "remove", "a"), (1500, "add", "c")]
    lines = ["time_ms,event,node", *(f"{t},{e},{n}" for t, e, n in rows)]
    (folder / "spot.csv").write_text("\n".join(lines) + "\n")


def spot_right(_: None, trace: Any, folder: Path) -> bool:
    """It plays: who goes is there, time never runs backwards, and so on."""
    times = [event.time for event in trace.events]
    changes = list(trace.membership(600.0).changes(np.random.default_rng(0)))
    known = trace.at_start + sum(change.worker is None for change in changes)
    return (
        times == sorted(times)
        and trace.at_start >= 1
        and trace.most >= 1
        and all(change.worker is None or change.worker < known for change in changes)
    )


def make_timings(folder: Path) -> None:
    tables = {f"run_load{load}": np.abs(X) * load for load in (0.5, 1.0)}
    np.savez(folder / "timings.npz", allow_pickle=False, **tables)
    lines = ["job,worker,time,batch_time_norm"]
    lines += [f"7,{w},{t},{500 + 10 * w + t}" for t in range(4) for w in range(3)]
    (folder / "timings.csv").write_text("\n".join(lines) + "\n")


def timings(name: str) -> Callable[[Path], Any]:
    return lambda folder: read_timings(folder / name)


def timings_right(_: None, found: Any, folder: Path) -> bool:
    """They play, and are times."""
    dice = np.random.default_rng(0)
    for recording in found.values():
        delays = recording.delays(work=0.0)
        for worker in range(recording.workers):
            wait, work = delays.timing(dice, worker, 1, 1.0)
            if not (0 <= wait < math.inf and work == 0):
                return False
        if recording.rounds < 1 or any(not np.isfinite(t).all() for t in recording.timings):
            return False
    return len(found) > 0


# What a cluster costs, and who was there.


# The log of a run.


def make_log(folder: Path) -> None:
    faults = Faults().lose(1, round=2).join(round=3)
    with kofn.connect(faults.on(VirtualEngine(5)), log=folder / "run.jsonl") as cluster:
        matrix = cluster.encode(X, k=3)
        for _ in range(4):
            matrix @ W
            matrix.T @ Y.astype(float)
        cluster.announce(3, 0.5)
        cluster.parts(X).sum(lambda part, x: part.sum(), None)


def shown(folder: Path) -> int:
    """How many records there are, once a page and a trace were made of them."""
    log = folder / "run.jsonl"
    reader = LogReader(log)
    try:
        show.read(reader, 0.1).head()
    finally:
        reader.close()
    records = read_log(log)
    perfetto.trace(records)
    return len(records)


def log_right(_: None, count: int, folder: Path) -> bool:
    lines = (folder / "run.jsonl").read_bytes().split(b"\n")[:-1]
    kinds = [json.loads(line)["kind"] for line in lines]
    return count == len(kinds) - kinds.count("log")


def make_costs(folder: Path) -> Any:
    kofn.Costs(latency=0.25).save(folder / "costs.json")
    return kofn.Costs(latency=0.25)


def costs_right(_: Any, costs: Any, folder: Path) -> bool:
    """Every field is a number, as in the file."""
    text = (folder / "costs.json").read_text()
    found = {"per_number": 0.0, **json.loads(text)}  # files of before it have none
    return all(value == float(found[name]) for name, value in asdict(costs).items())


def make_machines(folder: Path) -> None:
    lines = ["time_s,instances,price_usd_per_h", "0,3,1.5", "600,2,1.25", "900,5,2"]
    (folder / "machines.csv").write_text("\n".join(lines) + "\n")


def machines_right(_: None, found: Any, folder: Path) -> bool:
    (trace,) = found.values()
    if not isinstance(trace, SpotTrace):
        return True
    times = [event.time for event in trace.events]  # machines may also come later than at time 0
    return times == sorted(times) and trace.most >= 1


# The table.


def stored(
    make: Callable[[Path], Any],
    files: str = "store/*",
    read: Callable[[Path], Any] = product,
    **more: Any,
) -> Kind:
    """A kind of store."""
    return Kind(make, read, close, reseal_store, whole=no_object, files=files, **more)


def model(estimator: Any, y: Any) -> Kind:
    """A kind of model."""
    return Kind(partial(make_model, model=estimator, y=y), scores, equal, reseal_saved, no_object)


NET = CodedMLPClassifier((4, 3), max_epochs=1, random_state=0, cluster="virtual")
KINDS: dict[str, Kind] = {
    "store": stored(make_store),
    "manifest": stored(make_store, "store/manifest.json"),
    "sparse store": stored(partial(make_store, sparse=True)),
    "zarr store": stored(partial(make_store, fmt="zarr"), "store/**/*", needs="zarr"),
    "stopped store": stored(make_stopped, read=resumed),
    "linear model": model(LinearSVC(cluster="virtual"), Y),
    "ridge model": model(Ridge(cluster="virtual"), X @ W),
    "network": model(NET, Y),
    "checkpoints": Kind(
        *(make_checkpoints, lambda folder: kofn.resume(folder / "loop"), own_loop_right),
        *(reseal_checkpoints, lambda state: isinstance(state, dict), "loop/*"),
    ),
    "fit to resume": Kind(fitted, fitted, equal, reseal_checkpoints, no_object, "fit/*"),
    "csv": Kind(make_csv, table("data.csv"), csv_right),
    "libsvm": Kind(make_libsvm, table("data.svm"), libsvm_right),
    "npy": Kind(make_npy, table("data.npy", "labels.npy"), npy_right),
    "parquet": Kind(make_parquet, table("data.parquet"), parquet_right, needs="pyarrow"),
    "npy to encode": Kind(make_npy, source("data.npy"), source_npy_right, files="data.npy"),
    "npz to encode": Kind(make_npz, source("data.npz"), npz_right),
    "spot trace": Kind(make_spot, lambda folder: read_spot_trace(folder / "spot.csv"), spot_right),
    "costs": Kind(make_costs, lambda folder: kofn.Costs.load(folder / "costs.json"), costs_right),
    "log of a run": Kind(make_log, shown, log_right, whole=lambda count: count > 0),
    "machines": Kind(
        *(make_machines, lambda folder: read_membership(folder / "machines.csv"), machines_right)
    ),
    "timings": Kind(make_timings, timings("timings.npz"), timings_right, files="*.npz"),
    "timings of jobs": Kind(make_timings, timings("timings.csv"), timings_right, files="*.csv"),
}
