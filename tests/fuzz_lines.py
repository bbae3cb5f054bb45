"""Command lines for fuzz.py: good ones, how they are altered, and what a clean end is."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_kinds import make_csv, make_libsvm, make_npy, make_spot

from kofn.cli import app
from kofn.learn import load

LINES = """
fit data.csv --model svm --engine virtual --workers 3 --k 2 --json --out model.kofn
fit data.csv --model ridge --engine virtual --target a --json --seed 3
fit data.npy --labels labels.npy --model logistic --engine virtual --json --search C=0.1,1 --folds 3
fit data.svm --model svm --engine virtual --test data.svm --json --keep 2
fit data.csv --model mlp --engine virtual --hidden 4,3 --epochs 1 --json
fit data.csv --model svm --engine virtual --spot spot.csv --scale 600 --json
encode data.npy store --n 4 --k 2 --json
encode data.svm store2 --n 3 --k 2 --dtype float32 --json --overwrite
engines --json
--help
fit --help
reproduce svm --data . --out .
reproduce rateless --data none --out results
""".strip().splitlines()
WORDS = """
- -- --- -1 0 1 2 3 1e9 nan inf x None / . .. /dev/null /nonexistent/x data.csv data.npy labels.npy
data.svm spot.csv model.kofn store fit encode engines --json --model svm mlp ridge logistic --k --n
--workers --engine virtual nosuch mpi --out --target y a --labels --spot --scale --hidden 4 4,,4
--search C= C=1,x alpha=1 --folds --test --test-labels --keep --notices auto aws? --dtype float16
float64 --format zarr csv --overwrite --seed --epochs %s%n http://[ s3:// memory://x
""".split()  # noqa: SIM905 (as it is typed)
WORDS += ["", "\0", "ä\udcff", "9" * 25, "-" + "9" * 25, "a" * 5000, "C=0.1\n"]


def make_command(folder: Path) -> Any:
    make_csv(folder)
    make_npy(folder)
    make_libsvm(folder)
    make_spot(folder)


def altered_line(dice: np.random.Generator) -> list[str]:
    words = LINES[int(dice.integers(len(LINES)))].split()
    for _ in range(int(dice.integers(1, 4))):
        at, word = int(dice.integers(len(words) + 1)), WORDS[int(dice.integers(len(WORDS)))]
        kind = int(dice.integers(4))
        if kind == 0:
            words.insert(at, word)
        elif kind == 1:
            del words[at : at + 1]
        elif kind == 2:
            words[at : at + 1] = [word]
        elif at < len(words):
            letters = list(words[at])
            letters[int(dice.integers(len(letters) + 1)) :] = str(word)[:3]
            words[at] = "".join(letters)
    if "fit" in words[:1] and "--engine" not in words:
        words += ["--engine", "virtual"]  # the default would start processes
    return words


def run_line(words: list[str], folder: Path) -> bool:
    """Run a command; return whether it went well, raise if its end is not clean."""
    # As Python opens them on a terminal of today.
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    status = 0
    before = sys.argv, os.getcwd()
    sys.argv = ["kofn", *words]
    os.chdir(folder)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            app.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv = before[0]
        os.chdir(before[1])
    said, told = (stream.buffer.getvalue().decode() for stream in (out, err))
    if "Traceback" in told or status not in (0, 1, 2):
        raise AssertionError(f"exit status {status}: {told}")
    if status == 1 and not (told.startswith("kofn: ") and told.count("\n") == 1):
        raise AssertionError(f"status 1 is one line on stderr: {told!r}")
    if status == 2 and "Error" not in told and "Usage" not in said:  # in click's own words
        raise AssertionError(f"status 2 says what is wrong: {told!r}")
    if status == 0 and "--json" in words and not {"--help"} & set(words):
        result = json.loads(said)
        if "score" in result and not result["score"] <= 1:
            raise AssertionError(f"a score of {result['score']}")
        if result.get("out") and Path(folder, result["out"]).is_file():
            load(folder / result["out"])
    return status == 0
