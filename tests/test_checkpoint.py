"""Checkpoints: whole or not at all, read without pickle, and of one fit or loop only."""

from __future__ import annotations

import errno
import json
import os
import pickle
import threading
from collections.abc import Callable
from contextlib import ExitStack
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support import examples
from typer.testing import CliRunner

import kofn
from kofn import checkpoint, files
from kofn import saved as saved_files
from kofn.arrays.store import write_store
from kofn.cli.app import app
from kofn.cli.fit import Fit, run
from kofn.codes import MDSCode
from kofn.errors import BadCheckpoint, BadFile, BadInput, CannotWrite, CheckpointWarning
from kofn.learn import CodedMLPClassifier, KernelRidge, LinearSVC, LogisticRegression, Ridge
from kofn.learn.coded import CodedGradient

pytestmark = pytest.mark.slow  # together they take seconds

X, Y = make_classification(200, 6, random_state=0)
XR, YR = make_regression(200, 6, n_targets=2, noise=3.0, random_state=0)


def saved(folder: Path, *states: dict[str, Any]) -> None:
    where = checkpoint.Checkpoint(folder, every=0)
    for state in states:
        assert where.offer(state)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# The file.

TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | hnp.arrays(
        st.sampled_from(["<f8", "<f4", "<i8", ">u2", "|b1", "<c16", "<U3", "<M8[s]"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(st.dictionaries(st.text(), TREES, max_size=4))
@examples(60)
def test_what_is_saved_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("saved")
    saved(folder, state)
    assert same(kofn.resume(folder), state)


@given(st.data())
@examples(60)
def test_any_change_of_a_file_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("altered")
    saved(folder, {"w": np.arange(3.0), "t": 1}, {"w": np.arange(3.0), "t": 2})
    newest = folder / "checkpoint-00000002"
    content = bytearray(newest.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    newest.write_bytes(content)
    with pytest.warns(CheckpointWarning, match=r"00000002: it is not as it was .* number 1"):
        assert kofn.resume(folder)["t"] == 1


def made_up(state: object, **facts: object) -> bytes:
    """A file with a checksum that is right, and one array; test_saved.py alters what is below."""
    return saved_files.pack({"0": np.ones(2)}, {"about": None, "state": state, **facts})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pickle.dumps({"w": 1}),
        saved_files.pack({}, {}),
        made_up(7),
        made_up("text"),
        made_up({"w": 1}),
        made_up({"dict": [1]}),
        made_up({"dict": {"w": {"array": 1}}}),
        made_up({"dict": {"w": {"array": [0]}}}),
        made_up({"dict": {}}, about={"x": 1}),
    ],
)
def test_a_file_of_a_stranger_is_refused_and_not_unpickled(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint-00000001").write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"\. Nor is an older one whole. Remove the folder"):
        kofn.resume(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    saved(tmp_path, {"t": 1})
    make(tmp_path / "checkpoint-00000002")
    with pytest.warns(CheckpointWarning, match=r"it is no file\. The one before it is used"):
        assert kofn.resume(tmp_path) == {"t": 1}


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "object"),
        ({1: 2.0}, "dict"),
        (np.array([object()]), "array of object"),
        ([1, {"f": len}], "builtin_function_or_method"),
        (b"bytes", "bytes"),
        (1j, "complex"),
    ],
)
def test_what_is_neither_array_nor_json_is_refused(tmp_path: Path, value: Any, what: str) -> None:
    with pytest.raises(BadInput, match=rf"a checkpoint holds arrays .* is a {what}"):
        saved(tmp_path, {"value": value})
    assert names(tmp_path) == []


def test_numbers_of_numpy_and_its_random_state_are_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rng.normal(size=7)
    saved(tmp_path, {"rng": rng.bit_generator.state, "n": np.int64(3), "x": np.float32(0.1)})
    state = kofn.resume(tmp_path)
    other = np.random.default_rng()
    other.bit_generator.state = state["rng"]
    assert other.normal() == rng.normal()
    assert state["n"] == 3
    assert state["x"] == np.float32(0.1)


def test_what_is_text_or_a_number_and_more_comes_back_as_that(tmp_path: Path) -> None:
    class Colour(IntEnum):
        RED = 3

    class Real(float):
        pass

    saved(tmp_path, {"name": np.array(["a", "b"])[1], "colour": Colour.RED, "x": Real(0.5)})
    assert kofn.resume(tmp_path) == {"name": "b", "colour": 3, "x": 0.5}


def test_a_list_within_itself_is_refused(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(BadInput, match="a list that is in itself"):
        saved(tmp_path, {"value": endless})


@pytest.mark.parametrize("folder", [5, None, b"run", "", "a\0b", "\ud800"])
def test_what_names_no_folder_is_refused(folder: Any) -> None:
    with pytest.raises(BadInput, match="a place is a path or a URL"):
        kofn.resume(folder)


# The folder.


def test_the_last_two_are_kept_and_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    saved(tmp_path, *({"t": t} for t in range(5)))
    assert names(tmp_path) == ["checkpoint-00000004", "checkpoint-00000005", "notes.txt"]
    assert kofn.resume(tmp_path) == {"t": 4}


def test_nothing_there_is_an_empty_state(tmp_path: Path) -> None:
    assert kofn.resume(tmp_path / "nowhere") == {}
    assert kofn.resume(tmp_path) == {}
    (tmp_path / "checkpoint-00000001.part").write_bytes(b"half")  # of a first that was cut
    assert kofn.resume(tmp_path) == {}


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"checkpoints are in a folder"):
        kofn.resume(tmp_path / "file")
    with pytest.raises(CannotWrite, match=r"folder that can be made"):
        checkpoint.Checkpoint(tmp_path / "file" / "in").prepare()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ETIMEDOUT, None])
