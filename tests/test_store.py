"""The share store: every kind of source, streamed writing, resuming, and files that lie."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import examples

from kofn import connect
from kofn.arrays import coding, store
from kofn.arrays.coding import make_share
from kofn.arrays.scales import scales_of
from kofn.arrays.shares import resolve_source, shares_from
from kofn.arrays.store import Store, is_store, open_store, write_store
from kofn.cli import main
from kofn.codes.mds import MDSCode
from kofn.engines.local import LocalEngine
from kofn.errors import BadInput, BadStore
from kofn.model import Build, Failed, Piece, Reply, Stored, Task

CODE = MDSCode(6, 4)


def data(shape: tuple[int, int] = (103, 7), dtype: Any = np.float64) -> NDArray[Any]:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def some_csr(shape: tuple[int, int] = (103, 30), dtype: Any = np.float64) -> Any:
    A = data(shape, dtype)
    A[np.abs(A) < 1.6] = 0
    return sp.csr_array(A)


def assert_shares_right(made: Any, code: MDSCode, A: NDArray[Any]) -> None:
    """Each share is encode_share's of scaled rows: plain blocks to the last bit, the rest nearly.

    k products and sums in double precision, in whatever order, on both sides; a float32 share is
    then rounded once on each side.
    """
    scales = scales_of(A, code.k)
    A = A if scales is None else scales.over(A)
    B, k = code.block_rows(len(A)), code.k
    padded = np.zeros((k * B, A.shape[1]))
    padded[: len(A)] = np.abs(A)
    blocks = padded.reshape(k, B, -1)
    for s in range(code.n):
        share = made(s)
        sparse = bool(sp.issparse(share))
        found = share.toarray() if sparse else share
        want = code.encode_share(s, A)
        assert found.shape == want.shape
        assert found.dtype == want.dtype
        if sparse:
            assert share.has_sorted_indices
        g = np.abs(code.row(s))
        if np.count_nonzero(g) == 1 and g.max() == 1.0:
            assert np.array_equal(found, want)
        else:
            bound = 2 * k * np.finfo(np.float64).eps * np.tensordot(g, blocks, 1)
            if want.dtype == np.float32:
                bound += 2 * np.finfo(np.float32).eps * np.abs(want)
            assert (np.abs(found.astype(float) - want) <= bound).all()


def kofn(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", "from kofn.cli import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


# Round trips.


@pytest.mark.slow
@examples(60)
@given(
    N=st.integers(1, 40),
    d=st.integers(1, 6),
    k=st.integers(1, 7),
    more=st.integers(0, 5),
    single=st.booleans(),
    sparse=st.booleans(),
    budget=st.sampled_from([1, 500, 1 << 20]),
)
def test_any_shape_in_any_chunks_gives_the_shares_of_the_code(
    N: int, d: int, k: int, more: int, single: bool, sparse: bool, budget: int
) -> None:
    code, dtype = MDSCode(k + more, k), np.dtype(np.float32 if single else np.float64)
    A = data((N, d), dtype)
    source: Any = A
    if sparse:
        A[np.abs(A) < 0.8] = 0
        source = sp.csr_array(A)
    with tempfile.TemporaryDirectory() as where, pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "BUDGET", budget)
        manifest = write_store(source, where, code)
        made = open_store(where)
        made.verify()
        assert made.manifest == manifest
        assert (made.shape, made.dtype, made.sparse) == ((N, d), dtype, sparse)
        assert_shares_right(made.share, code, A)
        scales = scales_of(source, k)
        assert_shares_right(lambda s: make_share(source, code, s, scales=scales), code, A)


@pytest.mark.parametrize("where", ["local", "memory"])
@pytest.mark.parametrize("fmt", ["npy", "zarr"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_both_formats_here_and_elsewhere(
    where: str, fmt: str, dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in {"npy": [], "zarr": ["zarr"]}[fmt] + ["fsspec"] * (where == "memory"):
        pytest.importorskip(module)
    monkeypatch.setattr(coding, "BUDGET", 3000)
    A = data(dtype=dtype)
    place = f"memory://{tmp_path.name}/store" if where == "memory" else str(tmp_path / "store")
    write_store(A, place, CODE, fmt=fmt)
    made = open_store(place)
    made.verify()
    assert is_store(place)
    assert_shares_right(made.share, CODE, A)
    if fmt == "npy" and where == "local":  # plain files: anybody can read them
        assert np.array_equal(np.load(tmp_path / "store" / "share-0005.npy"), made.share(5))


def sources(folder: Path) -> dict[str, tuple[Any, NDArray[Any]]]:
    """One file of each kind, and the matrix in it."""
    A, S = data(), some_csr()
    np.save(folder / "c.npy", A)
    np.save(folder / "fortran.npy", np.asfortranarray(A))
    np.save(folder / "big-endian.npy", A.astype(">f8"))
    np.save(folder / "int.npy", (10 * A).astype(np.int16))
    sp.save_npz(folder / "s.npz", S)
    return {
        "array": (A, A),
        "fortran array": (np.asfortranarray(A), A),
        "strided": (data((206, 14))[::2, ::2], data((206, 14))[::2, ::2]),
        "float32": (A.astype(np.float32), A.astype(np.float32)),
        "csr": (S, S.toarray()),
        "csr_matrix float32": (sp.csr_matrix(S.astype("f4")), S.astype("f4").toarray()),
        "npy": (folder / "c.npy", A),
        "file url": (f"file://{folder}/c.npy", A),
        "fortran npy": (str(folder / "fortran.npy"), A),
        "big endian": (folder / "big-endian.npy", A),
        "integers": (folder / "int.npy", (10 * A).astype(np.int16).astype(float)),
        "npz": (folder / "s.npz", S.toarray()),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "array",
        "fortran array",
        "strided",
        "float32",
        "csr",
        "csr_matrix float32",
        "npy",
        "file url",
        "fortran npy",
        "big endian",
        "integers",
        "npz",
    ],
)
def test_every_source_that_needs_no_extra(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coding, "BUDGET", 4000)
    source, A = sources(tmp_path)[kind]
    write_store(source, tmp_path / "store", CODE)
    assert_shares_right(open_store(tmp_path / "store").share, CODE, A)


@pytest.mark.parametrize("budget", [4000, 1 << 20])
def test_zarr_and_parquet_with_tall_chunks_and_small_ones(
    budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr, pa = pytest.importorskip("zarr"), pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(coding, "BUDGET", budget)
    A = data()
    made: list[tuple[Any, NDArray[Any]]] = []
    for version, chunks in ((3, (10, 7)), (2, (90, 3))):
        path = tmp_path / f"a{version}.zarr"
        array = zarr.create_array(
            str(path), shape=A.shape, chunks=chunks, dtype="f8", zarr_format=version
        )
        array[:] = A
        made += [(path, A), (array, A)]
    for rows, dtype in ((20, "f4"), (1000, "f8")):
        path = tmp_path / f"{rows}.parquet"
        table = {f"c{j}": A[:, j].astype(dtype) for j in range(7)}
        if dtype == "f8":
            table["c0"] = (100 * A[:, 0]).astype("i8")
        pq.write_table(pa.table(table), path, row_group_size=rows)
        want = np.column_stack(list(table.values()))
        made.append((path, want))
        source = resolve_source(path)
        assert not isinstance(source, Store)
        assert source is not None
        assert np.array_equal(source.rows(15, 47), want[15:47])
    for i, (source, want) in enumerate(made):
        write_store(source, tmp_path / f"store{i}", CODE)
        assert_shares_right(open_store(tmp_path / f"store{i}").share, CODE, want)


@pytest.mark.parametrize("name", ["a.svm", "a.txt.gz", "a.libsvm.bz2"])
@pytest.mark.parametrize("first", [0, 1])
def test_libsvm_text(
    name: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bz2
    import gzip

    monkeypatch.setattr("kofn.arrays.text.PIECE", 300)  # lines are cut in the middle
    A = some_csr().toarray()
    A[50] = 0
    A[0, [0, 29]] = 1.5
    S = sp.csr_array(A)
    labels = np.arange(103) % 3 - 1.0
    lines = []
    for i in range(103):
        row = S[i : i + 1]
        cells = zip(row.indices.tolist(), row.data.tolist(), strict=True)
        lines.append(" ".join([f"{labels[i]:g}", *(f"{j + first}:{v!r}" for j, v in cells)]))
    text = "\n".join(lines).encode()
    opener: Any = gzip.open if name.endswith("gz") else bz2.open if name.endswith("bz2") else open
    with opener(tmp_path / name, "wb") as file:
        file.write(text)
    source = resolve_source(tmp_path / name)
    assert not isinstance(source, Store)
    assert source is not None
    assert source.sparse
    found = source.labels()
    assert found is not None
    assert np.array_equal(found, labels)
    write_store(source, tmp_path / "store", CODE)
    assert_shares_right(open_store(tmp_path / "store").share, CODE, S.toarray())


def test_sources_and_sparse_stores_behind_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    A, S = data(), some_csr()
    for name, content in (("A.npy", A), ("F.npy", np.asfortranarray(A))):
        with fs.open(f"/{tmp_path.name}/{name}", "wb") as file:
            np.save(file, content)
        url = f"memory://{tmp_path.name}/{name}"
        write_store(url, tmp_path / name, CODE)
        assert_shares_right(open_store(tmp_path / name).share, CODE, A)
    write_store(S, f"memory://{tmp_path.name}/sparse", CODE)
    assert_shares_right(open_store(f"memory://{tmp_path.name}/sparse").share, CODE, S.toarray())
    with fs.open(f"/{tmp_path.name}/t.svm", "wb") as file:
        file.write(b"1 1:2.5 3:1\n-1 2:4\n")
    write_store(f"memory://{tmp_path.name}/t.svm", tmp_path / "t", MDSCode(2, 1))
    want = np.array([[2.5, 0, 1], [0, 4, 0]])
    assert np.array_equal(open_store(tmp_path / "t").share(0).toarray(), want)


@pytest.mark.parametrize("kind", ["npy", "npz", "svm", "zarr", "array"])
def test_columns_of_files_and_stores(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kofn.arrays.turned.PIECE", 4000)  # a few rows of the file at a time
    A = data((31, 103)) if kind in ("npy", "zarr", "array") else some_csr((31, 103)).toarray()
    where: Any = str(tmp_path / f"A.{kind}")
    if kind == "npy":
        np.save(where, A)
    elif kind == "npz":
        sp.save_npz(where, sp.csr_array(A))
    elif kind == "svm":
        A[0, -1] = 2.0
        rows = [" ".join(f"{j + 1}:{x!r}" for j, x in enumerate(row) if x) for row in A.tolist()]
        Path(where).write_text("".join(f"0 {row}\n" for row in rows))
    elif kind == "zarr":
        zarr = pytest.importorskip("zarr")
        zarr.create_array(where, shape=A.shape, dtype=A.dtype, chunks=(31, 10))[:] = A
    else:
        where = A
    for _ in range(2):  # the second finds it complete, or begins anew
        manifest = write_store(where, tmp_path / "store", CODE, axis=1, resume=kind != "array")
    assert (manifest.shape, manifest.axis) == ((103, 31), 1)
    assert_shares_right(open_store(tmp_path / "store").share, CODE, A.T.copy())
    with connect("virtual", workers=5) as cluster:
        for X in (
            cluster.encode(tmp_path / "store", axis=1),
            cluster.encode(where, k=3, axis=1, verify="probe"),
        ):
            cluster.lose(cluster.workers[0])
            np.testing.assert_allclose(X @ np.ones(103), A @ np.ones(103), atol=1e-12)
            np.testing.assert_allclose(X.T @ np.ones(31), A.T @ np.ones(31), atol=1e-12)
        with pytest.raises(BadInput, match="was cut by columns, and axis=0 cuts by rows"):
            cluster.encode(tmp_path / "store")


def test_a_store_written_as_float32(tmp_path: Path) -> None:
    from kofn.arrays.sources import Recast, open_source

    A = data()
    for source in (A, sp.csr_array(A)):
        where = tmp_path / type(source).__name__
        write_store(Recast(open_source(source), np.float32), where, CODE)
        assert_shares_right(open_store(where).share, CODE, A.astype(np.float32))


# What workers do.


def test_a_worker_maps_its_own_share(tmp_path: Path) -> None:
    A = data()
    write_store(A, tmp_path / "store", CODE)
    made = open_store(tmp_path / "store")
    build = pickle.loads(pickle.dumps(made.share_build(5)))
    share = build.fn(*build.args)
    assert type(share) is np.ndarray
    share[:] = 0  # an update in place is the worker's own
    made.verify()
    assert_shares_right(made.share, CODE, A)


def _total(kept: Any, operand: Any) -> tuple[Piece]:
    return (Piece(None, kept["share"] @ operand),)


@pytest.mark.engine
def test_a_real_worker_loads_dense_and_sparse_shares_and_says_what_is_wrong(tmp_path: Path) -> None:
    A, S = data((103, 30)), some_csr()
    write_store(A, tmp_path / "dense", CODE)
    write_store(S, tmp_path / "sparse", CODE)
    with LocalEngine(1) as engine:
        (worker,) = engine.workers
        w = np.ones(30)
        for round, (name, matrix) in enumerate((("dense", A), ("sparse", S.toarray())), 1):
            engine.put(worker, "share", open_store(tmp_path / name).share_build(5))
            engine.broadcast(round, w)
            engine.submit(Task(round, round, worker, _total))
            events = _events(engine, 2)
            assert isinstance(events[0], Stored)
            assert isinstance(events[1], Reply)
            assert np.allclose(events[1].value, CODE.encode_share(5, matrix) @ w)
        (tmp_path / "dense" / "share-0002.npy").unlink()
        engine.put(worker, "share", open_store(tmp_path / "dense").share_build(2))
        (event,) = _events(engine, 1)
        assert isinstance(event, Failed)
        assert "share-0002.npy" in event.error


def _events(engine: LocalEngine, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += engine.events(10.0)
    return found


def test_shares_from_a_store_or_a_file_are_what_a_coded_matrix_wants(tmp_path: Path) -> None:
    A = data()
    np.save(tmp_path / "A.npy", A)
    write_store(A, tmp_path / "store", CODE)
    assert resolve_source(A) is None
    for path, where in ((tmp_path / "A.npy", "file"), (str(tmp_path / "store"), "store")):
        found = resolve_source(path)
        assert found is not None, where
        shares = shares_from(found, CODE)
        assert (shares.code, shares.shape, shares.dtype) == (CODE, A.shape, A.dtype)
        build = shares.share_of(4)
        assert isinstance(build, Build)
        assert_shares_right(lambda s, of=shares.share_of: of(s).fn(*of(s).args), CODE, A)
    (tmp_path / "t.svm").write_text("1 1:2 2:1\n0 1:1\n")
    text = resolve_source(tmp_path / "t.svm")
    assert text is not None
    assert np.array_equal(shares_from(text, MDSCode(1, 1)).share_of(0).toarray(), [[2, 1], [1, 0]])
    for share in (1, 2, 3):  # three of six are gone, and any four would do
        (tmp_path / "store" / f"share-000{share}.npy").write_bytes(b"")
    with pytest.raises(BadStore, match=r"share-0001\.npy.*only 3 are whole"):
        shares_from(open_store(tmp_path / "store"), CODE)
    A[99, 3] = np.nan
    np.save(tmp_path / "nan.npy", A)
    bad = resolve_source(tmp_path / "nan.npy")
    assert bad is not None
    with pytest.raises(BadInput, match=r"Entry \[99, 3\] is nan"):
        shares_from(bad, CODE)


# Stopped in the middle.

STOPPED = """
    import os, signal, sys
    from kofn.arrays import coding, store, writers
    from kofn.codes.mds import MDSCode

    coding.BUDGET, store.MARK_BYTES = 20_000, 40_000
    source, where, fmt, stop = sys.argv[1:]
    def die(*_): os.kill(os.getpid(), signal.SIGKILL)
    if stop == "rename":
        kind = {"npy": writers.NpyWriter, "zarr": writers.ZarrWriter}[fmt]
        finish = kind.finish
        def last(self):
            finish(self)
            if "0003" in self.name: die()
        kind.finish = last
    if stop == "manifest":
        store.Manifest.write = die
    seen = []
    def progress(done, total):
        seen.append(done)
        if stop == "middle" and done > 0.6 * total: die()
    store.write_store(source, where, MDSCode(6, 4), fmt=fmt, progress=progress)
    print(seen[0])
