"""MNIST as it is stored, in gzipped idx files; or something of its shape."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput

_PREFIX = {"train": "train", "test": "t10k"}


def read_mnist(
    data: Path, part: Literal["train", "test"]
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Rows (N, 784) from 0 to 1 and labels (N,), of the files in `data`/mnist."""
    images = _idx(data / "mnist" / f"{_PREFIX[part]}-images-idx3-ubyte.gz", 3)
    labels = _idx(data / "mnist" / f"{_PREFIX[part]}-labels-idx1-ubyte.gz", 1)
    if len(images) != len(labels):
        raise BadInput(
            f"MNIST has as many labels as images; {data}/mnist has {len(labels)} and {len(images)} "
            f"for {part}. Fetch the files again."
        )
    return images.reshape(len(images), -1) / 255.0, labels.astype(np.intp)


def made_up(rows: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Rows (N, 784) from 0 to 1 in ten classes, (N,): each a pattern of its own, and noise."""
    patterns = np.random.default_rng(0).random((10, 784))
    rng = np.random.default_rng((seed, rows))
    labels = rng.integers(0, 10, rows)
    return 0.5 * (patterns[labels] + rng.random((rows, 784))), labels.astype(np.intp)


def _idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    try:
        with gzip.open(path) as file:
            raw = file.read()
    except (OSError, EOFError) as error:
        raise BadInput(
            f"--data must be a directory that holds mnist/ with its idx files, gzipped; {path}: "
            f"{error}."
        ) from None
    head = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(raw[4:head], ">i4").tolist())
    if (
        raw[:3] != b"\x00\x00\x08"
        or raw[3:4] != bytes([dimensions])
        or len(raw) != head + np.prod(shape)
    ):
        raise BadInput(f"{path} is not an idx file of bytes in {dimensions} dimensions.")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)