def test_a_checkpoint_that_cannot_be_read_now_is_not_called_spoiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    saved(tmp_path, {"t": 1}, {"t": 2, "w": np.ones(9)})

    def lacking(*_: object) -> Any:
        raise MemoryError if number is None else OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        owner, name = (saved_files, "_members") if number is None else (files.Place, "open")
        patch.setattr(owner, name, lacking)
        with pytest.raises(MemoryError if number is None else BadFile) as caught:
            kofn.resume(tmp_path)
    assert "Remove the folder" not in str(caught.value)
    assert kofn.resume(tmp_path)["t"] == 2


def test_a_checkpoint_in_a_folder_that_may_not_be_entered_is_not_called_spoiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a folder can be listed, and nothing can be said of what is in it."""
    saved(tmp_path, {"t": 1})

    def refused(_: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(BadFile, match=r"it cannot be read now: .*Permission denied"):
        kofn.resume(tmp_path)


def test_a_checkpoint_that_the_disk_has_lost_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, {"t": 1}, {"t": 2})
    right = files.Place.open

    def lost(place: files.Place) -> Any:
        if place.url.endswith("2"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return right(place)

    monkeypatch.setattr(files.Place, "open", lost)
    with pytest.warns(CheckpointWarning, match="Input/output error.*number 1"):
        assert kofn.resume(tmp_path) == {"t": 1}


def test_a_full_disk_leaves_the_older_ones_and_a_fit_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Any, view: memoryview) -> None:
        file.write(view[:10])
        raise OSError(28, "No space left on device")

    model = Ridge(cluster="virtual", workers=3)
    calm = clone(model).fit(XR, YR)
    model.fit(XR, YR, checkpoint=kofn.Checkpoint(tmp_path, every=0))
    before = names(tmp_path)
    monkeypatch.setattr(files, "write_all", full)
    with pytest.raises(CannotWrite, match=r"No space left on device.*the last one is as it was"):
        saved(tmp_path, {"t": 1})
    assert names(tmp_path) == before
    with pytest.warns(CheckpointWarning, match=r"No space left.*The fit goes on"):
        model.fit(XR, YR, checkpoint=kofn.Checkpoint(tmp_path / "other", every=0))
    np.testing.assert_array_equal(model.coef_, calm.coef_)


def test_the_next_is_due_after_a_hundred_times_what_the_last_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, cost = [0.0], 0.5
    monkeypatch.setattr("kofn.checkpoint.time.monotonic", lambda: now[0])
    where = checkpoint.Checkpoint(tmp_path)

    class Slow:
        def __checkpoint__(self) -> int:
            now[0] += cost
            return 1

    def at(moment: float) -> bool:
        now[0] = moment
        return where.offer({"slow": Slow()})

    assert [at(0.0), at(0.99), at(1.0)] == [False, False, True]  # the first after a second
    assert [at(1.5 + 49.9), at(1.5 + 50.0)] == [False, True]
    where.every = 2.0
    assert [at(52.0 + 1.9), at(52.0 + 2.0)] == [False, True]


# Loops.


def test_a_loop_goes_on_with_its_matrices(tmp_path: Path) -> None:
    A = np.random.default_rng(0).standard_normal((20, 20))
    write_store(A, tmp_path / "STORE", MDSCode(n=3, k=2))
    run = str(tmp_path / "run")
    with kofn.connect("virtual", 3) as cluster:
        S, M = cluster.encode(tmp_path / "STORE"), cluster.encode(A, k=2)
        M += kofn.low_rank(A[:, :1], A[:, :1])
        assert not cluster.checkpoint(run, S=S, M=M, w=A[0], t=1)  # too soon
        assert cluster.checkpoint(run, every=0, S=S, M=M, w=A[0], t=1)
    state = kofn.resume(run)
    assert state["S"] == str(tmp_path / "STORE")
    np.testing.assert_allclose(state["M"], A + np.outer(A[:, 0], A[:, 0]), atol=1e-13)
    np.testing.assert_array_equal(state["w"], A[0])
    with kofn.connect("virtual", 3) as cluster:
        np.testing.assert_allclose(cluster.encode(state["S"]) @ A[0], A @ A[0], atol=1e-12)
        with pytest.raises(BadInput, match=r"has those of a loop with M, S, t, w, and this .* u"):
            cluster.checkpoint(run, u=1)


def test_a_store_that_was_updated_is_read_back(tmp_path: Path) -> None:
    A = np.random.default_rng(0).standard_normal((20, 4))
    write_store(A, tmp_path / "STORE", MDSCode(n=3, k=2))
    with kofn.connect("virtual", 3) as cluster:
        S = cluster.encode(tmp_path / "STORE")
        S += np.ones((20, 4))
        cluster.checkpoint(tmp_path / "run", every=0, S=S)
    np.testing.assert_allclose(kofn.resume(tmp_path / "run")["S"], A + 1, atol=1e-13)


def test_a_velocity_can_be_read_back() -> None:
    rng = np.random.default_rng(0)
    A, U, V = (rng.standard_normal(shape) for shape in ((20, 4), (20, 2), (4, 2)))
    with kofn.connect("virtual", 3) as cluster:
        X = cluster.encode(A, k=2)
        assert X.velocity() is None
        X.move(kofn.low_rank(U, V), 0.5)
        X.move(kofn.low_rank(U, V), 0.5)
        speed, now = X.velocity(), X.toarray()
    assert speed is not None
    np.testing.assert_allclose(speed, 1.5 * U @ V.T, atol=1e-13)
    np.testing.assert_allclose(now, A + 2.5 * U @ V.T, atol=1e-13)


# Fits: an exception stands for the kill (see test_checkpoint_kills.py for real ones).

V: dict[str, Any] = {"cluster": "virtual", "workers": 4}
# Of few columns a ridge is found in one iteration.
WIDE = np.random.default_rng(5).standard_normal((len(YR), 520))
FITS: dict[str, tuple[Any, Any, Any]] = {
    "logistic, lbfgs": (LogisticRegression(tol=1e-10, **V), X, Y),
    "logistic, newton": (LogisticRegression(solver="newton-cg", tol=1e-10, **V), X, Y),
    "logistic, descent": (LogisticRegression(solver="gd", tol=1e-5, **V), X, Y),
    "logistic, sums": (LogisticRegression(solver="coded-gradient", tol=1e-9, **V), X, Y),
    "svm": (LinearSVC(**V), X, Y),
    "ridge, two targets": (Ridge(**V), WIDE, YR),
    "ridge, descent": (Ridge(solver="gd", **V), XR, YR),
    "ridge, lbfgs": (Ridge(solver="lbfgs", **V), WIDE, YR),
    "ridge, batches": (
        Ridge(solver=CodedGradient(batch=0.5), max_iter=20, tol=0.0, **V),
        *(XR, YR[:, 0]),
    ),
    "kernel": (KernelRidge(**V), XR, YR),
    "network": (CodedMLPClassifier((5,), max_epochs=5, random_state=0, **V), X, Y),
    "network, plain": (
        CodedMLPClassifier((5,), max_epochs=5, random_state=0, momentum=0.0, **V),
        X,
        Y,
    ),
    "network, grid": (
        CodedMLPClassifier((5,), max_epochs=5, random_state=0, partition="grid", cluster="virtual"),
        *(X, Y),
    ),
}


def coefficients(model: Any) -> Any:
    if isinstance(model, CodedMLPClassifier):
        return np.concatenate([np.ravel(each) for each in [*model.coefs_, *model.intercepts_]])
    if isinstance(model, KernelRidge):
        return model.dual_coef_
    return np.append(np.ravel(model.coef_), model.intercept_)


class Killed(Exception):
    """As if by kill -9."""


@pytest.mark.parametrize("when", [2, 4])
@pytest.mark.parametrize("case", FITS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_goes_on_as_if_nothing_had_happened(tmp_path: Path, case: str, when: int) -> None:
    model, data, target = FITS[case]
    if case == "network, grid":
        model.set_params(workers=6)
    every, losses = kofn.Checkpoint(tmp_path, every=0), list[float]()
    calm = clone(model).set_params(callback=lambda i, loss, _: losses.append(loss))
    calm.fit(data, target)

    def strike(iteration: int, *_: object) -> None:
        if iteration == when:
            raise Killed

    with pytest.raises(Killed):
        clone(model).set_params(callback=strike).fit(data, target, checkpoint=every)
    seen: list[tuple[int, float]] = []
    again = clone(model).set_params(callback=lambda i, loss, _: seen.append((i, loss)))
    again.fit(data, target, checkpoint=tmp_path)
    # The state before the one that was told of was saved.
    assert seen[0][0] == when
    count = len(losses) - when + 1
    assert [loss for _, loss in seen] == pytest.approx(losses[-count:], rel=1e-12)
    np.testing.assert_array_equal(again.n_iter_, calm.n_iter_)
    exact = coefficients(calm)
    # Virtual workers are all alike, so products round alike; weights that are read back do not.
    apart = 1e-12 if isinstance(model, CodedMLPClassifier) else 0.0
    np.testing.assert_allclose(coefficients(again), exact, rtol=0, atol=apart * np.abs(exact).max())


def test_a_fit_that_has_ended_is_not_done_again(tmp_path: Path) -> None:
    model, seen = LinearSVC(**V), list[int]()
    model.fit(X, Y, checkpoint=kofn.Checkpoint(tmp_path, every=0))
    again = LinearSVC(callback=lambda i, *_: seen.append(i), **V)
    again.fit(X, Y, checkpoint=tmp_path)
    assert len(seen) <= 1
    np.testing.assert_array_equal(again.coef_, model.coef_)


def test_more_iterations_can_be_had_later(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"failed to converge.*\(max_iter=2\)"):
        LinearSVC(max_iter=2, **V).fit(X, Y, checkpoint=kofn.Checkpoint(tmp_path, every=0))
    more = LinearSVC(**V).fit(X, Y, checkpoint=tmp_path)
    np.testing.assert_array_equal(more.coef_, LinearSVC(**V).fit(X, Y).coef_)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With checkpoints of a fit of LinearSVC to X and Y."""
    LinearSVC(C=2.0, **V).fit(X, Y, checkpoint=kofn.Checkpoint(tmp_path, every=0))
    return tmp_path


