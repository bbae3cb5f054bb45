"""Who may import whom: the rules of docs/design.md, held by walking the imports."""

from __future__ import annotations

import ast
from pathlib import Path

import kofn

ROOT = Path(kofn.__file__).parent

# Besides these, which every room may import.
COMMON = ("checks", "errors", "files", "interrupts", "model")
ALLOWED: dict[str, set[str]] = {
    "checks": {"errors"},
    "errors": set(),
    "files": set(),
    "interrupts": set(),
    "model": set(),
    "codes": set(),
    "delays": set(),
    "engines": {"delays"},
    "rounds": {"codes", "engines.base"},
    "arrays": {"codes", "rounds"},
    "sums": {"codes", "rounds"},
    "sequence": {"codes", "rounds"},
    "cluster": {"arrays", "sums", "sequence", "rounds", "codes", "engines.base"},
    "market": {"cluster", "delays"},
    "learn": {"arrays", "sums", "sequence", "rounds", "codes", "cluster"},
    "plan": {"codes", "delays", "rounds", "engines.virtual"},
    "report": set(),
    "testing": {"codes", "engines", "rounds", "delays", "arrays", "cluster"},
}
CLI_MAY_NOT = {"testing"}
REPRODUCE_MAY_NOT = {"testing", "cli"}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imported(path: Path) -> set[str]:
    """Names of kofn modules that a file imports, relative to the package, dotted."""
    package = ["kofn", *path.relative_to(ROOT).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.split(".")[0] == "kofn"}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module.split(".")[0] == "kofn":
                bare = module in ("kofn", "kofn.engines", "kofn.arrays")
                found |= {f"{module}.{a.name}" for a in node.names} if bare else {module}
    return {name.removeprefix("kofn").removeprefix(".") for name in found} - {""}


def broken(path: Path) -> list[str]:
    room = room_of(path)
    problems = []
    for name in imported(path):
        if name.startswith("__"):
            continue
        target = name.split(".")[0]
        if target in (*COMMON, room):
            continue
        if room == "cli":
            fine = target not in CLI_MAY_NOT
        elif room == "reproduce":
            fine = target not in REPRODUCE_MAY_NOT
        elif room == "__init__":
            fine = target not in ("testing", "cli")
        else:
            rule = ALLOWED[room]
            fine = target in rule or any(
                name == allowed or name.startswith(allowed + ".") for allowed in rule
            )
        if not fine:
            problems.append(f"{path.relative_to(ROOT)} imports {name}")
    return problems


def test_every_room_keeps_to_the_rules() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 15
    assert [problem for path in files for problem in broken(path)] == []


def test_the_walk_sees_a_broken_rule(tmp_path: Path) -> None:
    bad = ROOT / "codes" / "mds.py"
    assert "errors" in imported(bad)
    assert all(not name.startswith("engines") for name in imported(bad))
    engine = ROOT / "rounds" / "driver.py"
    assert "engines.base" in imported(engine)


def test_the_master_reads_no_clock_and_opens_nothing() -> None:
    """Time, and what shared memory says, come in events; the driver alone asks the engine."""
    files = [*(ROOT / "rounds").glob("*.py"), *(ROOT / "sequence").glob("*.py")]
    outside = {"driver.py", "stream.py"}  # a stream is a user's: it times what it calls
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
