"""Checks that this could be released: `make release-check`.

Builds the sdist and the wheel, renders the README as the package index does, compares version and
changelog, and installs both files in a clean environment of every Python that is there (3.11 and
later, those that uv and pyenv have too). There it multiplies with a worker killed.
`python site/release.py 3.12` takes that version alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TRY = """
import numpy as np, kofn, sys
A = np.random.default_rng(0).standard_normal((600, 20))
with kofn.connect("local", workers=4) as cluster:
    X = cluster.encode(A, k=2)
    cluster.lose(1)
    assert np.allclose(X @ np.ones(20), A.sum(axis=1))
print("Python", sys.version.split()[0], "kofn", kofn.__version__, "multiplied with a worker killed")
"""


def run(*command: object) -> str:
    """Run a command; end with what it said if it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def pythons(only: list[str]) -> list[Path]:
    """One of each version from 3.11 on that is on this machine; or of those that are named."""
    places = [Path("/usr/bin"), Path("/usr/local/bin"), Path("/opt/homebrew/bin")]
    places += Path.home().glob(".pyenv/versions/*/bin")
    places += Path.home().glob(".local/share/uv/python/*/bin")
    found: dict[str, Path] = {f"{sys.version_info[0]}.{sys.version_info[1]}": Path(sys.executable)}
    for place in places:
        for path in sorted(place.glob("python3.*")):
            name = re.fullmatch(r"python(3\.(\d+))", path.name)
            if name and int(name[2]) >= 11 and _works(path):
                found.setdefault(name[1], path)
    if missing := sorted({*only} - {*found}):
        raise SystemExit(f"Python {', '.join(missing)} is not there; {', '.join(found)} are.")
    return [found[name] for name in only or sorted(found)]


def _works(python: Path) -> bool:
    done = subprocess.run(
        [python, "-c", "import venv, ensurepip"], capture_output=True, check=False
    )
    return done.returncode == 0


def agree(version: str) -> None:
    """The changelog's newest part is of this version."""
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if newest is None or newest[1] != version:
        raise SystemExit(
            f"The version is {version}; CHANGELOG.md begins with {newest and newest[1]}."
        )
    print(f"version {version}, as in the changelog")


def complete(built: list[Path], version: str) -> None:
    """Both files are of this version, and hold what the page needs besides Python."""
    for path in built:
        if f"-{version}" not in path.name:
            raise SystemExit(f"{path.name} is not of version {version}.")
        if path.suffix == ".whl":
            names = zipfile.ZipFile(path).namelist()
        else:
            with tarfile.open(path) as archive:
                names = archive.getnames()
        for needed in ("py.typed", "page/page.html", "page/page.js", "page/page.css"):
            if not any(name.endswith(f"kofn/{needed}") for name in names):
                raise SystemExit(f"{path.name} lacks {needed}.")
    print("built", ", ".join(path.name for path in built))


def main() -> None:
    text = (ROOT / "src" / "kofn" / "__init__.py").read_text()
    chosen = pythons(sys.argv[1:])
    version = re.findall(r'^__version__ = "(.+)"', text, re.MULTILINE)[0]
    agree(version)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT)
        built = sorted((folder / "dist").iterdir())
        complete(built, version)
        run(sys.executable, "-m", "twine", "check", "--strict", *built)
        print("the README can be rendered")
        for python in chosen:
            for path in built:
                home = folder / "venv"
                run(python, "-m", "venv", home)
                run(home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", path)
                print(path.suffix, run(home / "bin" / "python", "-c", TRY).strip())
                run(home / "bin" / "kofn", "engines")
                shutil.rmtree(home)


if __name__ == "__main__":
    main()
