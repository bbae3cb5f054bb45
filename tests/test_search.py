"""Faults found by search: thousands of random scripts, and a state machine that shrinks its own.

See search.py for what a script is and what must hold. A seed that fails is printed, with the
command that replays it alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import mutations
import pytest
import search
from acting import Strike, interruptible
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support import examples, gently, seeds

from kofn.rounds import Cover

SCRIPTS = seeds(6_000)
MORE = [seed for seed in seeds(20_000) if seed not in SCRIPTS]  # in `make test-all`
EVENTS = 50  # of a script, on average: what the engine told the master, and messages that it heard
TOTAL: dict[str, search.Tally] = {}


@pytest.mark.parametrize("theme", search.SHARE)
def test_right_or_an_error_that_is_true(theme: str, request: pytest.FixtureRequest) -> None:
    mine = [seed for seed in SCRIPTS if search.THEMES[seed % 100] == theme]
    if request.config.getoption("--quick"):
        mine = mine[: len(mine) // 6]
    TOTAL[theme] = search.search(mine)
    print(f"{theme}: {TOTAL[theme]}")
    assert TOTAL[theme].scripts == len(mine)


def test_enough_was_searched(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--quick"):
        pytest.skip("a sixth is searched with --quick")
    if TOTAL.keys() != search.SHARE.keys():
        pytest.skip(f"counts all themes together; only {sorted(TOTAL)} were run")
    total = search.Tally()
    for one in TOTAL.values():
        total.add(one)
    with capsys.disabled():
        print(f"\nfault search: {total}")
    assert total.scripts == len(SCRIPTS)
    assert total.events >= EVENTS * len(SCRIPTS)


@pytest.mark.long
@pytest.mark.parametrize("theme", search.SHARE)
def test_more_scripts_are_right_too(theme: str) -> None:
    mine = [seed for seed in MORE if search.THEMES[seed % 100] == theme]
    assert search.search(mine).scripts == len(mine)


@pytest.mark.slow
def test_a_seed_that_fails_is_named_and_replays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cover, "retire", lambda self, share: None)
    with pytest.raises(search.Failing) as failing:
        search.search(range(2_000))
    seed = failing.value.seed
    assert f"python tests/search.py --seed {seed} --shrink" in str(failing.value)
    with pytest.raises(search.Failing) as again:
        search.search([seed])
    assert str(again.value) == str(failing.value)
    script = search.scripted(seed)
    fewer = search.shrunk(script)
    assert search.fails(fewer)
    assert len(fewer.steps) <= len(script.steps)
    monkeypatch.undo()
    assert search.search([seed]).scripts == 1


@pytest.mark.parametrize(
    "seed",
    [
        20746,  # two that hold one share and are silent took turns for ever
        128176,  # a share that one could not keep was given to nobody else
        2122676,  # nor one that was on its way to a frozen worker
        3102000,  # rows that came from one that had made room were asked again
        31007464,  # one that made room, and came back, was not asked for the rest of its parts
        6138849,  # a slot that became free just before a round was not offered to who stood by
    ],
)
def test_what_was_found_once_does_not_come_back(seed: int) -> None:
    assert search.search([seed]).scripts == 1


@pytest.mark.slow
def test_right_though_all_are_told_to_leave_at_once() -> None:
    # The first found: three that hold one share; rows that came after they were given up, and
    # were asked again; a sum that took those that had made room for idle.
    some = (500_017, 500_037, 510_277, *seeds(150))
    with interruptible():
        for seed in some:
            if search.THEMES[seed % 100] != "protocol":
                script = search.evacuated(search.scripted(seed))
                try:
                    search.played(script)
                except Exception as error:
                    raise AssertionError(f"evacuated, seed {seed}") from error


@pytest.mark.engine  # other processes
def test_a_seed_gives_the_same_events_every_time() -> None:
    some = [*range(100), 339, 1939, 4385]  # in the last three sums are audited, in secret
    assert search.search(some) == search.search(some)
    command = [sys.executable, search.__file__, "--first", "20885", "--count", "1"]
    played = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": order}, capture_output=True)
        for order in "01"
    ]
    one, other = (run.stdout.decode().rpartition(" in ")[0] for run in played)
    assert one == other != ""


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_mutation_has_its_place(mutation: mutations.Mutation) -> None:
    text = (mutations.SOURCE / "kofn" / mutation.file).read_text()
    assert text.count(mutation.old) == 1


# The same scripts, made and shrunk by hypothesis.

picks = st.integers(0, 1 << 20)
strikes = st.builds(
    Strike,
    calls=st.integers(1, 40),
    seconds=st.sampled_from((0.0, 1e-4, 2e-3, 0.3, 6.0)),
    what=st.sampled_from(search.FAULTS),
    pick=picks,
    size=st.sampled_from((0.0, 0.002, 0.02, 0.2, 3.0, 50.0)),
)


class Machine(RuleBasedStateMachine):
    """A world, one step at a time."""

    world: search.World | None = None

    def __init__(self) -> None:
        super().__init__()
        gently()
        self.stack = ExitStack()
        self.stack.enter_context(interruptible())

    @initialize(seed=picks)
    def begin(self, seed: int) -> None:
        while search.THEMES[seed % 100] == "protocol":
            seed += 1
        self.world = search.World(search.scripted(seed))

    @rule(data=st.data(), seed=picks, some=st.lists(strikes, max_size=4))
    def step(self, data: st.DataObject, seed: int, some: list[Strike]) -> None:
        assert self.world is not None
        work = data.draw(st.sampled_from(search.WORK[self.world.script.theme]))
        self.world.step(search.Step(work, seed, tuple(sorted(some))))

    def teardown(self) -> None:
        with self.stack:
            if self.world is not None:
                self.world.over()


TestMachine: Any = Machine.TestCase
TestMachine.settings = settings(examples(60), stateful_step_count=12)
