"""The docs keep to the words of the glossary, and cite the papers that they speak of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GLOSSARY = DOCS / "glossary.md"
# design.md is for those who change kofn; it has words of its own.
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page.stem != "design"),
]
WORDS = re.findall(r"^\| (?!word|---)([^|]+?) \| ", GLOSSARY.read_text(), re.MULTILINE)

# Words that the glossary has better ones for.
REPLACED = ("shard", "seat", "lane", "chunk", "partition", "node", "quorum", "backend", "house")
# Where such a word means another thing: the page, and a phrase of the line.
ALLOWED = (("store", "Zarr chunks"), ("reproduce", "house prices"))


def prose(page: Path) -> str:
    """A page without its code, be it in blocks or in a line."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", "", text)


def test_the_glossary_has_words() -> None:
    assert len(WORDS) >= 40
    assert len(set(WORDS)) == len(WORDS)


@pytest.mark.parametrize("word", WORDS)
def test_every_word_of_the_glossary_is_used(word: str) -> None:
    others = " ".join(prose(page) for page in PAGES if page != GLOSSARY)
    plain = word.removesuffix(" (η)")
    endings = r"(s|d|ed|s'|ing)?"
    assert re.search(rf"\b{plain.removesuffix('y')}(y|ies|{endings})\b", others, re.IGNORECASE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_words_that_the_glossary_replaces_do_not_occur(page: Path) -> None:
    meant = [phrase for name, phrase in ALLOWED if name == page.stem]
    lines = [line for line in prose(page).splitlines() if not any(one in line for one in meant)]
    word = re.compile(rf"\b({'|'.join(REPLACED)})s?\b", re.IGNORECASE)
    assert not [line for line in lines if word.search(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_links_to_the_glossary(page: Path) -> None:
    if page.stem not in ("glossary", "references"):
        assert "glossary.md" in page.read_text()


@pytest.mark.parametrize("page", [p for p in PAGES if p != GLOSSARY], ids=lambda page: page.stem)
def test_who_speaks_of_a_paper_cites_it(page: Path) -> None:
    text = prose(page)
    # The index names pages, and those cite.
    if page.stem not in ("references", "index") and re.search(
        r"\b(the|its) paper", text, re.IGNORECASE
    ):
        assert "references.md#" in text


def test_citations_lead_to_a_reference() -> None:
    known = set(re.findall(r'<a id="([^"]+)">', (DOCS / "references.md").read_text()))
    cited = {
        name for page in PAGES for name in re.findall(r"references\.md#([\w-]+)", page.read_text())
    }
    assert cited
    assert cited <= known


def anchors(page: Path) -> set[str]:
    """What a link to a page may end with: its headings, as GitHub names them, and its own ids."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    names = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return names | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", [*PAGES, DOCS / "design.md"], ids=lambda page: page.stem)
def test_links_to_a_heading_lead_to_one(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)]+)\)", page.read_text()):
        assert anchor in anchors(page.parent / target if target else page), (target, anchor)
