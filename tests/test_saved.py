"""Saved files: what was written is read, whole, without pickle; all else is refused."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kofn import BadFile, BadInput, CannotWrite, saved

ARRAYS: dict[str, Any] = {
    "whole": np.arange(6, dtype=np.int32).reshape(2, 3),
    "fortran": np.asfortranarray(np.linspace(0, 1, 12).reshape(3, 4)),
    "big_endian": np.array([1.5, -0.0, np.inf, np.nan], dtype=">f4"),
    "text": np.array(["a", "größer", ""]),
    "bytes": np.array([b"x", b"yz"]),
    "truth": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "none": np.zeros((0, 5)),
    "scalar": np.array(7.0),
    "strided": np.arange(20.0)[::3],
}
FACTS = {"name": "größer", "rounds": 3, "loss": 0.1, "nothing": None, "list": [1, [2.5, "x"]]}


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def sealed(data: bytes) -> bytes:
    """The same with a right checksum: what somebody could make who means ill."""
    return data[:-64] + saved._digest(memoryview(data)[:-64])


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A saved file with any content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.comment = saved._MARK + bytes(64)
        for name, data in members.items():
            archive.writestr(name, data)
    return sealed(buffer.getvalue())


def npy(array: Any, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file.kofn"
    saved.write(path, ARRAYS, FACTS)
    arrays, facts = saved.read(path)
    assert facts == FACTS
    assert list(arrays) == list(ARRAYS)
    assert all(same(arrays[name], ARRAYS[name]) for name in ARRAYS)
    assert all(array.flags.writeable for array in arrays.values())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.kofn"]


def test_the_same_content_is_the_same_file_and_numpy_reads_it_too(tmp_path: Path) -> None:
    data = saved.pack(ARRAYS, FACTS)
    assert data == saved.pack(ARRAYS, FACTS)
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        assert all(same(found[name], ARRAYS[name]) for name in ARRAYS)
        assert json.loads(found["facts.json"]) == FACTS


def test_a_file_that_is_cut_or_altered_anywhere_is_refused() -> None:
    data = saved.pack({"x": np.arange(3.0)}, {"a": 1})
    for at in range(len(data)):
        with pytest.raises(ValueError, match="checksum"):
            saved.unpack(data[:at])
        with pytest.raises(ValueError, match="checksum"):
            saved.unpack(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    for protocol in range(6):
        (tmp_path / "old").write_bytes(pickle.dumps(Bomb(), protocol))
        with pytest.raises(BadFile, match="pickle" if protocol > 1 else "checksum") as caught:
            saved.read(tmp_path / "old")
        assert caught.value.path == str(tmp_path / "old")
    inside = npy(np.array([Bomb()], dtype=object), allow_pickle=True)
    (tmp_path / "old").write_bytes(zipped({"facts.json": b"{}", "x.npy": inside}))
    with pytest.raises(BadFile, match="numbers or text"):
        saved.read(tmp_path / "old")
    assert not (tmp_path / "ran").exists()


def test_a_right_checksum_alone_is_not_enough() -> None:
    good = npy(np.arange(3.0))
    huge = good.replace(b"(3,), ", b"(9999999999999,), ")[: len(good)]
    for members, said in (
        ({}, "facts.json"),
        ({"facts.json": b"[1]"}, "no object"),
        ({"facts.json": b"{"}, "Expecting"),
        ({"facts.json": b"{}", "x.npy": b"\x93NUMPY"}, "EOF"),
        ({"facts.json": b"{}", "x.npy": good[:-1]}, "as long as it says"),
        ({"facts.json": b"{}", "x.npy": good + b"0"}, "as long as it says"),
        ({"facts.json": b"{}", "x.npy": huge}, "as long as it says"),
        ({"facts.json": b"{}", "x.npy": good.replace(b"(3,)", b"-3, ")}, "shape"),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            saved.unpack(zipped(members))
        assert "is not what kofn writes" in str(caught.value)
    for array, said in ((np.zeros(9999), "overlap"), (np.zeros(1), "compressed")):
        with pytest.raises(ValueError, match=said):
            saved.unpack(zipped({"facts.json": b"{}", "x.npy": npy(array)}, zipfile.ZIP_DEFLATED))


def test_what_cannot_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="dtype object"):
        saved.write(tmp_path / "x", {"x": np.array([None])}, {})
    with pytest.raises(BadInput, match="JSON"):
        saved.write(tmp_path / "x", {}, {"x": object()})
    with pytest.raises(CannotWrite, match="cannot be written"):
        saved.write(tmp_path / "no folder" / "x", {}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    for where in (tmp_path / "none", tmp_path):
        with pytest.raises(BadFile, match="cannot be read"):
            saved.read(where)