@pytest.mark.parametrize(
    ("model", "data", "target", "weight", "what"),
    [
        (LinearSVC(C=3.0), X, Y, None, "it had C=2.0, here it is 3.0"),
        (LinearSVC(C=2.0, solver="gd"), X, Y, None, "it had solver='newton-cg', here it is 'gd'"),
        (LogisticRegression(C=2.0), X, Y, None, "its estimator was LinearSVC, here it is Logis"),
        (LinearSVC(C=2.0), X[:-1], Y[:-1], None, r"its shape was \[200, 6\], here it is \[199, 6"),
        (LinearSVC(C=2.0), X, 1 - Y, None, "its targets were others"),
        (LinearSVC(C=2.0), X, Y, np.arange(200.0), "its weights were others"),
        (LinearSVC(C=2.0), X + 1e-6, Y, None, "the numbers in X were others"),
        (LinearSVC(C=2.0), X[:, ::-1], Y, None, "the numbers in X were others"),
    ],
)
def test_checkpoints_of_another_fit_are_refused(
    folder: Path, model: Any, data: Any, target: Any, weight: Any, what: str
) -> None:
    before = {name: (folder / name).read_bytes() for name in names(folder)}
    with pytest.raises(BadInput, match=f"another fit: {what}.*[.] Choose another folder, or rem"):
        clone(model).set_params(**V).fit(data, target, weight, checkpoint=folder)
    assert {name: (folder / name).read_bytes() for name in names(folder)} == before


