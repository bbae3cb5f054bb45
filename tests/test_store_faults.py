"""Stores that were edited, cut or half lost, and disks and file systems that refuse."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support import spread

import kofn
from kofn import files, learn
from kofn.arrays import coding, store
from kofn.arrays.shares import shares_from
from kofn.arrays.sources import open_source
from kofn.arrays.store import open_store, write_store
from kofn.cli import tables
from kofn.codes.mds import MDSCode
from kofn.errors import BadInput, BadStore, CannotWrite, StoreWarning

pytestmark = pytest.mark.slow  # together they take seconds

CODE = MDSCode(6, 4)
A = np.random.default_rng(1).standard_normal((103, 7))


@pytest.fixture
def where(tmp_path: Path) -> Path:
    write_store(A, tmp_path / "store", CODE)
    return tmp_path / "store"


# Edited manifests.


def swap(content: dict[str, Any]) -> None:
    shares = content["shares"]
    shares[0], shares[4] = shares[4], shares[0]


def swap_names(content: dict[str, Any]) -> None:
    (first,), (other,) = content["shares"][1], content["shares"][2]
    first["name"], other["name"] = other["name"], first["name"]


def duplicate(content: dict[str, Any]) -> None:
    content["shares"][1] = content["shares"][0]


def another_shape(rows: int) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(shape=[rows, 7])


def another_dtype(content: dict[str, Any]) -> None:
    for (file,) in content["shares"]:
        file["dtype"] = "<i8"


def without_check(content: dict[str, Any]) -> None:
    del content["code"]["check"]


def another_source(content: dict[str, Any]) -> None:
    content["source"]["path"] = "elsewhere.npy"


@pytest.mark.parametrize(
    "edit",
    [
        swap,
        swap_names,
        duplicate,
        another_shape(104),
        another_shape(101),
        another_dtype,
        without_check,
        another_source,
    ],
)
def test_an_edited_manifest_is_refused(edit: Callable[[dict[str, Any]], None], where: Path) -> None:
    opened = open_store(where)
    path = where / "manifest.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(BadStore, match=r"manifest\.json.*altered") as caught:
        open_store(where)
    assert "Encode again" in str(caught.value)
    with pytest.raises(BadStore, match=r"manifest\.json"):
        opened.verify()  # opened before: it reads what is there now


def test_a_manifest_written_anew_is_another_store(where: Path) -> None:
    opened = open_store(where)
    write_store(-A, where, CODE, resume=False)
    with pytest.raises(BadStore, match="written again since"):
        opened.verify()


def seal(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest as somebody does who knows of its checksum."""
    content.pop("sha256", None)
    text = json.dumps(content, sort_keys=True).encode()
    path.write_text(json.dumps({**content, "sha256": hashlib.sha256(text).hexdigest()}))


@pytest.mark.parametrize("kind", ["dense", "float32", "sparse", "zarr"])
def test_verify_refuses_shares_that_do_not_belong_together(kind: str, tmp_path: Path) -> None:
    if kind == "zarr":
        pytest.importorskip("zarr")
    B: Any = A.astype(np.float32) if kind == "float32" else A
    source = sp.csr_array(np.where(np.abs(A) < 1, 0, A)) if kind == "sparse" else B
    fmt = "zarr" if kind == "zarr" else "npy"
    for s, other in ((0, 1), (1, 4), (4, 5)):
        store = tmp_path / f"{s}-{other}"
        write_store(source, store, CODE, fmt=fmt)
        open_store(store).verify()
        content = json.loads((store / "manifest.json").read_text())
        mine, theirs = content["shares"][s], content["shares"][other]
        for a, b in zip(mine, theirs, strict=True):  # files and checksums, each to the other
            (store / a["name"]).rename(store / "aside")
            (store / b["name"]).rename(store / a["name"])
            (store / "aside").rename(store / b["name"])
            for key in ("sha256", "shape"):
                a[key], b[key] = b[key], a[key]
        seal(store / "manifest.json", content)
        with pytest.raises(BadStore, match=r"manifest\.json.*are not of one matrix"):
            open_store(store).verify()


