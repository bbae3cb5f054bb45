"""Codes of strangers: those that pass the checks are taken, broken ones are caught."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kofn
import kofn.testing
from kofn.codes import AnyKOfN, Assignment, Decoder, Listed, MDSCode, Row, SumCode, Weights, solve
from kofn.codes.assignment import CoverageDecoder
from kofn.testing import CodeChecks, SumCodeChecks

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pascal(AnyKOfN):
    """Powers at n points: any k rows of a Vandermonde matrix are independent."""

    n: int
    k: int

    @cached_property
    def generator(self) -> Floats:
        G = np.linspace(-1, 1, self.n)[:, None] ** np.arange(self.k)
        G.flags.writeable = False
        return np.asarray(G)


USED: list[str] = []


class Backwards(Decoder):
    """Solves for the rows in reverse order, and notes that it was asked."""

    @property
    def ready(self) -> bool:
        return len(self.arrived) >= self.k

    def find_weights(self) -> Weights:
        USED.append("product")
        return Weights(self.arrived[::-1], *solve(self.rows[::-1]))


@dataclass(frozen=True)
class OwnDecoder(Pascal):
    def decoder(self) -> Decoder:
        return Backwards(self.k, self.name)


class TestPascal(CodeChecks):
    @pytest.fixture(params=[(5, 3), (4, 1), (4, 4)])
    def code(self, request: pytest.FixtureRequest) -> AnyKOfN:
        return Pascal(*request.param)


class Counting(CoverageDecoder):
    """Counts parts, and notes that it was asked."""

    def find_weights(self) -> Weights:
        USED.append("sum")
        return super().find_weights()


@dataclass(frozen=True)
class _Counted(Listed):
    def decoder(self) -> Decoder:
        return Counting(self.m, self.name)


@dataclass(frozen=True)
class OwnSum(SumCode):
    """Everything on every worker, with a decoder of its own."""

    def assign(self, m: int, n: int) -> Assignment:
        return _Counted(m, n, ((Row(tuple(range(m))),),) * n, 1, "own")


class TestOwnSum(SumCodeChecks):
    @pytest.fixture
    def code(self) -> SumCode:
        return OwnSum()


SUMS: dict[SumCode, tuple[tuple[int, int], ...]] = {
    kofn.Uncoded(): ((12, 6), (25, 6), (7, 7)),
    kofn.Uncoded("whole"): ((12, 6), (25, 6)),
    kofn.FractionalRepetition(2): ((12, 6), (25, 6)),
    kofn.FractionalRepetition(3, "whole"): ((12, 6), (25, 6)),
    kofn.CyclicRepetition(2): ((12, 6), (13, 5)),
    kofn.CyclicRepetition(3, "whole"): ((12, 6), (25, 6)),
    kofn.CyclicRepetition(3, "whole", "random"): ((12, 7), (25, 6)),
    kofn.RandomGroups(3): ((12, 6), (25, 6)),
    kofn.RandomGroups(3, symbols=40): ((12, 6), (25, 6)),
    kofn.LT(): ((12, 6), (100, 6)),
    kofn.LT(r=2, decoder="peeling"): ((40, 6), (100, 6)),
    kofn.DenseMDS(3): ((12, 6), (25, 6)),
}


@pytest.mark.parametrize("check", [name for name in dir(SumCodeChecks) if name.startswith("test")])
@pytest.mark.parametrize("code", SUMS, ids=repr)
def test_the_codes_of_kofn_pass(code: SumCode, check: str) -> None:
    run(SumCodeChecks, check, code, SUMS[code])


def run(kit: type, check: str, code: Any, sizes: tuple[tuple[int, int], ...] = ()) -> None:
    """One check of a kit on a code."""
    checks = kit()
    if sizes:
        checks.sizes = sizes
    method: Callable[..., None] = getattr(checks, check)
    if "assignments" in inspect.signature(method).parameters:
        method([code.assign(m, n) for m, n in checks.sizes])
    else:
        method(code)


def caught(kit: type, code: Any) -> set[str]:
    """The checks of a kit that a code fails."""
    found = set()
    for check in (name for name in dir(kit) if name.startswith("test")):
        try:
            run(kit, check, code)
        except BaseException as problem:  # pytest.raises fails with one
            if isinstance(problem, KeyboardInterrupt):
                raise
            found.add(check.removeprefix("test_"))
    return found


# Broken codes.


@dataclass(frozen=True)
class Twice(Pascal):
    """Two shares are the same."""

    @cached_property
    def generator(self) -> Floats:
        G = np.linspace(-1, 1, self.n)[:, None] ** np.arange(self.k)
        G[-1] = G[0]
        G.flags.writeable = False
        return np.asarray(G)


class Hasty(Backwards):
    """Says that it is ready one row too early."""

    @property
    def ready(self) -> bool:
        return len(self.arrived) >= self.k - 1


@dataclass(frozen=True)
class TooSoon(Pascal):
    def decoder(self) -> Decoder:
        return Hasty(self.k, self.name)


class Sloppy(Backwards):
    """Gives weights in another order than their keys, and an eta that hides it."""

    def find_weights(self) -> Weights:
        right = super().find_weights()
        return Weights(right.keys[::-1], right.matrix, right.eta)


@dataclass(frozen=True)
class Mixed(Pascal):
    def decoder(self) -> Decoder:
        return Sloppy(self.k, self.name)


def test_the_checks_catch_broken_any_k_of_n_codes() -> None:
    assert caught(CodeChecks, Pascal(5, 3)) == caught(CodeChecks, OwnDecoder(5, 3)) == set()
    assert "any_k_shares_recover_the_blocks" in caught(CodeChecks, Twice(5, 3))
    assert "fast_decoder_agrees_with_elimination" in caught(CodeChecks, TooSoon(5, 3))
    assert "any_k_shares_recover_the_blocks" in caught(CodeChecks, Mixed(5, 3))


@dataclass(frozen=True)
class Boastful(SumCode):
    """Two copies of each part, and a threshold that would take three."""

    def assign(self, m: int, n: int) -> Assignment:
        right = kofn.CyclicRepetition(2).assign(m, n)
        return Listed(m, n, tuple(tuple(right.symbols(s)) for s in range(n)), n - 2, "boastful")


@dataclass(frozen=True)
class Forgetful(SumCode):
    """The last part is on nobody."""

    def assign(self, m: int, n: int) -> Assignment:
        return Listed(m, n, ((Row(tuple(range(m - 1))),),) * n, 1, "forgetful")


@dataclass(frozen=True)
class Inventive(SumCode):
    """Names a part more than there are."""

    def assign(self, m: int, n: int) -> Assignment:
        return Listed(m, n, ((Row(tuple(range(m + 1))),),) * n, 1, "inventive")


@dataclass(frozen=True)
class Vague(SumCode):
    """Its rows name every part, and do not give the sum."""

    def assign(self, m: int, n: int) -> Assignment:
        return Listed(m, n, ((Row((*range(m),), (2.0,) + (1.0,) * (m - 1)),),) * n, 1, "vague")


class Dice(SumCode):
    """Draws other rows each time it is asked."""

    def assign(self, m: int, n: int) -> Assignment:
        order = np.random.default_rng().permutation(m).tolist()
        return Listed(m, n, ((*(Row((part,)) for part in order),),) * n, 1, "dice")


class Early(CoverageDecoder):
    """Counts to the last part but one."""

    @property
    def ready(self) -> bool:
        return self.left <= 1


@dataclass(frozen=True)
class _Rushed(Listed):
    def decoder(self) -> Decoder:
        return Early(self.m, self.name)


@dataclass(frozen=True)
class Rushed(SumCode):
    def assign(self, m: int, n: int) -> Assignment:
        return _Rushed(m, n, (tuple(Row((part,)) for part in range(m)),) * n, 1, "rushed")


class Unsummed(Counting):
    """Forgets to say that its weights are of a sum."""

    def find_weights(self) -> Weights:
        return replace(super().find_weights(), wanted="all")


class _Rowed(Listed):
    def decoder(self) -> Decoder:
        return Unsummed(self.m, self.name)


@dataclass(frozen=True)
class Rowed(SumCode):
    def assign(self, m: int, n: int) -> Assignment:
        return _Rowed(m, n, (tuple(Row((part,)) for part in range(m)),) * n, 1, "rowed")


def test_the_checks_catch_broken_codes_of_sums() -> None:
    assert "any_k_slots_give_the_sum" in caught(SumCodeChecks, Rowed())
    assert caught(SumCodeChecks, OwnSum()) == set()
    assert "any_k_slots_give_the_sum" in caught(SumCodeChecks, Boastful())
    assert "every_part_is_in_some_slot" in caught(SumCodeChecks, Forgetful())
    assert "the_same_code_assigns_the_same" in caught(SumCodeChecks, Dice())
    assert "the_decoder_is_ready_only_when_the_sum_is_there" in caught(SumCodeChecks, Rushed())


@dataclass(frozen=True)
class Short(SumCode):
    """Each part on one worker, and a threshold of all but one."""

    def assign(self, m: int, n: int) -> Assignment:
        right = kofn.Uncoded().assign(m, n)
        return Listed(m, n, tuple(tuple(right.symbols(s)) for s in range(n)), n - 1)


def test_the_checks_name_the_workers_that_are_too_few() -> None:
    said = r"any 5 of them give the sum; workers \[1, 2, 3, 4, 5\] do not"
    checks = SumCodeChecks()
    with pytest.raises(
        AssertionError, match=r"any 5 of them give the sum; workers \[0, 1, 2, 3, 4\]"
    ):
        checks.test_any_k_slots_give_the_sum([Short().assign(12, 6)])
    with pytest.raises(AssertionError, match=said.format("1, 2, 3, 4, 5")):
        checks.test_sums_on_a_cluster_of_which_k_workers_are_left(Short())


def test_checks_without_pytest_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)
    for name in ("CodeChecks", "EngineChecks", "SumCodeChecks"):
        with pytest.raises(
            kofn.CannotDo, match=rf"{name} needs pytest, .*: pip install 'kofn\[test\]'"
        ):
            getattr(kofn.testing, name)
    assert kofn.testing.Faults.__name__ == "Faults"  # it does without


# What a cluster does with them.


def test_a_sum_of_another_shape_and_a_decoder_nobody_asks_are_refused() -> None:
    with (
        kofn.connect("virtual", workers=2) as cluster,
        pytest.raises(kofn.BadInput, match=r"Unsummed gave shape \(1, 4\), wanted='all'\. Return"),
    ):
        cluster.parts(np.ones((4, 3)), Rowed(), parts=4).sum(lambda part, x: part.sum(axis=0))
    with kofn.connect("virtual", workers=2) as cluster:
        with pytest.raises(kofn.BadInput, match=r"Forgetful leave out \[3\] and name \[\] besides"):
            cluster.parts([*range(4)], Forgetful())
        with pytest.raises(kofn.BadInput, match=r"0 to 3.* leave out \[\] and name \[4\] besides"):
            cluster.parts([*range(4)], Inventive())
        with pytest.raises(kofn.OutOfSymbols, match=r"sum\. .* Correct its assign\(\)"):
            cluster.parts([*range(4)], Vague()).sum(lambda part, x: part)
    with pytest.raises(kofn.BadInput, match=r"Asked has decoder\(\)\. Move it"):

        class Asked(Rowed):
            def decoder(self) -> Decoder:
                return Counting(1)


def test_a_code_decodes_with_its_own_decoder() -> None:
    USED.clear()
    A = np.random.default_rng(0).standard_normal((20, 3))
    with kofn.connect("virtual", workers=6) as cluster:
        X = cluster.encode(A, code=OwnDecoder(6, 4))
        assert X.code == OwnDecoder(6, 4)
        np.testing.assert_allclose(X @ np.ones(3), A.sum(axis=1), atol=1e-12)
        X += kofn.low_rank(np.ones((20, 1)), np.ones((3, 1)))
        cluster.lose(1)
        cluster.join()  # its share is rebuilt from those of others
        np.testing.assert_allclose(X.toarray(), A + 1, rtol=1e-9)
        assert "product" in USED
        assert cluster.parts(A, OwnSum()).sum(lambda part, x: part.sum()).exact
    assert "sum" in USED


@pytest.mark.engine
def test_a_code_travels_to_processes(tmp_path: Any) -> None:
    A = np.random.default_rng(0).standard_normal((40, 40))
    np.save(tmp_path / "A.npy", A)
    with kofn.connect("local", workers=4) as cluster:
        X = cluster.encode(tmp_path / "A.npy", code=Pascal(4, 2))  # workers code their own shares
        np.testing.assert_allclose(X @ np.ones(40), A.sum(axis=1), rtol=1e-9)
        cluster.lose(0)
        w = X.iterate(lambda y: y / np.linalg.norm(y), np.ones(40), rounds=3)
        expected = np.linalg.matrix_power(A, 3) @ np.ones(40)
        np.testing.assert_allclose(w, expected / np.linalg.norm(expected), rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"code": Pascal(6, 3), "k": 3}, "got both code=.* and k=3, n=None. Leave one"),
        ({"code": Pascal(6, 3), "n": 6}, "got both code="),
        ({"code": kofn.Uncoded()}, "inherits kofn.codes.AnyKOfN; got Uncoded"),
        ({"code": Pascal(2, 3)}, "1 <= k <= n; Pascal has n=2, k=3"),
        ({"code": Pascal(5, 3)}, "got n=5 and 6 live"),
        ({"code": Pascal(6, 3), "margin": 4}, "k=3, margin=4, n=6"),
    ],
)
def test_what_is_no_code_is_one_clear_error(options: dict[str, Any], words: str) -> None:
    with (
        kofn.connect("virtual", workers=6) as cluster,
        pytest.raises(kofn.BadInput, match=words),
    ):
        cluster.encode(np.eye(6), **options)


def test_a_generator_of_the_wrong_shape_and_a_code_without_a_hash_are_refused() -> None:
    class Square(Pascal):
        generator = np.eye(6)

    class Mutable(Pascal):
        __hash__ = None  # type: ignore[assignment]

    with kofn.connect("virtual", workers=6) as cluster:
        with pytest.raises(kofn.BadInput, match=r"shape \(n, k\) = \(6, 3\); that of Square"):
            cluster.encode(np.eye(6), code=Square(6, 3))
        with pytest.raises(kofn.BadInput, match=r"hashable.*frozen=True"):
            cluster.encode(np.eye(6), code=Mutable(6, 3))


def test_a_store_has_its_own_code(tmp_path: Any) -> None:
    from kofn.arrays.store import write_store

    write_store(np.eye(6), str(tmp_path / "store"), MDSCode(4, 2))
    with (
        kofn.connect("virtual", workers=4) as cluster,
        pytest.raises(kofn.BadInput, match=r"and a store\. Leave one of them out"),
    ):
        cluster.encode(str(tmp_path / "store"), code=Pascal(4, 2))


# The page. tests/test_docs.py runs all its examples.

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def check(code: str, tmp_path: Path, *options: str) -> str:
    """What pytest says of code with checks in it."""
    script = tmp_path / "test_example.py"
    script.write_text(code)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(script), *options], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ("passed" in done.stdout) == (done.returncode == 0), done.stdout
    return done.stdout


@pytest.mark.docs
@pytest.mark.parametrize(
    "name", ["TestBySpeed", "TestTwoOfThree", "TestParity", "TestThreadEngine"]
)
def test_the_examples_of_the_page_pass_their_checks(name: str, tmp_path: Path) -> None:
    (code,) = (code for code in BLOCKS if f"class {name}" in code)
    assert "passed" in (said := check(code, tmp_path)), said


@pytest.mark.docs
def test_the_checks_catch_threads_that_are_left(tmp_path: Path) -> None:
    (code,) = (code for code in BLOCKS if "class ThreadEngine" in code)
    code, count = re.subn(r"thread\.end\(\)|thread\.thread\.join\(5.0\)", "pass", code)
    assert count == 3
    code = code.replace("(EngineChecks):", "(EngineChecks):\n    kills, patience = 3, 3.0")
    said = check(code, tmp_path, "-k", "storm_of_kills or close_leaves_nothing")
    assert "2 failed" in said, said
    assert "threads to go" in said
    assert "outlived close" in said


def test_the_engine_of_the_page_is_short() -> None:
    (code,) = (code for code in BLOCKS if "class ThreadEngine" in code)
    assert len(code.splitlines()) <= 250


@pytest.mark.parametrize(("start", "most"), [("class BySpeed", 50), ("class Falling", 15)])
def test_the_examples_of_the_page_are_short(start: str, most: int) -> None:
    (code,) = (code for code in BLOCKS if start in code)
    (body,) = re.findall(rf"^{start}.*?(?=^\S)", code, re.MULTILINE | re.DOTALL)
    assert len(body.strip().splitlines()) + 1 <= most  # and its decorator