def test_another_cluster_and_shares_from_elsewhere_go_on(folder: Path) -> None:
    exact = LinearSVC(C=2.0, **V).fit(X, Y).coef_
    write_store(X, folder / "STORE", MDSCode(n=3, k=1))
    np.save(folder / "X.npy", X)
    with kofn.connect("virtual", 3) as cluster:
        model = LinearSVC(C=2.0, cluster=cluster)
        for data in (folder / "STORE", folder / "X.npy", cluster.encode(X, k=3)):
            found = model.fit(data, Y, checkpoint=folder).coef_
            np.testing.assert_allclose(found, exact, rtol=1e-10)
            assert model.n_iter_ > 3


@pytest.mark.parametrize("clusters", [1, 2])
def test_a_folder_is_not_overwritten_by_another_loop(tmp_path: Path, clusters: int) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(kofn.connect("virtual", 3)) for _ in range(clusters)]
        for t in (1, 2):
            assert opened[0].checkpoint(tmp_path, every=0, w=X[0], t=t)
        for _ in range(2):
            with pytest.raises(BadInput, match=r"a loop with t, w, and this state has u"):
                opened[-1].checkpoint(tmp_path, every=0, u=1)
        assert kofn.resume(tmp_path)["t"] == 2
        assert opened[0].checkpoint(tmp_path, every=0, w=X[0], t=3)  # it goes on
        for name in names(tmp_path):
            (tmp_path / name).unlink()
        assert opened[-1].checkpoint(tmp_path, every=0, u=1)  # nobody's any more