def test_verify_refuses_a_share_twice_and_fewer_rows(where: Path) -> None:
    path = where / "manifest.json"
    good = json.loads(path.read_text())
    content = json.loads(path.read_text())
    content["shape"] = [101, 7]
    seal(path, content)
    with pytest.raises(BadStore, match=r"has 101 rows, and share 3 has more"):
        open_store(where).verify()
    good["shares"][5][0]["sha256"] = good["shares"][2][0]["sha256"]
    shutil.copy(where / "share-0002.npy", where / "share-0005.npy")
    seal(path, good)
    with pytest.raises(BadStore, match=r"share 5 and .* are not of one matrix"):
        open_store(where).verify()


@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e-42, 1.0, 1e300])
@pytest.mark.parametrize("code", [CODE, MDSCode(40, 25), MDSCode(3, 3), MDSCode(5, 1)])
def test_verify_takes_what_was_written(scale: float, code: MDSCode, tmp_path: Path) -> None:
    write_store(scale * A, tmp_path / "store", code)
    open_store(tmp_path / "store").verify()
    if 1e-45 < scale < 1e30:
        write_store((scale * A).astype(np.float32), tmp_path / "single", code)
        open_store(tmp_path / "single").verify()


# Shares missing or spoiled: any k are enough.


def flip(path: Path) -> None:
    """Alter one number of a file; its size stays."""
    path = path / "c" / "0" / "0" if path.is_dir() else path
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def made(kind: str, where: Path, code: MDSCode = CODE) -> Any:
    """Write a store of some kind; return its matrix."""
    if kind == "zarr":
        pytest.importorskip("zarr")
    B = np.where(np.abs(A) < 1, 0, A) if kind == "sparse" else A
    B = B.astype(np.float32) if kind == "float32" else B
    source = sp.csr_array(B) if kind == "sparse" else B
    write_store(source, where, code, fmt="zarr" if kind == "zarr" else "npy")
    return B


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["dense", "float32", "sparse", "zarr"])
def test_a_store_with_shares_missing_or_spoiled_multiplies(kind: str, tmp_path: Path) -> None:
    B = made(kind, tmp_path / "store")
    names = [files[-1].name for files in open_store(tmp_path / "store").manifest.shares]
    flip(tmp_path / "store" / names[1])  # only its worker sees that
    with kofn.connect("local", workers=5) as cluster:
        X = cluster.encode(tmp_path / "store")
        w = np.ones(7, B.dtype)
        np.testing.assert_allclose(X @ w, B @ w, rtol=0, atol=_atol(B))
        spread(cluster, X)
        remove(tmp_path / "store" / names[2])
        with pytest.warns(StoreWarning, match=f"{names[2]}.*missing.*Share 2: rebuilt from others"):
            X = cluster.encode(tmp_path / "store")
        np.testing.assert_allclose(X @ w, B @ w, rtol=0, atol=_atol(B))
        spread(cluster, X)
        remove(tmp_path / "store" / names[3])
        remove(tmp_path / "store" / names[4])
        with pytest.raises(BadStore, match=r"Any 4 of the 6 shares are enough, and only 3 are"):
            cluster.encode(tmp_path / "store")


def _atol(B: Any) -> float:
    """Of rounding in a share of k terms, rebuilt from k others, in sums of 7, decoded.

    Every sum is of at most k = 4 or 7 terms; no set of shares of this code amplifies rounding more
    than eta times in decoding, once for the rebuilt share and once for the result.
    """
    from itertools import combinations

    eta = max(CODE.eta(some) for some in combinations(range(6), 4))
    return float(np.finfo(B.dtype).eps * (4 + 4 + 7 + 4) * eta**2 * np.abs(B).sum(axis=1).max())


