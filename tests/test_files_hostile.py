"""Files that somebody has altered, by accident or on purpose: what fuzz.py has found, and more."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import kofn
from kofn import checkpoint
from kofn.arrays import coding, store
from kofn.arrays.manifest import checksum
from kofn.arrays.shares import resolve_source
from kofn.arrays.sources import open_source
from kofn.arrays.store import open_store, write_store
from kofn.codes.mds import MDSCode
from kofn.delays import read_spot_trace, read_timings
from kofn.errors import BadInput, BadStore
from kofn.learn import LogisticRegression, Ridge, TruncatedSVD

CODE = MDSCode(4, 2)
A = np.random.default_rng(0).standard_normal((60, 5))


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that is half written, of A.npy beside it."""

    def stop(done: int, of: int) -> None:
        if done > of / 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(coding, "BUDGET", 2000)
    monkeypatch.setattr(store, "MARK_BYTES", 1000)
    np.save(tmp_path / "A.npy", A)
    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "A.npy", tmp_path / "store", CODE, progress=stop)
    return tmp_path / "store"


@pytest.mark.parametrize("rows", [1, 29, -1, 10**9])
def test_a_note_of_progress_that_was_altered_is_refused(stopped: Path, rows: int) -> None:
    note = stopped / "progress.json"
    content = json.loads(note.read_text())
    assert content["rows"] not in (0, rows)
    note.write_text(json.dumps({**content, "rows": rows}))
    with pytest.raises(BadInput, match=r"progress\.json is none of kofn's notes, or was altered"):
        write_store(stopped.parent / "A.npy", stopped, CODE)
    note.write_text(json.dumps(content))
    write_store(stopped.parent / "A.npy", stopped, CODE)
    open_store(stopped).verify()
    assert np.array_equal(open_store(stopped).share(0), A[:30])


@pytest.mark.parametrize("more", [{"rows": 31}, {"rows": -1}, {"marks": [[], [], [], []]}])
def test_a_note_that_was_made_up_is_of_no_use(stopped: Path, more: dict[str, Any]) -> None:
    """Its checksum is right, and it does not go with the files: the store is written anew."""
    note = stopped / "progress.json"
    content = {**json.loads(note.read_text()), **more}
    note.write_text(json.dumps({**content, "sha256": checksum(content)}))
    write_store(stopped.parent / "A.npy", stopped, CODE)
    open_store(stopped).verify()
    assert np.array_equal(open_store(stopped).share(0), A[:30])


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_json_that_nests_without_end_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(BadStore, match="not the manifest"):
        open_store(tmp_path)
    (tmp_path / "manifest.json").rename(tmp_path / "progress.json")
    with pytest.raises(BadInput, match="none of kofn's notes"):
        write_store(A, tmp_path, CODE)


@pytest.mark.parametrize(("array", "at", "value"), [("indices", 3, 10**6), ("indptr", 2, -9)])
def test_a_sparse_matrix_whose_indices_lead_outside_is_refused(
    tmp_path: Path, array: str, at: int, value: int
) -> None:
    """Products with it would read, and sorting it would write, the memory of others."""
    path = tmp_path / "A.npz"
    sp.save_npz(path, sp.csr_array(A))
    with np.load(path) as found:
        arrays: dict[str, Any] = dict(found)
    arrays[array][at] = value
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(BadInput, match="not a sparse matrix"):
        open_source(path)


def test_a_matrix_of_fewer_than_no_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "A.npy"
    np.save(path, A)
    path.write_bytes(path.read_bytes().replace(b"(60, 5), ", b"(-60, 5),"))
    with pytest.raises(BadInput, match="at least one row"):
        open_source(path)


def test_a_zarr_array_of_pickles_is_refused_whatever_zarr_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    pickles = pytest.importorskip("numcodecs.pickles", reason="numcodecs is not installed")
    # Newer numcodecs do not unpickle by themselves, and newer zarr refuses them; older ones do not.
    monkeypatch.setattr(pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    write_store(A, tmp_path / "store", CODE, fmt="zarr")
    share = tmp_path / "store" / "share-0000.zarr"
    for path in sorted(share.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    array = zarr.create_array(
        str(share), shape=(30, 5), chunks=(30, 5), dtype="f8", zarr_format=2, compressors=None
    )
    array[:] = 0.0
    (share / ".zarray").write_text(
        json.dumps({**json.loads((share / ".zarray").read_text()), "compressor": {"id": "pickle"}})
    )
    for chunk in share.glob("0*"):
        chunk.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BadStore, match="pickle"):
        open_store(tmp_path / "store").share(0)
    with pytest.raises(BadInput, match="pickle"):
        open_source(share)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "line", ["7,nan,0,500", "7,inf,0,500", "7,1e999,0,500", "x,1,0,5", "7,1,0", "7,1,0,nan"]
)
def test_recorded_timings_of_no_worker_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"job,worker,time,batch_time_norm\n7,0,0,500\n{line}\n")
    with pytest.raises(BadInput, match=r"line 3 of|recorded timings are seconds"):
        read_timings(path)