def test_a_folder_is_the_one_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kofn.connect("virtual", 3) as cluster:
        for part in ("a", "b"):
            (tmp_path / part).mkdir()
            monkeypatch.chdir(tmp_path / part)
            assert cluster.checkpoint("run", every=0, part=part)
            assert kofn.resume("run") == {"part": part}


def test_a_loops_folder_is_no_fits_and_the_other_way_round(folder: Path, tmp_path: Path) -> None:
    with kofn.connect("virtual", 3) as cluster:
        with pytest.raises(BadInput, match=r"has those of a fit of kofn.learn, and this state has"):
            cluster.checkpoint(folder, w=1)
        cluster.checkpoint(tmp_path / "loop", every=0, w=1)
    with pytest.raises(BadInput, match=r"they were not written by an estimator"):
        LinearSVC(**V).fit(X, Y, checkpoint=tmp_path / "loop")


def test_a_pipeline_passes_the_folder_on_and_a_search_is_told(tmp_path: Path) -> None:
    pipe = make_pipeline(StandardScaler(), LinearSVC(**V))
    every = kofn.Checkpoint(tmp_path, every=0)
    pipe.fit(X, Y, linearsvc__checkpoint=every)
    assert len(names(tmp_path)) == 2
    search = GridSearchCV(LinearSVC(**V), {"C": [1.0, 2.0]}, cv=2, error_score="raise")
    with pytest.raises(BadInput, match=r"those in .* are of another fit"):
        search.fit(X, Y, checkpoint=kofn.Checkpoint(tmp_path / "search", every=0))


# The command.


