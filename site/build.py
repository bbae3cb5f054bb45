"""Builds the documentation site: `make docs`. No network, and warnings are errors.

The pages are plain Markdown, as they are read in the repository. This program copies them to one
folder and adds what only a site needs, then Sphinx makes HTML of it:

- the table of contents: headings and links of docs/index.md, in their order;
- a list of the papers' claims, where a page has a line `<!-- claims -->`;
- a reference, from docstrings, where a page has a line `<!-- api: NAME NAME ... -->`;
- pages that lie outside of docs/ (security, changes), and programs that pages link to.

Then it looks for spelling mistakes, links that lead nowhere, and requests to other hosts.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kofn.reproduce.index import held_against
from kofn.reproduce.inventory import COMMANDS, claims

HERE = Path(__file__).parent
ROOT = HERE.parent
BESIDE = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")  # pages outside of docs/
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
# A link that is called as its file is: on the site it has the title of the page.
FILE_NAME = re.compile(r"\[[\w/]+\.md\]\((?=[^)\s]+\.md)")
API = re.compile(r"^<!-- api: ([\w. ]+) -->$", re.MULTILINE)
MODULE = """```{{eval-rst}}
.. automodule:: {0}
   :no-members:
```
"""
NAME = """```{{eval-rst}}
.. auto{kind}:: {name}
{members}```
"""


def gather(pages: Path) -> None:
    """Copy the pages to one folder, with what a site needs besides."""
    shutil.copytree(ROOT / "docs", pages)
    shutil.copytree(ROOT / "examples", pages / "examples")
    for name in BESIDE:
        text = (ROOT / name).read_text()
        (pages / name).write_text(
            text.replace("](docs/", "](").replace("](README.md)", "](index.md)")
        )
    for page in sorted(pages.rglob("*.md")):
        text = page.read_text()
        inside = page.relative_to(pages).parent
        text = LINK.sub(partial(_relink, inside), text)
        text = FILE_NAME.sub("[](", text)
        text = re.sub(r'<a id="([^"]+)"></a>', r"\n(\1)=\n", text)
        text = re.sub(r"^<!-- claims -->$", lambda _: claimed(), text, flags=re.MULTILINE)
        text = API.sub(lambda line: reference(line[1].split()), text)
        if page == pages / "index.md":
            text += contents(text)
        page.write_text(text)


def _relink(inside: Path, link: re.Match[str]) -> str:
    """A link as it is where all pages are in one folder: what lies beside docs/ lies in it."""
    up, target = "../" * (len(inside.parts) + 1), link[2]
    if target.startswith(up):
        target = target.removeprefix("../").replace("README", "index")
    return link[1] + target + link[3]


def contents(index: str) -> str:
    """The table of contents: under each heading of the index the pages, as it calls them."""
    out = ""
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        pages = [f"{text} <{page}>" for text, page in re.findall(r"\[(.+?)\]\((\S+\.md)\)", body)]
        if pages:
            out += "\n```{toctree}\n:hidden:\n:caption: " + heading + "\n\n"
            out += "\n".join(pages) + "\n```\n"
    return out


def claimed() -> str:
    """A table for each paper: its claims, what is held against what, and what holds each."""
    out = ""
    for command in COMMANDS:
        paper = claims(command)
        page = paper.docs.removeprefix("docs/")
        out += f"\n## {paper.title}\n`kofn reproduce {command}`; [the figures]({page}).\n\n"
        out += "| claim | held against | what is measured; its key in results.json; the test |\n"
        out += "|---|---|---|\n"
        for entry in paper.entries:
            fixed = entry.against if entry.paper is None else entry.paper
            number = held_against(entry, fixed) or (f"`{entry.stated}`" if entry.stated else "")
            key = f"`{entry.key}`" if entry.key else entry.reason
            held = f"{entry.says}<br>{key}"
            if entry.test:
                held += f"<br>`{entry.test}`"
            elif entry.full_run:
                held += f"<br>the full run alone: {entry.full_run}"
            cells = (entry.item, number, held)
            out += f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
    return out


def reference(names: list[str]) -> str:
    """Markdown that has Sphinx write down the docstrings of public names, or of whole modules."""
    out = ""
    for name in names:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            out += _one(name)
            continue
        public = importlib.import_module("kofn").__all__  # each name has one place
        out += MODULE.format(name) + "".join(
            _one(f"{name}.{last}") for last in module.__all__ if last not in public
        )
    return out


def _one(name: str) -> str:
    home, _, last = name.rpartition(".")
    kind = _kind(getattr(importlib.import_module(home), last))
    members = "   :members:\n" if kind in ("class", "exception") else ""
    return NAME.format(kind=kind, name=name, members=members)


def _kind(thing: object) -> str:
    if isinstance(thing, type):
        return "exception" if issubclass(thing, BaseException) else "class"
    return "function" if callable(thing) else "data"


def reachable(site: Path) -> None:
    """Mend what the theme leaves out for people who use keys or listen to a page."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        text = text.replace(
            'class="caption" role="heading"', 'class="caption" role="heading" aria-level="2"'
        )
        for part, label in (("sidebar", "All pages"), ("toc", "On this page")):
            at = f'class="{part}-drawer'
            text = text.replace(f"<aside {at}", f'<aside aria-label="{label}" {at}')
        text = re.sub(r"<pre>", '<pre tabindex="0">', text)
        text = re.sub(r'<dl>\n((?:<dd><em class="sig-param">.*?</dd>\n)+)</dl>', _as_divs, text)
        path.write_text(
            text.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
        )