def test_recorded_timings_that_are_no_archive_of_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    with path.open("wb") as file:
        np.save(file, A)
    with pytest.raises(BadInput, match="cannot be read"):
        read_timings(path)
    for table in (np.full((2, 3), "x"), np.ones((2, 3)) * 1j, np.array(b"")):
        np.savez(path, run=table)
        with pytest.raises(BadInput, match=r"are numbers|of numbers|are arrays"):
            read_timings(path)
    tables: dict[str, Any] = {"run_load1.2.3": np.ones((2, 3))}
    np.savez(path, **tables)
    assert read_timings(path)["run_load1.2.3"].loads == (1.0,)


def test_a_line_of_a_spot_trace_that_names_no_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time_ms,event,node\n0,add,a\n0,add\n")
    with pytest.raises(BadInput, match="line 3"):
        read_spot_trace(path)
    path.write_text('time_ms,event,node\n0,add,a\n0,remove,"x\ny"\n')
    with pytest.raises(BadInput, match=r"would remove 'x\\ny', which is not there"):
        read_spot_trace(path)


SPOILED: dict[str, Callable[[Any], object]] = {
    "a column outside": lambda S: S.indices.__setitem__(5, 1000),
    "a column before the first": lambda S: S.indices.__setitem__(5, -1),
    "pointers that begin elsewhere": lambda S: S.indptr.__setitem__(0, -5),
    "pointers that go back": lambda S: S.indptr.__setitem__(3, S.indptr[5]),
    "pointers of floats": lambda S: setattr(S, "indptr", S.indptr.astype(float)),
    "too few pointers": lambda S: setattr(S, "indptr", S.indptr[:-3]),
    "too few numbers": lambda S: setattr(S, "data", S.data[:-4]),
}


@pytest.mark.parametrize("spoil", SPOILED)
def test_indices_in_memory_that_lead_outside_are_refused(tmp_path: Path, spoil: str) -> None:
    whole: Any = sp.csr_array(np.random.default_rng(0).random((60, 8)).round())
    S, y = whole.copy(), np.arange(60) % 2
    SPOILED[spoil](S)
    with kofn.connect("virtual", workers=4) as cluster:
        svd = TruncatedSVD(2, cluster=cluster).fit(whole)
        uses: list[Callable[[], object]] = [
            lambda: cluster.encode(S, k=2),
            lambda: cluster.encode(S, k=2, axis=1),
            lambda: cluster.parts((S, y)),
            lambda: write_store(S, tmp_path / "store", CODE),
            lambda: Ridge(cluster=cluster).fit(S, y),
            lambda: Ridge(cluster=cluster).fit(whole, y).predict(S),
            lambda: LogisticRegression(cluster=cluster, solver="coded-gradient").fit(S, y),
            lambda: svd.transform(S),
        ]
        for use in uses:
            with pytest.raises(BadInput, match="must have indices that fit its shape"):
                use()


def test_a_sparse_matrix_that_is_checked_is_not_changed() -> None:
    S: Any = sp.csr_array(A > 0.5, dtype=np.float64)
    S.data, S.indices = np.append(S.data, np.nan), np.append(S.indices, 0).astype(np.int32)
    before = S.data, S.indices, S.indptr
    with kofn.connect("virtual", workers=4) as cluster:
        np.testing.assert_allclose(cluster.encode(S, k=2) @ A[0], (A > 0.5) @ A[0], atol=1e-13)
    assert all(a is b for a, b in zip((S.data, S.indices, S.indptr), before, strict=True))


LOOKS: dict[str, Callable[[str], object]] = {
    "checkpoint": lambda path: checkpoint.Checkpoint(path, every=0).loop(0, {"t": 1}),
    "resume": kofn.resume,
    "encode": resolve_source,
    "store": lambda path: write_store(A, path, CODE),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + "/b", "a/" * 3000 + "b"])
def test_a_name_that_is_too_long_is_refused(tmp_path: Path, look: str, name: str) -> None:
    with pytest.raises(kofn.KofnError, match=r"name that its file system takes; .* is too long"):
        LOOKS[look](str(tmp_path / name))


@pytest.mark.parametrize("look", LOOKS)
def test_a_place_that_may_not_be_entered_is_told(tmp_path: Path, look: str) -> None:
    (tmp_path / "closed").mkdir(0o000)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may go everywhere
    try:
        with pytest.raises(kofn.KofnError, match="Permission denied"):
            LOOKS[look](str(tmp_path / "closed" / "a"))
    finally:
        os.seteuid(user)
