"""kofn reproduce: what its commands take. The work is in `reproduce` and `reproduce_all`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer import Option

from .places import data_option
from .ranks import become_worker
from .running import Json, command, run_command

papers = typer.Typer(help="Measure the papers' figures again.", no_args_is_help=True)
Out = Annotated[Path, Option(help="The directory to write; a run that was ended goes on.")]
Scale = Annotated[float | None, Option(help="Of the published delays of mean 2 s (default 0.075).")]


class Paper(NamedTuple):
    """A command: its help, that of --quick, and whether it must be given data."""

    about: str
    quick: str
    needed: bool = False


PAPERS = {
    "sequential": Paper(
        "Sequences of products with a deadline: Figures 1 and 2, Table 1.",
        "Fewer jobs: about two minutes.",
    ),
    "erasurehead": Paper(
        "Approximate gradient coding: Figures 2, 3 and 4, the lemmas, and rivals without a code.",
        "Few iterations: some minutes.",
    ),
    "elastic": Paper(
        "Coded elastic computing: Figure 2, a straggler, unequal machines, rows moved.",
        "Fewer rounds: about a minute.",
    ),
    "rateless": Paper(
        "Rateless sums of non-linear functions: Figure 2, symbols needed, times to decode.",
        "Few trials: about a minute.",
        needed=True,
    ),
    "plan": Paper(
        "What kofn chooses by itself against every fixed choice, on every recorded trace.",
        "Few traces and rounds: about a minute.",
        needed=True,
    ),
    "all": Paper(
        "All papers, one after the other, and one page with every claim and its value.",
        "Everything small: some ten minutes.",
        needed=True,
    ),
}


def _command(name: str, paper: Paper) -> Callable[..., None]:
    module, first = ("reproduce_all", ()) if name == "all" else ("reproduce", (name,))

    def call(as_json: bool, **given: Any) -> None:
        run_command(module, as_json, *first, quiet=as_json, **given)

    read: Any = data_option(name, paper.needed)
    maybe: Any = Annotated[Path | None, read], None
    options: dict[str, tuple[Any, Any]] = {
        "out": (Out, ...),
        "data": (Annotated[Path, read], ...) if paper.needed else maybe,
        "quick": (Annotated[bool, Option(help=paper.quick)], False),
        "as_json": (Json, False),
    }
    options |= {"time_scale": (Scale, None)} if name == "erasurehead" else {}
    return command(call, options, paper.about)


for _name, _one in PAPERS.items():
    papers.command(name=_name)(_command(_name, _one))


@papers.command()
def svm(
    data: Annotated[Path, data_option("svm", needed=True)],
    out: Annotated[Path, Option(help="The directory to write.")],
    engine: Annotated[str, Option(help="Where the four workers are.")] = "local",
    as_json: Json = False,
) -> None:
    """A linear SVM on four workers, two of them killed during the fit."""
    become_worker(engine)
    from ..reproduce.svm import Settings

    run_command("reproduce", as_json, "svm", out, data, quiet=as_json, settings=Settings(engine))