def test_the_command_saves_and_goes_on(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    folder = tmp_path / "run"
    about: dict[str, Any] = {"data": tmp_path / "X.npy", "labels": tmp_path / "y.npy"}
    about |= {"model": "svm", "workers": 4, "k": 2, "engine": "virtual"}

    def strike(iteration: int, *_: object) -> None:
        if iteration == 3:
            raise Killed

    with kofn.connect("virtual", 4) as cluster:
        model = LinearSVC(cluster=cluster, callback=strike)
        coded = cluster.encode(X, 2)
        with pytest.raises(Killed):
            model.fit(coded, Y, checkpoint=kofn.Checkpoint(folder, every=0))
    with pytest.raises(BadInput, match=r"has number 2. Add --resume"):
        run(Fit(**about, checkpoint=folder), quiet=True)
    with pytest.raises(BadInput, match=r"none was named. Add --checkpoint"):
        run(Fit(**about, resume=True), quiet=True)
    plain = run(Fit(**about), quiet=True)
    result = run(Fit(**about, checkpoint=folder, resume=True), quiet=True)
    assert result["resumed"] == 2
    assert plain["resumed"] == 0
    assert result["iterations"] == plain["iterations"] == len(result["losses"]) + 2
    new = run(Fit(**about, checkpoint=tmp_path / "new", resume=True), quiet=True)
    assert new["resumed"] == 0


def test_the_command_saves_at_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", X)
    np.save("y.npy", Y)
    url = f"memory://{tmp_path.name}/run"
    about = ["fit", "X.npy", "--labels", "y.npy", "--model", "svm", "--engine", "virtual"]
    with kofn.connect("virtual", 4) as cluster:
        fit = LinearSVC(cluster=cluster, max_iter=3).fit
        with pytest.warns(ConvergenceWarning):
            fit(cluster.encode(X, 2), Y, checkpoint=kofn.Checkpoint(url, every=0))
    refused = CliRunner().invoke(app, [*about, "--checkpoint", url])
    assert refused.exit_code != 0
    assert f"{url} has number" in str(refused.exception)
    gone_on = CliRunner().invoke(app, [*about, "--checkpoint", url, "--resume", "--json"])
    assert json.loads(gone_on.stdout)["resumed"] > 0
    assert sorted(os.listdir()) == ["X.npy", "y.npy"]  # no folder that is called memory:


# Two in one folder.


def test_two_that_write_one_file_at_once_do_not_mix(tmp_path: Path) -> None:
    place, refused = files.Place.of(tmp_path / "file"), list[str]()
    contents = [bytes([i]) * (1 << 16) for i in range(4)]

    def write(data: bytes) -> None:
        for _ in range(50):
            try:
                place.write(data)
            except OSError as error:
                refused.append(str(error.strerror))

    threads = [threading.Thread(target=write, args=(data,)) for data in contents]
    for thread in threads:
        thread.start()
    seen = set[bytes]()
    while any(thread.is_alive() for thread in threads):
        if place.exists():
            seen.add((tmp_path / "file").read_bytes())
    assert seen <= {*contents}
    assert set(refused) <= {"another process is just writing it"}
    assert (tmp_path / "file").read_bytes() in contents
    assert names(tmp_path) == ["file"]


def test_a_file_that_another_is_writing_is_left_to_it(tmp_path: Path) -> None:
    part = tmp_path / "file.part"
    with files._alone(part) as file:
        file.write(b"half")
        with pytest.raises(OSError, match="another process is just writing it"):
            files.Place.of(tmp_path / "file").write(b"whole")
        assert part.read_bytes() == b"half"
    files.Place.of(tmp_path / "file").write(b"whole")  # what was left half-written is no trouble
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert names(tmp_path) == ["file"]


def test_of_two_runs_in_one_folder_one_goes_on_saving(tmp_path: Path) -> None:
    first, second = (checkpoint.Checkpoint(tmp_path, every=0) for _ in range(2))
    assert first.read() is None
    assert second.read() is None
    assert first.offer({"run": 1})
    with pytest.raises(CannotWrite, match="another run has written number 1 there"):
        second.offer({"run": 2})
    assert first.offer({"run": 1, "round": 2})
    assert kofn.resume(tmp_path) == {"run": 1, "round": 2}
    for name in names(tmp_path):
        (tmp_path / name).unlink()
    assert first.offer({"run": 1})  # it was only emptied


def test_a_run_that_is_stopped_while_it_writes_keeps_nobody_from_going_on(tmp_path: Path) -> None:
    second = checkpoint.Checkpoint(tmp_path, every=0)
    assert second.read() is None
    with files._alone(tmp_path / "checkpoint-00000001.part"):  # by the one that is stopped
        assert second.offer({"run": 2})
        assert second.offer({"run": 2, "round": 2})
    assert kofn.resume(tmp_path) == {"run": 2, "round": 2}


def test_a_fit_that_is_not_alone_in_its_folder_goes_on_and_warns(tmp_path: Path) -> None:
    intruder = checkpoint.Checkpoint(tmp_path, every=0)

    def intrude(iteration: int, *_: object) -> None:
        if iteration == 2:
            intruder.offer({"another": "run"})

    own = checkpoint.Checkpoint(tmp_path, every=0)
    with pytest.warns(CheckpointWarning, match="another run has written"):
        model = LogisticRegression(callback=intrude, **V).fit(X, Y, checkpoint=own)
    alone = LogisticRegression(**V).fit(X, Y)
    np.testing.assert_allclose(coefficients(model), coefficients(alone), rtol=1e-12)
    assert kofn.resume(tmp_path) == {"another": "run"}
