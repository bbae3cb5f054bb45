"""Text such as "mds(k=12, margin=1)": a name and numbers by name."""

from __future__ import annotations

import ast
from typing import Any

from ..errors import BadInput


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of "name" or "name(a=1, b='x')"."""
    try:
        found = ast.parse(text.strip(), mode="eval").body
        if isinstance(found, ast.Name):
            return found.id, {}
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and not found.args:
            pairs = [(one.arg, ast.literal_eval(one.value)) for one in found.keywords]
            if all(name is not None for name, _ in pairs):
                return found.func.id, {str(name): value for name, value in pairs}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    raise BadInput(
        f"a name, or a name with arguments, as mds(k=12, margin=1); got {text!r}. Every argument "
        f"has its name."
    )


def split_calls(text: str) -> list[str]:
    """The parts of "uncoded, mds(k=12, margin=1)": cut at commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter in ",;" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
