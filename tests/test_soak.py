"""Steps of `make soak` end when their time is over, and say how."""

from __future__ import annotations

import pytest
import soak

pytestmark = pytest.mark.engine  # another process


def test_a_step_is_cut_wherever_it_is_and_a_failure_is_one() -> None:
    asleep = "import signal, time; signal.signal(signal.SIGINT, {}); time.sleep(600)"
    handlers = ("signal.default_int_handler", "signal.SIG_DFL", "lambda *_: exit(soak_cut)")
    for handler in handlers:  # in a test, before any, and as pytest and search.py end
        code = asleep.format(handler.replace("soak_cut", str(soak.CUT)))
        assert soak.run(["-c", code], {}, 0.5) == soak.CUT
    assert soak.run(["-c", "raise SystemExit(3)"], {}, 100.0) == 3
    assert soak.run(["-c", ""], {}, 100.0) == 0