@pytest.mark.parametrize("kind", ["dense", "sparse", "zarr"])
def test_a_worker_rebuilds_a_spoiled_share_and_says_so(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made(kind, tmp_path / "store")
    opened = open_store(tmp_path / "store")
    want = [opened.share(s) for s in range(6)]
    want = [x.toarray() if kind == "sparse" else np.array(x) for x in want]
    build = opened.held_build(1)
    flip(tmp_path / "store" / opened.manifest.shares[1][0].name)
    flip(tmp_path / "store" / opened.manifest.shares[5][0].name)
    found = build.fn(*build.args)
    found = found.toarray() if kind == "sparse" else found
    np.testing.assert_allclose(found, want[1], rtol=0, atol=_atol(A))
    assert "checksum" in caplog.text
    assert "Share 1 was rebuilt from others" in caplog.text
    flip(tmp_path / "store" / opened.manifest.shares[0][0].name)
    with pytest.raises(BadStore, match=r"share-0001.*only 3 are whole"):
        build.fn(*build.args)
    write_store(-A, tmp_path / "store", CODE, resume=False)  # another store: nothing to take
    with pytest.raises(BadStore, match=r"share-0001"):
        build.fn(*build.args)


@pytest.mark.parametrize("kind", ["dense", "sparse", "zarr"])
@pytest.mark.parametrize("way", ["repair", "encode again"])
def test_spoiled_shares_are_written_again(kind: str, way: str, tmp_path: Path) -> None:
    B, where = made(kind, tmp_path / "aside"), tmp_path / "store"
    source = tmp_path / ("A.npz" if kind == "sparse" else "A.npy")
    if kind == "sparse":
        sp.save_npz(source, sp.csr_array(B))
    else:
        np.save(source, B)
    fmt = "zarr" if kind == "zarr" else "npy"
    write_store(source, where, CODE, fmt=fmt)
    opened = open_store(where)
    flip(where / opened.manifest.shares[1][0].name)
    remove(where / opened.manifest.shares[4][-1].name)
    kept = (where / opened.manifest.shares[2][0].name).stat().st_mtime_ns
    if way == "repair":
        assert opened.repair() == [1, 4]
    else:
        with pytest.warns(
            StoreWarning, match=r"share-0001.*\(and 1 more\) Shares 1, 4: written ag"
        ):
            write_store(source, where, CODE, fmt=fmt)
        assert np.array_equal(_dense(open_store(where).share(1)), CODE.encode_share(1, B))
    open_store(where).verify()
    assert open_store(where).repair() == []
    assert (where / opened.manifest.shares[2][0].name).stat().st_mtime_ns == kept
    for s in (1, 4):
        want = CODE.encode_share(s, B)
        np.testing.assert_allclose(_dense(open_store(where).share(s)), want, rtol=0, atol=_atol(B))
    for file in sorted(where.iterdir()):
        assert not file.name.endswith(".part")


@pytest.mark.engine
def test_the_command_mends_a_store_and_says_so(tmp_path: Path) -> None:
    np.save(tmp_path / "A.npy", A)
    args = (tmp_path / "A.npy", tmp_path / "store", "--n", 6, "--k", 4)
    assert encode(*args).returncode == 0
    flip(tmp_path / "store" / "share-0003.npy")
    done = encode(*args)
    assert done.returncode == 0, done.stderr
    assert "mended: " in done.stdout
    assert "Share 3: written again" in done.stdout
    assert json.loads(encode(*args, "--json").stdout)["mended"] == []


def _dense(share: Any) -> Any:
    return share.toarray() if hasattr(share, "toarray") else share


def test_more_shares_are_used_where_k_would_amplify_rounding(tmp_path: Path) -> None:
    code = MDSCode(60, 40)
    B = np.random.default_rng(2).standard_normal((400, 3))
    write_store(B, tmp_path / "store", code)
    opened = open_store(tmp_path / "store")
    for s in range(0, 40, 2):  # twenty of sixty: the remaining forty are just enough
        flip(tmp_path / "store" / f"share-{s:04d}.npy")
    build = opened.held_build(0)
    left = tuple(s for s in range(60) if s % 2 or s >= 40)
    bound = np.finfo(float).eps * 3 * 40 * code.eta(left) * np.abs(B).max() * np.sqrt(40)
    assert np.abs(build.fn(*build.args) - code.encode_share(0, B)).max() < bound


# Unfinished stores, and full disks.


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks, and a note after each."""
    monkeypatch.setattr(coding, "BUDGET", 2000)
    monkeypatch.setattr(store, "MARK_BYTES", 1000)


def stop_in_the_middle(source: Any, where: Any, code: MDSCode = CODE, **more: Any) -> None:
    def stop(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(source, where, code, progress=stop, **more)


def first_row(source: Any, where: Any, code: MDSCode = CODE) -> int:
    """Encode, and return where that went on."""
    seen: list[int] = []
    write_store(source, where, code, progress=lambda done, _: seen.append(done))
    return seen[0]


def test_an_unfinished_store_of_another_source_is_not_overwritten(
    tmp_path: Path, small: None
) -> None:
    where, source = tmp_path / "store", tmp_path / "A.npy"
    np.save(source, A)
    np.save(tmp_path / "B.npy", -A)
    stop_in_the_middle(source, where)
    before = sorted((p.name, p.stat().st_size) for p in where.iterdir())
    for other, code, fmt in (
        (tmp_path / "B.npy", CODE, "npy"),
        (A, CODE, "npy"),
        (source, MDSCode(6, 3), "npy"),
        (source, MDSCode(6, 4, seed=1, construction="gaussian"), "npy"),
        (source, CODE, "zarr"),
    ):
        with pytest.raises(BadInput, match=r"unfinished store .*A\.npy.*--overwrite"):
            write_store(other, where, code, fmt=fmt)
    assert sorted((p.name, p.stat().st_size) for p in where.iterdir()) == before
    assert first_row(source, where) > 0
    open_store(where).verify()
    np.save(tmp_path / "B.npy", -A)
    write_store(tmp_path / "B.npy", where, CODE, resume=False)
    assert np.array_equal(open_store(where).share(0), -A[:26])


def test_notes_and_shares_of_nobody_are_not_overwritten(tmp_path: Path) -> None:
    where = tmp_path / "store"
    where.mkdir()
    (where / "progress.json").write_text("my notes")
    with pytest.raises(BadInput, match=r"progress\.json is none of kofn's notes"):
        write_store(A, where, CODE)
    assert (where / "progress.json").read_text() == "my notes"
    (where / "progress.json").unlink()
    write_store(A, where, CODE)
    (where / "manifest.json").unlink()
    with pytest.raises(BadInput, match=r"shares of a store without its manifest\.json"):
        write_store(-A, where, CODE)
    assert np.array_equal(np.load(where / "share-0000.npy"), A[:26])
    write_store(-A, where, CODE, resume=False)
    open_store(where).verify()


def test_a_full_directory_for_temporary_files_loses_no_progress(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr = pytest.importorskip("zarr")
    source, where = tmp_path / "A.zarr", tmp_path / "store"
    zarr.create_array(str(source), shape=A.shape, chunks=A.shape, dtype="f8")[:] = A
    stop_in_the_middle(source, where)
    before = sorted((p.name, p.stat().st_size) for p in where.iterdir())

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", full)
        with pytest.raises(CannotWrite, match=r"No space left on device\. Set TMPDIR"):
            write_store(source, where, CODE)
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", full)
        with pytest.raises(CannotWrite, match=r"No space left on device\. Set TMPDIR"):
            write_store(source, where, CODE)
    assert sorted((p.name, p.stat().st_size) for p in where.iterdir()) == before
    assert first_row(source, where) > 0
    open_store(where).verify()


def test_bad_data_after_a_stop_keep_what_was_noted(tmp_path: Path, small: None) -> None:
    where, source = tmp_path / "store", tmp_path / "A.npy"
    B = A.copy()
    B[102] = np.nan
    np.save(source, B)
    with pytest.raises(BadInput, match="Entry"):
        write_store(source, where, CODE)
    assert list(where.iterdir()) == []  # nothing to go on from
    stop_in_the_middle(source, where, check_finite=False)
    with pytest.raises(BadInput, match="Entry"):
        write_store(source, where, CODE)
    assert first_row_unchecked(source, where) > 0


def first_row_unchecked(source: Path, where: Path) -> int:
    seen: list[int] = []
    write_store(source, where, CODE, check_finite=False, progress=lambda done, _: seen.append(done))
    return seen[0]


ENCODE = [sys.executable, "-W", "error", "-c", "from kofn.cli import main; main()", "encode"]


def encode(*args: object, **limits: int) -> subprocess.CompletedProcess[str]:
    """Run the command under limits of the process."""

    def limit() -> None:
        for name, most in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))

    return subprocess.run(
        [*ENCODE, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=limit,
    )


@pytest.mark.engine
def test_a_limit_on_the_size_of_files_is_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    source, where = tmp_path / "A.npy", tmp_path / "store"
    B = np.random.default_rng(3).standard_normal((4000, 40))
    np.save(source, B)
    done = encode(source, where, "--n", 6, "--k", 4, FSIZE=200_000)  # a share has 320,000
    assert done.returncode == 1
    assert "File too large. Make room, and encode again" in done.stderr
    assert done.stderr.count("\n") == 1
    with pytest.raises(BadStore, match="not complete"):
        open_store(where)
    done = encode(source, where, "--n", 6, "--k", 4)
    assert done.returncode == 0, done.stderr
    open_store(where).verify()


@pytest.mark.engine
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_is_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    disk, source = tmp_path / "disk", tmp_path / "A.npy"
    disk.mkdir()
    np.save(source, np.random.default_rng(3).standard_normal((4000, 40)))
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        done = encode(source, disk / "store", "--n", 6, "--k", 4)
        assert done.returncode == 1
        assert "No space left on device. Make room, and encode again" in done.stderr
        assert done.stderr.count("\n") == 1
        grow = ["mount", "-o", "remount,size=8m", str(disk)]
        subprocess.run(grow, capture_output=True, check=True)
        done = encode(source, disk / "store", "--n", 6, "--k", 4)
        assert done.returncode == 0, done.stderr
        open_store(disk / "store").verify()
    finally:
        subprocess.run(["umount", str(disk)], capture_output=True, check=True)


@pytest.mark.engine
@pytest.mark.parametrize("sparse", [False, True])
def test_more_shares_than_a_process_may_open_files(sparse: bool, tmp_path: Path) -> None:
    source = tmp_path / ("A.npz" if sparse else "A.npy")
    if sparse:
        sp.save_npz(source, sp.csr_array(A))
    else:
        np.save(source, A)
    done = encode(source, tmp_path / "store", "--n", 150, "--k", 2, NOFILE=100)
    assert done.returncode == 0, done.stderr
    open_store(tmp_path / "store").verify()


def test_more_shares_behind_fsspec_than_a_process_may_open_files(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    seen: list[int] = []

    def count(done: int, total: int) -> None:
        seen.append(len(os.listdir("/proc/self/fd")) if before else 0)

    write_store(A, f"memory://{tmp_path.name}/many", MDSCode(150, 2), progress=count)
    assert max(seen) <= before + 2  # the one temporary file, and the listing itself
    open_store(f"memory://{tmp_path.name}/many").verify()


# File systems and files that break.


@pytest.fixture
def bucket() -> Iterator[str]:
    """An object store: no directories, and listing nothing is an error, as of S3 and GCS."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    class Bucket(MemoryFileSystem):  # type: ignore[misc]
        protocol = "bucket"
        store: dict[str, Any] = {}  # noqa: RUF012
        pseudo_dirs: list[str] = [""]  # noqa: RUF012

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            pass

        def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
            pass

        def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
            with self.open(path, "wb") as file:
                file.write(value)

    fsspec.register_implementation("bucket", Bucket, clobber=True)
    yield "bucket://some/prefix"
    Bucket.store.clear()


@pytest.mark.parametrize("fmt", ["npy", "zarr"])
def test_a_store_at_an_empty_prefix(fmt: str, bucket: str) -> None:
    if fmt == "zarr":
        pytest.importorskip("zarr")
    fs, path = files.Place.of(bucket).remote()
    with pytest.raises(FileNotFoundError):
        fs.ls(path)
    write_store(A, bucket, CODE, fmt=fmt)
    opened = open_store(bucket)
    opened.verify()
    assert np.array_equal(opened.share(0), A[:26])
    write_store(-A, bucket, CODE, fmt=fmt, resume=False)
    open_store(bucket).verify()
    with pytest.raises(BadStore, match="there is no store"):
        open_store(f"{bucket}/nothing")


def test_a_cut_zarr_chunk(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    for compressors in (None, "auto"):
        source = tmp_path / f"{compressors}.zarr"
        zarr.create_array(
            str(source), shape=A.shape, chunks=(60, 7), dtype="f8", compressors=compressors
        )[:] = A
        chunk = source / "c" / "1" / "0"
        os.truncate(chunk, chunk.stat().st_size - 20)
        with pytest.raises(BadInput, match=r"\.zarr is not whole: rows .* Copy it again"):
            write_store(source, tmp_path / "store", CODE)
        broken = open_source(source)
        with pytest.raises(BadInput, match=r"\.zarr is not whole"):
            shares_from(broken, CODE)
    write_store(A, tmp_path / "zarr", CODE, fmt="zarr")
    chunk = tmp_path / "zarr" / "share-0001.zarr" / "c" / "0" / "0"
    os.truncate(chunk, chunk.stat().st_size - 20)
    opened = open_store(tmp_path / "zarr")
    with pytest.raises(BadStore, match=r"share-0001\.zarr.*cut or altered"):
        opened.share(1)
    with pytest.raises(BadStore, match=r"share-0001\.zarr.*cut or altered"):
        opened.verify()
    assert opened.repair() == [1]
    opened = open_store(tmp_path / "zarr")
    opened.verify()


def test_a_cut_zarr_chunk_of_a_stopped_run_is_written_again(tmp_path: Path, small: None) -> None:
    pytest.importorskip("zarr")
    source, where = tmp_path / "A.npy", tmp_path / "store"
    np.save(source, A)
    stop_in_the_middle(source, where, fmt="zarr")
    chunk = where / "share-0001.zarr.part" / "c" / "0" / "0"
    os.truncate(chunk, chunk.stat().st_size - 20)
    write_store(source, where, CODE, fmt="zarr")
    open_store(where).verify()


KINDS = ("svm.gz", "svm.bz2", "npz", "parquet", "plain.parquet")


def spoil(content: bytes, way: str) -> bytes:
    if way == "cut":
        return content[: len(content) // 2]
    at = 10 if way == "begins wrongly" else len(content) // 2  # 10: after the header of gzip
    return content[:at] + bytes(b ^ 0x55 for b in content[at : at + 40]) + content[at + 40 :]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("a.npy", "cut"),  # it has no checksum: altered numbers are numbers
        ("a.svm.gz", "begins wrongly"),
        *((f"a.{kind}", way) for kind in KINDS for way in ("cut", "altered")),
    ],
)
def test_cut_and_altered_sources(name: str, way: str, tmp_path: Path) -> None:
    S = sp.csr_array(np.random.default_rng(4).standard_normal((500, 9)))
    path = tmp_path / name
    text = "".join(
        f"1 {' '.join(f'{j + 1}:{v!r}' for j, v in enumerate(row))}\n"
        for row in S.toarray().tolist()
    ).encode()
    if name.endswith("gz"):
        path.write_bytes(gzip.compress(text))
    elif name.endswith("bz2"):
        path.write_bytes(bz2.compress(text))
    elif name.endswith("npz"):
        sp.save_npz(path, S)
    elif name.endswith("npy"):
        np.save(path, S.toarray())
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = {f"c{j}": S.toarray()[:, j] for j in range(9)}
        plain = "plain" in name
        pq.write_table(
            pa.table(columns),
            path,
            write_page_checksum=True,  # or altered numbers are numbers
            compression="none" if plain else "zstd",
        )
    path.write_bytes(spoil(path.read_bytes(), way))
    with pytest.raises(BadInput, match=name) as caught:
        write_store(path, tmp_path / "store", CODE)
    assert str(caught.value).count("\n") == 0


def test_a_header_that_numpy_stumbles_over(where: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "A.npy", A)
    for path in (tmp_path / "A.npy", where / "share-0001.npy"):
        path.write_bytes(path.read_bytes().replace(b")", b"(", 1))
    with pytest.raises(BadInput, match=r"A\.npy is not a \.npy file"):
        write_store(tmp_path / "A.npy", tmp_path / "other", CODE)
    np.save(tmp_path / "y.npy", np.arange(103) % 2)
    with pytest.raises(BadInput, match=r"A\.npy must be one array"):
        tables.read(tmp_path / "A.npy", None, tmp_path / "y.npy")
    with pytest.raises(BadStore, match=r"share-0001\.npy.*does not begin as"):
        open_store(where).verify()
    assert open_store(where).repair() == [1]


def error_of(action: Callable[..., Any], *args: Any, **more: Any) -> list[str]:
    """What is wrong with the input; nothing if the bytes did not matter."""
    try:
        action(*args, **more)
    except BadInput as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.svm.gz", "a.parquet"])
def test_bytes_spoiled_anywhere_are_one_error_in_one_line(name: str, tmp_path: Path) -> None:
    path, random = tmp_path / name, Random(0)
    if name == "a.npy":
        np.save(path, A)
    elif name == "a.npz":
        sp.save_npz(path, sp.csr_array(A))
    elif name == "a.svm.gz":
        path.write_bytes(gzip.compress(b"1 1:0.5 2:1.5\n" * 100))
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({f"c{j}": A[:, j] for j in range(7)}), path)
    whole, told = path.read_bytes(), []
    for trial in range(30):
        content = bytearray(whole)
        for _ in range(1 + trial % 5):
            at = random.randrange(min(200, len(content)))  # at one end or the other
            content[at if trial % 3 else -1 - at] = random.randrange(256)
        path.write_bytes(content)
        told += error_of(write_store, path, tmp_path / "s", CODE, resume=False)
        if name != "a.npz":
            told += error_of(tables.read, path, None, path if name == "a.npy" else None)
    assert told
    assert all("\n" not in text for text in told)


