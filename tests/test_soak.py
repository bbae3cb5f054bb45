"""Steps of `make soak` end when their time is over, and say how."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import soak
from support import until

pytestmark = pytest.mark.engine  # another process


def test_a_step_is_cut_wherever_it_is_and_a_failure_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"

    class Begun(subprocess.Popen[bytes]):
        """A process whose time counts from when it says that it has its handler."""

        def wait(self, timeout: float | None = None) -> int:
            until(ready.exists, "the handler")
            return super().wait(timeout)

    asleep = "import signal, time; signal.signal(signal.SIGINT, {}); open({!r}, 'w'); "
    asleep += "time.sleep(600)"
    handlers = ("signal.default_int_handler", "signal.SIG_DFL", "lambda *_: exit(soak_cut)")
    for handler in handlers:  # in a test, before any, and as pytest and search.py end
        code = asleep.format(handler.replace("soak_cut", str(soak.CUT)), str(ready))
        with monkeypatch.context() as patch:
            patched = SimpleNamespace(Popen=Begun, TimeoutExpired=subprocess.TimeoutExpired)
            patch.setattr(soak, "subprocess", patched)
            assert soak.run(["-c", code], {}, 0.1) == soak.CUT
        ready.unlink()
    assert soak.run(["-c", "raise SystemExit(3)"], {}, 1000.0) == 3
    assert soak.run(["-c", ""], {}, 1000.0) == 0