def _as_divs(signature: re.Match[str]) -> str:
    """The parameters of a long signature, which are no list of definitions."""
    inside = signature[1].replace("<dd>", "<div>").replace("</dd>", "</div>")
    return f'<div class="sig-list">{inside}</div>'


class _Links(HTMLParser):
    """What a page links to, what it loads, and which ids it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.ids |= {has["id"]} if "id" in has else set()
        if tag in ("img", "script", "iframe", "source") and "src" in has:
            self.loads.append(has["src"])
        if tag == "link" and has.get("rel") not in ("canonical", "index", "search", "next", "prev"):
            self.loads.append(has["href"])
        if tag == "a" and "href" in has:
            self.links.append(has["href"])


def faults(site: Path) -> Iterator[str]:
    """Links that lead nowhere, and what would be loaded from another host, in built pages."""
    pages = {}
    for path in site.rglob("*.html"):
        pages[path] = _Links()
        pages[path].feed(path.read_text())
    for path, page in pages.items():
        here = path.relative_to(site)
        for target in page.loads:
            if urlsplit(target).netloc or urlsplit(target).scheme not in ("", "data"):
                yield f"{here} loads {target} from another host"
        for target in page.links + page.loads:
            address = urlsplit(target)
            if address.scheme or address.netloc:
                if address.scheme not in ("http", "https", "data"):
                    yield f"{here} links to {target}, which is no address"
                continue
            where = (path.parent / unquote(address.path)).resolve() if address.path else path
            if not where.exists():
                yield f"{here} links to {target}, which is not there"
            elif address.fragment and unquote(address.fragment) not in _ids(pages, where):
                yield f"{here} links to {target}, which has no such place"
    for style in site.rglob("*.css"):
        for target in re.findall(r"url\(\s*['\"]?(https?:|//)", style.read_text()):
            yield f"{style.relative_to(site)} loads {target}... from another host"


def _ids(pages: dict[Path, _Links], where: Path) -> set[str]:
    """The ids of a page; of a file that is no page, whatever one asks for is there."""
    return pages[where].ids if where in pages else _Any()


class _Any(set[str]):
    def __contains__(self, _id: object) -> bool:
        return True


def spelling() -> int:
    """Look for common mistakes in pages, docstrings and comments; 0 if there is none."""
    places = [*BESIDE, "README.md", "docs", "examples", "src", "site"]
    command = [sys.executable, "-m", "codespell_lib", "--skip", "*.svg,*.png,*.gif,*.ipynb"]
    command += ["--ignore-words-list", "equil"]
    return subprocess.run([*command, *places], cwd=ROOT, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    out = parser.parse_args().out.resolve()
    pages = out.parent / f"{out.name}-pages"
    for folder in (pages, out):
        shutil.rmtree(folder, ignore_errors=True)
    gather(pages)
    options = ["-W", "--keep-going", "-q", "-b", "html", "-c", str(HERE)]
    done = subprocess.run([sys.executable, "-m", "sphinx", *options, pages, out], check=False)
    reachable(out)
    found = list(faults(out))
    print(*found, sep="\n", end="\n" if found else "")
    status = done.returncode or spelling() or int(bool(found))
    count = len(list(out.rglob("*.html")))
    print(
        f"{count} pages: {out / 'index.html'}" if not status else "The site has faults, see above."
    )
    return status


if __name__ == "__main__":
    raise SystemExit(main())
