"""Saved files: arrays and JSON in one file, whole or refused, read without pickle.

A saved file is a zip of .npy members and facts.json, as `np.load` reads it. It ends with a checksum
of all before, which is looked at first. A checksum is no signature: whoever writes a file can make
a right one, so what is inside is checked as well, and nothing in it is ever run.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BadFile, BadInput, CannotWrite
from .files import Place, cause

_MARK = b"kofn saved file, version 1, sha256 "  # and 64 digits: the comment of the zip
_DIGITS = 64
_FACTS = "facts.json"
KINDS = "biufcSUmM"  # of dtypes that are their bytes
_REMEDY = "Save it anew, or take another copy"


def write(path: object, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Write arrays and facts (what JSON knows) to one file, whole or not at all."""
    place, data = Place.of(path), pack(arrays, facts)
    try:
        place.write(data)
    except OSError as error:
        raise CannotWrite(
            place.url, f"it cannot be written: {error.strerror or error}. Name another place."
        ) from error


def read(path: object) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays, private and writable, and the facts; BadFile for all that is not whole."""
    place = Place.of(path)
    try:
        with place.open() as file:
            data = file.read()
    except OSError as error:
        raise BadFile(
            place.url, f"it cannot be read: {error.strerror or error}. Check the name."
        ) from error
    try:
        return unpack(data)
    except ValueError as error:
        raise BadFile(place.url, str(error)) from error


def pack(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> bytes:
    """The bytes of a saved file; the same for the same arrays and facts."""
    try:
        text = json.dumps(dict(facts)).encode()
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"the facts of a saved file are what JSON knows; these are not: {error}. Turn them "
            f"into text, numbers, lists and dicts."
        ) from error
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.comment = _MARK + bytes(_DIGITS)
        archive.writestr(zipfile.ZipInfo(_FACTS), text)
        for name, array in arrays.items():
            array = np.asarray(array)
            if array.dtype.kind not in KINDS:
                raise BadInput(
                    f"a saved file holds arrays of numbers, truth values or text; {name!r} is of "
                    f"dtype {array.dtype}. Convert it first."
                )
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    with buffer.getbuffer() as view:
        view[-_DIGITS:] = _digest(view[:-_DIGITS])
    return buffer.getvalue()


def unpack(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays and the facts; ValueError, with rule, fact and remedy, if not whole."""
    view = memoryview(data)
    end = len(_MARK) + _DIGITS
    if view[-end:-_DIGITS] != _MARK:
        raise ValueError(_not_ours(data))
    if view[-_DIGITS:] != _digest(view[:-_DIGITS]):
        raise ValueError(f"it was cut or altered: its checksum is another. {_REMEDY}.")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _members(archive, len(data))
    except MemoryError:  # sizes are looked at before: it is the machine that lacks room
        raise
    except Exception as error:  # whatever zipfile, json or NumPy stumbles over
        raise ValueError(
            f"its content is not what kofn writes ({cause(error)}). {_REMEDY}."
        ) from error


def _members(archive: zipfile.ZipFile, size: int) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    members = archive.infolist()
    names = [member.filename for member in members]
    # Compressed members, or many in one place, could become far more than was read.
    if len(set(names)) < len(names) or sum(m.file_size for m in members) > size:
        raise ValueError("its members overlap")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("its members are compressed")
    facts = json.loads(archive.read(_FACTS))
    if not isinstance(facts, dict):
        raise ValueError("its facts are no object")
    arrays = {n.removesuffix(".npy"): _array(archive.read(n)) for n in names if n != _FACTS}
    return arrays, facts


def _array(data: bytes) -> NDArray[Any]:
    """The array of a .npy member. Its header decides how much memory is used: so look first."""
    head = io.BytesIO(data)
    if np.lib.format.read_magic(head) != (1, 0):
        raise ValueError("an array in it is of another version")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(head)
    if dtype.kind not in KINDS or min(shape, default=0) < 0:
        raise ValueError("an array in it is not of numbers or text")
    if math.prod(shape) * dtype.itemsize != len(data) - head.tell():
        raise ValueError("an array in it is not as long as it says")
    values = bytearray(data[head.tell() :])  # private, and writable
    return np.ndarray(shape, dtype, values, order="F" if fortran else "C")


def _digest(view: memoryview) -> bytes:
    return hashlib.sha256(view).hexdigest().encode()


def _not_ours(data: bytes) -> str:
    if data[:1] == b"\x80":
        return (
            "a saved file is a zip of arrays and JSON; this is a pickle, which can run code while "
            "it is loaded, and is not opened. If you trust who wrote it, load it with pickle, and "
            "save it anew."
        )
    return (
        "a saved file ends with its checksum; this does not: it was cut, or is another kind of "
        f"file. {_REMEDY}."
    )
