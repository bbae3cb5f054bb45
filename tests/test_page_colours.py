"""The colours of the page can be told apart by colour-blind people, light and dark."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

# What eyes without one kind of cones make of linear RGB (Machado, Oliveira and Fernandes 2009).
EYES = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
BARS = ("used", "late", "wasted", "lost", "failed", "band", "paper")  # side by side in a lane
NOTICED = 2.3  # a difference in CIELAB that is just noticed (Mahy and others 1994)


def themes() -> dict[str, dict[str, str]]:
    style = files("kofn.page").joinpath("page.css").read_text("utf-8")
    light, dark = re.findall(r":root[^{]*\{(.*?)\}", style, re.DOTALL)[:2]
    return {
        name: dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
        for name, block in (("light", light), ("dark", dark))
    }


def linear(colour: str) -> NDArray[np.float64]:
    s = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / (TO_XYZ @ np.ones(3))
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
def test_bars_of_any_two_kinds_look_different(theme: str, eyes: str) -> None:
    colours = themes()[theme]
    seen = {name: lab(EYES[eyes] @ linear(colours[name])) for name in BARS}
    for a, b in combinations(BARS, 2):
        far = float(np.linalg.norm(seen[a] - seen[b]))
        wanted = 1 if {a, b} == {"band", "paper"} else 4  # an idle line is meant to be faint
        assert far > wanted * NOTICED, (a, b, far)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_can_be_read(theme: str) -> None:
    """A contrast of 4.5, as WCAG 2 asks for (level AA)."""
    colours = themes()[theme]
    light = {name: float(TO_XYZ[1] @ linear(colour)) for name, colour in colours.items()}
    for ink in ("ink", "soft", "gone", "joined"):
        for paper in ("paper", "panel"):
            low, high = sorted((light[ink], light[paper]))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, paper)
