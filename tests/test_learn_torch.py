"""Torch modules through coded sums: the same as training in one process, through kills too."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import DataFolder, driver_of
from test_datasets import made_digits, made_recordings

import kofn
from kofn.delays import Exponential
from kofn.engines.local import LocalEngine
from kofn.engines.virtual import VirtualEngine
from kofn.learn.torch import CodedBackward, flat
from kofn.reproduce import erasurehead_more
from kofn.reproduce import network as paper
from kofn.reproduce.datasets import read_mnist
from kofn.reproduce.kept import Kept
from kofn.testing import Faults

pytestmark = pytest.mark.slow  # together they take seconds

torch = pytest.importorskip("torch", reason="torch is not installed")


def network(seed: int = 0, dropout: float = 0.0) -> Any:
    """Two convolutions and a line, on 28 x 28."""
    torch.manual_seed(seed)
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=3),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(4, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 3 * 3, 10),
    )


def made(rows: int = 120) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, rows)
    images = rng.random((rows, 1, 28, 28), dtype=np.float32)
    images[np.arange(rows), 0, 2 * labels] += 1.0
    return images, labels


def alone(module: Any, data: tuple[Any, Any], steps: int, rate: float = 0.1) -> Any:
    images, labels = (torch.from_numpy(one) for one in data)
    optimiser = torch.optim.SGD(module.parameters(), lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(images), labels).backward()
        optimiser.step()
    return flat(module)


def coded(cluster: kofn.Cluster, module: Any, data: Any, steps: int, **options: Any) -> Any:
    loss = torch.nn.functional.cross_entropy
    sums = CodedBackward(module, loss, cluster, data, **options)
    for placed in sums.parts._sums.values():  # everybody has its parts before the first step
        driver_of(cluster).await_stored(placed.key, list(cluster.workers), lambda _: False)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        optimiser.zero_grad()
        found.append(sums.backward())
        optimiser.step()
    return flat(module), found


def test_mnist_equals_training_in_one_process(data_folder: DataFolder) -> None:
    pixels, labels = (each[:2000] for each in read_mnist(data_folder("mnist"), "train"))
    data = pixels.reshape(-1, 1, 28, 28).astype(np.float32), labels.astype(np.int64)
    one = alone(network(), data, steps=20)
    with kofn.connect(VirtualEngine(6, delays=Exponential(mean=1.0))) as cluster:
        other, found = coded(cluster, network(), data, 20, code=kofn.FractionalRepetition(2))
    assert all(f.exact for f in found)
    assert np.abs(one - other).max() <= 1e-5
    assert found[-1].value < found[0].value


@pytest.mark.engine
def test_on_processes_through_a_kill() -> None:
    data = made()
    one = alone(network(), data, steps=4)
    faults = Faults().slow(1, by=1e4, round=1).lose(1, round=1)
    with kofn.connect(faults.on(LocalEngine(2))) as cluster:
        other, found = coded(cluster, network(), data, 4, code=kofn.FractionalRepetition(2))
        driver_of(cluster).await_lost(1)
    assert all(f.exact for f in found)
    assert np.abs(one - other).max() <= 1e-5


@pytest.mark.slow
def test_approximate_gradients_train_too() -> None:
    data = made()
    module = network()
    with kofn.connect(VirtualEngine(6, delays=Exponential(mean=1.0))) as cluster:
        sums = CodedBackward(module, torch.nn.functional.cross_entropy, cluster, data)
        optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
        losses = []
        for _ in range(25):
            optimiser.zero_grad()
            found = sums.backward(stop=kofn.first(2) | kofn.exact())
            assert found.covered >= 1 / 3
            losses.append(float(found.value))
            optimiser.step()
    assert losses[-1] < losses[0] / 2


def test_batches_are_the_same_wherever_a_part_lies() -> None:
    data = made()

    def train(code: kofn.SumCode, batch: float | None, seed: int = 0) -> Any:
        engine = VirtualEngine(6, delays=Exponential(mean=1.0), seed=seed)
        with kofn.connect(engine) as cluster:
            return coded(cluster, network(), data, 6, code=code, parts=6, batch=batch)[0]

    drawn = train(kofn.Uncoded(), 0.25)
    # float32 sums in another order.
    assert np.abs(drawn - train(kofn.FractionalRepetition(3), 0.25, 1)).max() <= 1e-6
    assert np.abs(drawn - train(kofn.FractionalRepetition(2), 0.25, 2)).max() <= 1e-6
    assert np.abs(drawn - train(kofn.Uncoded(), None)).max() > 1e-3
    # A batch of everything is everything, in another order of the rows.
    assert np.abs(train(kofn.Uncoded(), 1.0) - train(kofn.Uncoded(), None)).max() <= 1e-5
    with kofn.connect("virtual", workers=2) as cluster:
        loss = torch.nn.functional.cross_entropy
        with pytest.raises(kofn.BadInput, match="batch"):
            CodedBackward(network(), loss, cluster, data, batch=0.0)


@pytest.mark.slow
def test_random_layers_draw_alike_on_every_holder() -> None:
    data = made()
    ways = []
    for seed in (1, 2):  # other workers are first
        engine = VirtualEngine(6, delays=Exponential(mean=1.0), seed=seed)
        with kofn.connect(engine) as cluster:
            code = kofn.FractionalRepetition(3)
            ways.append(coded(cluster, network(dropout=0.5), data, 5, code=code)[0])
    assert np.abs(ways[0] - ways[1]).max() <= 1e-6
    assert np.abs(ways[0] - alone(network(), data, 5)).max() > 1e-3


def test_frozen_parameters_stay_and_buffers_travel() -> None:
    nn = torch.nn
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10)).eval()
    module[1].running_mean += 0.5
    module[2].bias.requires_grad_(False)
    data = made(60)
    with kofn.connect("virtual", workers=3) as cluster:
        sums = CodedBackward(module, nn.functional.cross_entropy, cluster, data)
        sums.backward()
    found = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    images, labels = (torch.from_numpy(one) for one in data)
    nn.functional.cross_entropy(module(images), labels).backward()
    for mine, p in zip(found, module.parameters(), strict=True):
        assert (mine is None) == (p.grad is None)
        assert mine is None or torch.allclose(mine, p.grad, atol=1e-6)


def test_bad_input() -> None:
    with kofn.connect("virtual", workers=3) as cluster:
        loss = torch.nn.functional.cross_entropy
        with pytest.raises(kofn.BadInput, match=r"torch\.nn\.Module"):
            CodedBackward("net", loss, cluster, made())  # type: ignore[arg-type]
        with pytest.raises(kofn.BadInput, match="tuple"):
            CodedBackward(network(), loss, cluster, made()[0])
        with pytest.raises(kofn.BadInput, match="to train"):
            CodedBackward(torch.nn.ReLU(), loss, cluster, made())
        with pytest.raises(kofn.BadInput, match="bfloat16"):
            CodedBackward(network().bfloat16(), loss, cluster, made())
        with pytest.raises(kofn.BadInput, match="lazy"):
            CodedBackward(torch.nn.LazyLinear(10), loss, cluster, made())
        whole = torch.utils.data.TensorDataset(*map(torch.from_numpy, made()))
        with pytest.raises(kofn.BadInput, match=r"data\.tensors"):
            CodedBackward(network(), loss, cluster, whole)
        module = network()
        sums = CodedBackward(module, loss, cluster, whole.tensors)
        module[0].bias.requires_grad_(False)
        with pytest.raises(kofn.BadInput, match="requires_grad"):
            sums.backward()


def test_a_loss_that_is_no_mean_over_rows_is_refused() -> None:
    nn, F = torch.nn, torch.nn.functional
    uneven = torch.arange(1.0, 11.0)
    bad = [
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(weight=uneven),
        nn.CrossEntropyLoss(ignore_index=3),
        partial(F.cross_entropy, reduction="none"),
        partial(F.cross_entropy, weight=uneven),
        lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="sum"),
        lambda outputs, targets: F.cross_entropy(outputs, targets, weight=uneven),
    ]
    with kofn.connect("virtual", workers=3) as cluster:
        for loss in bad:
            with pytest.raises(kofn.BadInput, match="mean over the rows"):
                CodedBackward(network(), loss, cluster, made())
        for good in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)):
            assert CodedBackward(network(), good, cluster, made()).backward().exact


def test_gradients_add_up_and_unused_parameters_have_none() -> None:
    data = made(60)
    module = network()
    module.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    with kofn.connect("virtual", workers=3) as cluster:
        sums = CodedBackward(module, torch.nn.functional.cross_entropy, cluster, data)
        sums.backward()
        assert module.unused.grad is None
        once = [p.grad.clone() for p in module[0].parameters()]
        sums.backward()
        for one, p in zip(once, module[0].parameters(), strict=True):
            assert torch.allclose(2 * one, p.grad)
        module.zero_grad()
        (0.5 * module[0].bias.square().sum()).backward()  # a penalty stays
        sums.backward()
        assert torch.allclose(module[0].bias.grad, module[0].bias + once[1], atol=1e-6)


def test_running_statistics_come_back() -> None:
    nn = torch.nn

    def built() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10))

    data = made(60)
    here, there = built(), built()
    here(torch.from_numpy(data[0]))
    with kofn.connect("virtual", workers=3) as cluster:
        sums = CodedBackward(there, nn.functional.cross_entropy, cluster, data)
        sums.backward()
        assert torch.allclose(there[1].running_mean, here[1].running_mean, atol=1e-6)
        assert int(there[1].num_batches_tracked) == 1
        # Variances are those within parts: the mean of theirs.
        blocks = torch.from_numpy(data[0]).flatten(1).reshape(3, 20, -1)
        within = 0.9 + 0.1 * blocks.var(dim=1).mean(dim=0)
        assert torch.allclose(there[1].running_var, within, atol=1e-6)
        for _ in range(40):
            sums.backward(stop=kofn.first(2))
        assert int(there[1].num_batches_tracked) == 41
        trained = float(sums.backward().value)
        there.eval()
        assert abs(float(sums.backward().value) - trained) < 0.1 * trained
        assert int(there[1].num_batches_tracked) == 42


@pytest.mark.engine
def test_a_module_that_was_changed_is_the_one_that_is_trained() -> None:
    """Whatever of a module is changed between two steps, gradients are those of the changed one."""
    nn = torch.nn

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        power = 1.0  # of the class

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.0))
            self.head, self.still = nn.Linear(5, 2), nn.Linear(5, 5)
            self.still.requires_grad_(False)
            self.by, self.shape = 1.0, torch.tanh

        def forward(self, x: Any) -> Any:
            self.seen = self.head(self.shape(self.still(self.body(x) * self.by))) ** self.power
            return self.seen

    rows = 40
    x, y = torch.randn(rows, 6), torch.randn(rows, 2)
    factor = 1.0

    def loss(outputs: Any, targets: Any) -> Any:
        return factor * ((outputs - targets) ** 2).mean()

    def twice(f: float) -> None:
        nonlocal factor
        factor = f

    module = Net()
    changes: dict[str, Any] = {
        "nothing": lambda: None,
        "an attribute": lambda: setattr(module, "by", 0.5),
        "a function": lambda: setattr(module, "shape", torch.sigmoid),
        "a frozen parameter": lambda: module.still.weight.data.mul_(2.0),
        "a layer in eval": lambda: module.body[1].eval(),
        "a layer": lambda: setattr(module, "head", nn.Linear(5, 2)),  # all of it travels in x
        "a method": lambda: setattr(Net, "forward", lambda self, x: self.head(self.body(x))),
        "a class attribute": lambda: setattr(Net, "power", 2.0),
        "the loss": lambda: twice(3.0),
        "a buffer": lambda: module.body[1].running_mean.add_(1.0),
        "all of it in eval": lambda: module.eval(),
    }
    order = ["nothing", "a class attribute", "nothing", "an attribute", "a function"]
    order += ["a frozen parameter", "a layer in eval", "a layer", "the loss"]
    order += ["a buffer", "a method", "all of it in eval", "nothing"]
    with kofn.connect(LocalEngine(2)) as cluster:
        # One part: its batch is the whole, so that gradients equal torch's own.
        sums = CodedBackward(module, loss, cluster, (x, y), code=kofn.LT(), parts=1)
        wrong: list[str] = []
        known: list[str] = []
        for what in order:
            changes[what]()
            before = {key: value.clone() for key, value in module.state_dict().items()}
            module.zero_grad()
            loss(module(x), y).backward()
            true = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
            module.load_state_dict(before)  # the statistics that this pass has moved
            module.zero_grad()
            sums.backward()
            (placed,) = sums.parts._sums.values()
            sent, known = known, [*placed._known]
            assert (known == sent) == (what in ("nothing", "a buffer", "a layer") and bool(sent))
            for p, want in zip(module.parameters(), true, strict=True):
                same = (p.grad is None) == (want is None)
                if not same or (
                    want is not None and not torch.allclose(p.grad, want, rtol=1e-4, atol=1e-6)
                ):
                    wrong.append(what)
                    break
        assert wrong == []


def test_kofn_reproduce_erasurehead_trains_a_network(tmp_path: Path) -> None:
    """By each method, on a few images of noise and made-up delays."""
    made_digits(tmp_path)
    made_recordings(tmp_path, paper.RECORDING)
    sizes = paper.Sizes(steps=1, batch=0.5, every=1, fresh=(2,))
    told: list[str] = []
    found = paper.table(tmp_path, 6, 3, sizes, told.append, Kept(tmp_path, {}))
    assert len(told) == sizes.progress_steps  # the bar ends where it should
    learnt = found["curves"]
    assert {"uncoded", "egc2", "agc3", "dsag_2"} <= set(learnt)
    # Exact sums of the same batches learn the same, whoever holds them.
    assert learnt["egc2"]["accuracy"] == learnt["uncoded"]["accuracy"]
    assert "with exact sums of c=2" in (erasurehead_more.network_sentence(found) or "")
    picture = tmp_path / "network.png"
    erasurehead_more.network({"network": found}).savefig(picture)
    assert picture.stat().st_size > 5_000