"""


def encode_until(
    source: Path, where: Path, fmt: str, stop: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STOPPED), source, where, fmt, stop],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "stop"),
    [
        pytest.param(kind, stop, marks=[] if j == (i + 1) % 3 else pytest.mark.long)
        for i, kind in enumerate(["npy", "zarr", "sparse"])
        for j, stop in enumerate(["middle", "rename", "manifest"])
    ],
)
def test_a_killed_run_leaves_no_store_and_goes_on(
    kind: str, stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "zarr":
        pytest.importorskip("zarr")
    A = data((2003, 30))
    path, fmt = tmp_path / "A.npy", "zarr" if kind == "zarr" else "npy"
    if kind == "sparse":
        path = tmp_path / "A.npz"
        A[np.abs(A) < 1] = 0
        sp.save_npz(path, sp.csr_array(A))
    else:
        np.save(path, A)
    where = tmp_path / "store"
    killed = encode_until(path, where, fmt, stop)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(BadStore, match="not complete"):
        open_store(where)
    whole = [p.name for p in where.iterdir() if p.name.startswith("share") and p.suffix != ".part"]
    assert stop != "middle" or whole == []  # a share has its name only when it is whole
    done = encode_until(path, where, fmt, "never")
    assert done.returncode == 0, done.stderr
    rows = CODE.block_rows(2003)
    assert int(done.stdout) > (rows // 3 if stop == "middle" else rows - 1)  # not from the start
    made = open_store(where)
    made.verify()
    assert_shares_right(made.share, CODE, A)
    assert sorted(p.name for p in where.iterdir()) == sorted(
        ["manifest.json", *(file.name for files in made.manifest.shares for file in files)]
    )
    monkeypatch.setattr(coding, "BUDGET", 20_000)
    assert write_store(path, tmp_path / "at-once", CODE, fmt=fmt) == made.manifest


@pytest.mark.engine
def test_a_share_altered_between_two_runs_is_written_again(tmp_path: Path) -> None:
    A, where = data((2003, 30)), tmp_path / "store"
    np.save(tmp_path / "A.npy", A)
    encode_until(tmp_path / "A.npy", where, "npy", "middle")
    kept = (where / "share-0001.npy.part").stat().st_ino
    with (where / "share-0004.npy.part").open("r+b") as file:
        file.seek(500)
        file.write(b"other")
    (where / "share-0002.npy.part").unlink()
    done = encode_until(tmp_path / "A.npy", where, "npy", "never")
    assert int(done.stdout) > 0, done.stderr
    open_store(where).verify()
    assert_shares_right(open_store(where).share, CODE, A)
    assert (where / "share-0001.npy").stat().st_ino == kept


@pytest.mark.engine
def test_a_source_that_changed_begins_anew(tmp_path: Path) -> None:
    A, where = data((2003, 30)), tmp_path / "store"
    np.save(tmp_path / "A.npy", A)
    encode_until(tmp_path / "A.npy", where, "npy", "middle")
    np.save(tmp_path / "A.npy", -A)
    done = encode_until(tmp_path / "A.npy", where, "npy", "never")
    assert done.stdout == "0\n", done.stderr
    assert_shares_right(open_store(where).share, CODE, -A)


@pytest.mark.engine
def test_kills_at_any_moment(tmp_path: Path) -> None:
    A, where = data((60_003, 30)), tmp_path / "store"
    np.save(tmp_path / "A.npy", A)
    script = textwrap.dedent(STOPPED)
    late = 0.0
    for attempt in range(6):
        args = [sys.executable, "-c", script, str(tmp_path / "A.npy"), str(where), "npy", "never"]
        process = subprocess.Popen(args, stdout=subprocess.PIPE)
        try:
            process.wait(0.3 + late + 0.05 * attempt)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
        if process.returncode == 0:
            break
        late = 0.0 if where.exists() else late + 0.3  # a busy machine needs longer to begin
        if (where / "manifest.json").exists():
            break  # killed when all was written: the manifest is the last
    write_store(tmp_path / "A.npy", where, CODE)
    open_store(where).verify()
    assert_shares_right(open_store(where).share, CODE, A)


def test_a_complete_store_is_left_alone_and_another_is_not_overwritten(tmp_path: Path) -> None:
    A, where = data(), tmp_path / "store"
    np.save(tmp_path / "A.npy", A)
    first = write_store(tmp_path / "A.npy", where, CODE)
    stamp = (where / "share-0003.npy").stat().st_mtime_ns
    assert write_store(tmp_path / "A.npy", where, CODE) == first
    assert (where / "share-0003.npy").stat().st_mtime_ns == stamp
    for source, code in ((tmp_path / "A.npy", MDSCode(6, 3)), (A, CODE)):
        with pytest.raises(BadInput, match="holds a store already"):
            write_store(source, where, code)
    write_store(-A, where, MDSCode(3, 2), resume=False)
    assert len(list(where.iterdir())) == 4  # nothing is left of the six
    assert_shares_right(open_store(where).share, MDSCode(3, 2), -A)


# Memory.

MEASURED = """
    import re, sys
    import numpy as np
    from kofn.arrays import coding
    from kofn.arrays.store import write_store
    from kofn.codes.mds import MDSCode

    def status(name):
        return int(re.search(name + r":\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
    coding.BUDGET = 8 << 20
    write_store(np.ones((500, 50)), sys.argv[2] + "-small", MDSCode(20, 10))  # imports and caches
    before = status("VmRSS")
    write_store(sys.argv[1], sys.argv[2], MDSCode(20, 10))
    print(status("VmHWM") - before)
"""


@pytest.mark.engine
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    np.save(tmp_path / "A.npy", np.ones((15_000, 500)))  # 60 MB in, 120 MB out
    script = [sys.executable, "-c", textwrap.dedent(MEASURED)]
    done = subprocess.run(
        [*script, tmp_path / "A.npy", tmp_path / "store"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 24 << 20  # the chunk, a product of it in doubles, and slack
    open_store(tmp_path / "store").verify()


# Files that lie.


@pytest.fixture
def where(tmp_path: Path) -> Path:
    write_store(data(), tmp_path / "store", CODE)
    return tmp_path / "store"


def test_a_cut_file(where: Path) -> None:
    share = where / "share-0001.npy"
    os.truncate(share, share.stat().st_size - 8)
    made = open_store(where)
    with pytest.raises(BadStore, match=r"share-0001\.npy.*cut") as caught:
        made.share(1)
    assert caught.value.path == str(share)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.path, str(again)) == (caught.value.path, str(caught.value))
    made.share(2)
    with pytest.raises(BadStore, match=r"share-0001\.npy"):
        made.verify()
    os.truncate(share, 20)
    with pytest.raises(BadStore, match=r"share-0001\.npy"):
        made.share(1)


def test_an_altered_file(where: Path) -> None:
    with (where / "share-0002.npy").open("r+b") as file:
        file.seek(300)
        file.write(b"\x01")
    made = open_store(where)
    made.share(2)  # a map reads nothing
    with pytest.raises(BadStore, match=r"share-0002\.npy.*checksum"):
        made.share(2, verify=True)
    with pytest.raises(BadStore, match=r"share-0002\.npy.*checksum"):
        made.verify()


def test_a_foreign_file(where: Path) -> None:
    made = open_store(where)
    np.save(where / "share-0003.npy", np.ones((26, 8)))
    with pytest.raises(BadStore, match=r"share-0003\.npy.*another store"):
        made.share(3)
    np.save(where / "share-0003.npy", data((26, 7), np.float32))
    with pytest.raises(BadStore, match=r"share-0003\.npy.*float32"):
        made.share(3)
    shutil.copy(where / "share-0004.npy", where / "share-0003.npy")
    with pytest.raises(BadStore, match=r"share-0003\.npy.*another store"):
        made.verify()
    (where / "share-0003.npy").write_text("hello")
    with pytest.raises(BadStore, match=r"share-0003\.npy"):
        made.share(3)


def test_altered_sparse_and_zarr_files(tmp_path: Path) -> None:
    write_store(some_csr(), tmp_path / "sparse", CODE)
    made = open_store(tmp_path / "sparse")
    columns = np.load(tmp_path / "sparse" / "share-0001.indices.npy")
    columns[3] = 99  # would read beyond the operand
    np.save(tmp_path / "sparse" / "share-0001.indices.npy", columns)
    with pytest.raises(BadStore, match=r"share-0001\.indices\.npy.*columns outside"):
        made.share(1)
    ends = np.load(tmp_path / "sparse" / "share-0002.indptr.npy")
    ends[3] = ends[-1] + 5
    np.save(tmp_path / "sparse" / "share-0002.indptr.npy", ends)
    with pytest.raises(BadStore, match=r"share-0002\.indptr\.npy"):
        made.share(2)
    pytest.importorskip("zarr")
    write_store(data(), tmp_path / "zarr", CODE, fmt="zarr")
    made = open_store(tmp_path / "zarr")
    chunk = tmp_path / "zarr" / "share-0001.zarr" / "c" / "0" / "0"
    chunk.unlink()
    with pytest.raises(BadStore, match=r"share-0001\.zarr.*checksum"):
        made.share(1)  # fetched, so verified: a missing chunk would read as a fill value
    shutil.rmtree(tmp_path / "zarr" / "share-0002.zarr")
    with pytest.raises(BadStore, match=r"share-0002\.zarr"):
        made.share(2)


def test_a_manifest_that_does_not_match(where: Path) -> None:
    path = where / "manifest.json"
    good = json.loads(path.read_text())

    def refused(pattern: str, **changes: Any) -> None:
        path.write_text(json.dumps({**good, **changes}))
        with pytest.raises(BadStore, match=r"manifest\.json.*" + pattern):
            open_store(where)

    refused("another generator", code={**good["code"], "construction": "gaussian"})
    refused("n=5", code={**good["code"], "n": 5})
    refused("share 0 has shapes", code={**good["code"], "k": 3})
    refused("share 0 has shapes", shape=[500, 7])
    refused("format 3", kofn_store=3)
    refused("altered", shares=[])
    refused("altered", code=None)
    refused("int16", dtype="int16")
    outside = [[{**good["shares"][0][0], "name": "../../secret.npy"}], *good["shares"][1:]]
    refused("secret", shares=outside)
    path.write_text(json.dumps(good)[:100])
    with pytest.raises(BadStore, match="not the manifest"):
        open_store(where)
    path.write_text("[]")
    with pytest.raises(BadStore, match="not the manifest"):
        open_store(where)
    path.unlink()
    with pytest.raises(BadStore, match="no kofn store"):
        open_store(where)
    with pytest.raises(BadStore, match="there is no store"):
        open_store(where / "nothing")


def test_another_k_or_n_than_written(where: Path) -> None:
    made = open_store(where)
    assert made.agree() == made.agree(4) == made.agree(4, 6) == CODE
    for k, n in ((3, None), (None, 7), (3, 6)):
        with pytest.raises(BadInput, match="written with k=4, n=6"):
            made.agree(k, n)
    with pytest.raises(BadInput, match="shares 0 to 5"):
        made.share_build(6)


# Bad input.


def test_sources_that_cannot_be_encoded(tmp_path: Path) -> None:
    np.save(tmp_path / "line.npy", np.ones(3))
    np.save(tmp_path / "complex.npy", np.ones((3, 2), complex))
    np.save(tmp_path / "empty.npy", np.ones((0, 2)))
    np.save(tmp_path / "cut.npy", np.ones((30, 20)))
    os.truncate(tmp_path / "cut.npy", 1000)
    np.savez(tmp_path / "dense.npz", a=np.ones(3))
    (tmp_path / "fake.npy").write_text("no")
    (tmp_path / "fake.parquet").write_text("no")
    (tmp_path / "a.csv").write_text("1,2")
    (tmp_path / "bad.svm").write_text("1 1:2\n1 x:3\n")
    (tmp_path / "none.svm").write_text("")
    (tmp_path / "bad.svm.gz").write_text("not gzip")
    (tmp_path / "folder").mkdir()
    rules = {
        "line.npy": "2 dimensions",
        "complex.npy": "real numbers",
        "empty.npy": "at least one row",
        "cut.npy": "was cut",
        "dense.npz": "not a sparse matrix",
        "fake.npy": "does not begin as",
        "fake.parquet": "does not begin as",
        "a.csv": "is read from",
        "bad.svm": "lines 1 to 3",
        "none.svm": "at least one row",
        "bad.svm.gz": "cannot be read",
        "folder": "is a directory",
        "missing.npy": "is not",
    }
    for name, rule in rules.items():
        with pytest.raises(BadInput, match=rule) as caught:
            write_store(tmp_path / name, tmp_path / "store", CODE)
        assert str(tmp_path / name) in str(caught.value)
        assert not (tmp_path / "store").exists()
    with pytest.raises(BadInput, match=r"CSR format.*tocsr"):
        write_store(sp.csc_array(some_csr()), tmp_path / "store", CODE)
    with pytest.raises(BadInput, match="is a file"):
        write_store(data(), tmp_path / "cut.npy", CODE)
    with pytest.raises(BadInput, match="'npy' or 'zarr'"):
        write_store(data(), tmp_path / "store", CODE, fmt="hdf5")
    A = some_csr().toarray()
    A[70, 3] = np.inf
    for made in (A, sp.csr_array(A)):
        with pytest.raises(BadInput, match=r"Entry \[70, 3\] is inf"):
            write_store(made, tmp_path / "store", CODE)
        assert list((tmp_path / "store").iterdir()) == []
    write_store(made, tmp_path / "store", CODE, check_finite=False)


def test_parquet_and_zarr_that_cannot_be_encoded(tmp_path: Path) -> None:
    zarr, pa = pytest.importorskip("zarr"), pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": [1.0], "town": ["Rome"]}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"x": [1.0, None]}), tmp_path / "n.parquet")
    zarr.create_group(str(tmp_path / "g.zarr"))
    for name, rule in (
        ("t.parquet", "column 'town'.*string"),
        ("n.parquet", "column 'x'.*empty cells"),
        ("g.zarr", "not a Zarr array"),
    ):
        with pytest.raises(BadInput, match=rule):
            write_store(tmp_path / name, tmp_path / "store", CODE)
    with pytest.raises(BadInput, match="sparse shares are written as"):
        write_store(some_csr(), tmp_path / "store", CODE, fmt="zarr")


def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_note", full)
    with pytest.raises(BadStore, match="No space left on device"):
        write_store(data(), tmp_path / "store", CODE)


# The command.


@pytest.mark.engine
def test_the_command_for_machines_and_for_people(tmp_path: Path) -> None:
    A = data((500, 20))
    np.save(tmp_path / "A.npy", A)
    args = ("encode", str(tmp_path / "A.npy"), str(tmp_path / "store"), "--n", "6", "--k", "4")
    done = kofn(*args, "--json", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert (result["n"], result["k"], result["share_rows"]) == (6, 4, 125)
    assert result["bytes"] == 6 * 125 * 20 * 4
    assert result["peak_memory_bytes"] > 0
    assert_shares_right(open_store(tmp_path / "store").share, CODE, A.astype(np.float32))
    again = kofn(*args)
    assert again.returncode == 1
    assert again.stderr.startswith("kofn: ")
    assert "holds a store already" in again.stderr
    assert again.stderr.count("\n") == 1
    over = kofn(*args, "--overwrite")
    assert over.returncode == 0, over.stderr
    assert "6 shares of 125 rows, any 4 are enough" in over.stdout
    assert over.stderr == ""  # no progress bar in a pipe
    assert_shares_right(open_store(tmp_path / "store").share, CODE, A)


def test_the_command_says_in_one_line_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "A.npy", data())
    source, where = str(tmp_path / "A.npy"), str(tmp_path / "store")
    for args in (
        (str(tmp_path / "B.npy"), where, "--n", "6", "--k", "4"),
        (source, where, "--n", "4", "--k", "6"),
        (source, where, "--n", "6", "--k", "4", "--dtype", "int8"),
        (source, where, "--n", "6", "--k", "4", "--format", "csv"),
        (source, "/proc/nothing/store", "--n", "6", "--k", "4"),
    ):
        monkeypatch.setattr(sys, "argv", ["kofn", "encode", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        said = capsys.readouterr().err
        assert said.startswith("kofn: ")
        assert said.count("\n") == 1
