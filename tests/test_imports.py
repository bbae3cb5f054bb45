"""Who may import whom: the rules of docs/design.md, held by walking the imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kofn

ROOT = Path(kofn.__file__).parent

# Every package may import these, which keep to their own rules.
COMMON = (
    *("checks", "costs", "display", "errors", "events", "exchange", "files"),
    *("interrupts", "model", "peers", "saved", "threads"),
)
ALLOWED: dict[str, set[str]] = {
    "checks": {"errors"},
    "costs": {"errors", "files"},
    "display": {"errors"},
    "errors": set(),
    "events": {"display", "model"},
    "exchange": set(),
    "files": {"errors", "interrupts"},
    "interrupts": set(),
    "model": {"display"},
    "peers": {"model"},
    "saved": {"errors", "files"},
    "threads": set(),
    "codes": set(),
    "delays": set(),
    "notices": set(),
    "engines": {"delays", "notices"},
    "rounds": {"codes", "engines.base"},
    "arrays": {"codes", "rounds"},
    "sums": {"codes", "rounds"},
    "sequence": {"codes", "rounds"},
    "checkpoint": set(),
    "choice": set(),
    "cluster": {
        *("arrays", "sums", "sequence", "rounds", "codes", "engines.base", "engines.known"),
        *("notices", "checkpoint", "choice", "report", "page"),
    },
    "market": {"cluster", "delays"},
    "rivals": {"cluster", "codes", "delays", "engines", "rounds", "sums"},
    "learn": {
        *("arrays", "sums", "sequence", "rounds", "codes", "cluster", "checkpoint"),
        "engines.known",
    },
    "report": set(),
    "simulation": {
        "arrays",
        "cluster",
        "codes",
        "delays",
        "engines",
        "report",
        "rivals",
        "rounds",
        "sequence",
        "sums",
    },
    "planning": {
        *("choice", "codes", "delays", "report", "rivals", "rounds", "sequence", "simulation"),
    },
    "page": {"report"},
    "testing": {"codes", "engines", "rounds", "delays", "arrays", "cluster"},
}
# These may import all the others but what is named.
MAY_NOT = {
    "cli": {"testing"},
    "chaos": {"testing", "cli", "reproduce"},
    "reproduce": {"testing", "cli", "chaos"},
    "__init__": {"testing", "cli", "chaos"},
    "__main__": {"testing", "chaos", "reproduce"},
}


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """Names of kofn modules that a file imports, relative to the package, dotted."""
    package = ["kofn", *path.relative_to(ROOT).parts[:-1]]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names if a.name.split(".")[0] == "kofn"}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module.split(".")[0] == "kofn":
                bare = module in ("kofn", "kofn.engines", "kofn.arrays")
                names |= {f"{module}.{a.name}" for a in node.names} if bare else {module}
    return {name.removeprefix("kofn").removeprefix(".") for name in names} - {""}


def allowed(package: str, name: str) -> bool:
    """Whether a file of `package` may import the module `name`, both without "kofn."."""
    target = name.split(".")[0]
    if target == package or (target in COMMON and package not in COMMON):
        return True
    if package in MAY_NOT:
        return target not in MAY_NOT[package]
    return any(name == one or name.startswith(one + ".") for one in ALLOWED[package])


def test_every_package_keeps_to_the_rules() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 15
    broken = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imported(path)
        if not name.startswith("__") and not allowed(package_of(path), name)
    ]
    assert broken == []


def test_a_broken_rule_is_seen() -> None:
    assert "errors" in imported(ROOT / "codes" / "threshold.py")
    assert "engines.base" in imported(ROOT / "rounds" / "driver.py")
    assert allowed("rounds", "engines.base")
    assert not allowed("rounds", "engines.local")
    assert not allowed("codes", "rounds.stop")
    assert not allowed("cli", "testing.faults")


def test_the_master_reads_no_clock_and_opens_nothing() -> None:
    """Time, and what shared memory says, come in events; the driver alone asks the engine."""
    files = [*(ROOT / "rounds").glob("*.py"), *(ROOT / "sequence").glob("*.py")]
    files += [ROOT / "sums" / "gather.py", ROOT / "arrays" / "reduce.py"]
    # A stream is a user's: it times what it calls. What relays operands is an engine. What other
    # threads have asked for is a part of the driver.
    outside = {"driver.py", "asked.py", "stream.py", "relayed.py"}
    for path in files:
        if path.name in outside:
            continue
        tree = ast.parse(path.read_text())
        called = {
            node.func.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        assert not called & {"now", "monotonic", "perf_counter", "progress", "hold"}, path
        modules = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {
            (node.module or "").split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.level == 0
        }
        forbidden = {"time", "os", "socket", "threading", "multiprocessing", "asyncio"}
        assert not modules & forbidden, path


@pytest.mark.engine
def test_import_kofn_is_light() -> None:
    """Every worker and every command pays for it; scipy.stats alone had doubled it."""
    told = "import sys, kofn; print(*sorted({name.split('.')[0] for name in sys.modules}));"
    told += "print(*(name for name in sys.modules if name.count('.') == 1))"
    run = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    heavy = {
        "kofn.simulation",
        "scipy.linalg",
        "scipy.sparse",
        "scipy.stats",
        "scipy.optimize",
        "sklearn",
        "pandas",
        "matplotlib",
        "rich",
        "typer",
    }
    assert not heavy & set(run.stdout.split())
