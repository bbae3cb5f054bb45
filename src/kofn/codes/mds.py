"""The default code of `cluster.encode`: any k of n shares are enough."""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import one_of, whole_fields
from .generators import CONSTRUCTIONS, make_generator
from .linear import Floats
from .threshold import AnyKOfN, check_threshold


@dataclass(frozen=True)
class MDSCode(AnyKOfN):
    """Any `k` of `n` shares recover the `k` blocks; some shares are plain blocks.

    `construction` names the generator: "auto" takes "trigonometric" up to n = 20 and "haar"
    beyond; "gaussian", "chebyshev" and "vandermonde" (the example of Yang et al., 2019) are for
    comparison. `seed` fixes what is drawn at random.
    """

    n: int
    k: int
    construction: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        whole_fields(self, n=0, k=0, seed=0)
        check_threshold(self)
        known = ("auto", *CONSTRUCTIONS)
        one_of(self.construction, "construction", known, "Leave it out for the best one known.")

    @property
    def generator(self) -> Floats:
        """The coefficient rows of all shares, shape (n, k), read-only and cached."""
        kind = self.construction
        if kind == "auto":
            kind = "trigonometric" if self.n <= 20 else "haar"
        return make_generator(self.n, self.k, kind, self.seed)