def test_masked_arrays_are_refused(tmp_path: Path) -> None:
    masked = np.ma.masked_less(A, -1)
    for data in (masked, list(masked), np.ma.array(A)):
        with pytest.raises(BadInput, match=r"a mask cannot be coded.*filled"):
            write_store(data, tmp_path / "store", CODE)
        with (
            kofn.connect("virtual", workers=2) as cluster,
            pytest.raises(BadInput, match="a mask cannot be coded"),
        ):
            cluster.encode(data)
    with (
        kofn.connect("virtual", workers=2) as cluster,
        pytest.raises(BadInput, match="mask"),
    ):
        cluster.parts(masked)


@pytest.mark.parametrize(
    "model",
    [
        learn.Ridge(),
        learn.LogisticRegression(),
        learn.CodedMLPClassifier((3,)),
        learn.KernelRidge(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_estimators_refuse_masked_arrays(model: Any) -> None:
    model.set_params(cluster="virtual")
    y = np.arange(103) % 2
    for given, labels in ((np.ma.masked_less(A, -1), y), (A, np.ma.masked_equal(y, 1))):
        with pytest.raises(BadInput, match="a mask cannot be coded"):
            model.fit(given, labels)
    model.fit(A, y)
    with pytest.raises(BadInput, match="a mask cannot be coded"):
        model.predict(np.ma.masked_less(A, -1))
