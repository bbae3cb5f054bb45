"""Settings of Sphinx; site/build.py runs it. Nothing is loaded from another host."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import kofn

project, author = "kofn", "the kofn developers"
copyright = "the kofn developers, Apache 2.0"
release = version = kofn.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["examples/*.md"]
myst_enable_extensions = ["attrs_block", "colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["ref.python"]  # types that two packages have the name of
default_role = "code"
highlight_language = "none"
python_maximum_signature_line_length = 88
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
html_theme = "furo"
html_title = "kofn"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["kofn.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"


def options(obj: object, lines: list[str]) -> list[str]:
    """The lines of a docstring, in which "name: what it means. other: ..." becomes a list."""
    try:
        names = [re.escape(name) for name in inspect.signature(obj).parameters]  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return lines
    name = "|".join(sorted(names, key=len, reverse=True))
    words = rf"`?(?:{name})`?"
    mark = re.compile(rf"(?:^|(?<=[.:)] ))(?={words}(?:, {words})*: )")
    out: list[str] = []
    for paragraph in re.split(r"\n(?=\n)", "\n".join(lines)):
        text = paragraph.strip("\n")
        parts = mark.split(text.replace("\n", " ")) if name and "\n  " not in text else [text]
        if len(parts) > 2:
            out += ["", parts[0], ""]
            for part in parts[1:]:
                which, _, meaning = part.strip().partition(": ")
                which = re.sub(r"`?([*]*)(\w+)`?", r"`\1\2`", which)
                out.append(f"- {which}: {meaning}")
        else:
            out += paragraph.split("\n")
    return out


def plain(
    _app: object, what: str, _name: str, obj: object, _opts: object, lines: list[str]
) -> None:
    """Docstrings here are plain text: what reStructuredText would take for marks is escaped."""
    out: list[str] = []
    lines[:] = options(obj, lines)
    if what == "data":
        lines.clear()  # that of its type, which is Python's
    for line in lines:
        indented = line[:1] == " " and not (out and out[-1].lstrip().startswith("- "))
        if indented and out and not out[-1].strip():
            out += ["::", ""]  # an example
        text = line
        if not (indented or (out and out[-1][:4] == "    " and line[:1] == " ")):
            text = re.sub(r"`([^`]+)`", "\0\\1\0", line)
            text = re.sub(r"([\\*|])", r"\\\1", text)
            text = re.sub(r"(\w)_(?!\w)", r"\1\\_", text)
            text = re.sub(r"\b([A-Z]+):(?=\w)", r"\1\\:", text)  # FILE:NAME is no address
            text = re.sub("\0([^\0]+)\0", lambda m: "``" + m[1].replace("\\", "") + "``", text)
            text = re.sub(r"\bdocs/([\w/-]+)\.md", r":doc:`/\1`", text)
        out.append(text)
    lines[:] = out


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", plain)  # type: ignore[attr-defined]
