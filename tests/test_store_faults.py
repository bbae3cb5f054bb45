"""Stores that were edited, cut or half lost, and disks and file systems that refuse."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from kofn.arrays.store import open_store, write_store
from kofn.codes.mds import MDSCode
from kofn.errors import BadStore

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


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1.0, 1e150, 1e300])
@pytest.mark.parametrize("code", [CODE, MDSCode(40, 25), MDSCode(3, 3), MDSCode(5, 1)])
def test_verify_takes_what_was_written(scale: float, code: MDSCode, tmp_path: Path) -> None:
    write_store(scale * A, tmp_path / "store", code)
    open_store(tmp_path / "store").verify()
