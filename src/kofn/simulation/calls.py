"""Text such as "mds(k=12, margin=1)": a name and values by name.

A value is a Python literal, a word, or a stop rule: "fractional(stream=whole, stop=first(15))".
"""

from __future__ import annotations

import ast
from typing import Any

from ..errors import BadInput
from ..rounds import stop

RULES = {
    "all": stop.all,
    "deadline": stop.deadline,
    "exact": stop.exact,
    "first": stop.first,
    "fraction": stop.fraction,
}


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of "name" or "name(a=1, b='x')"."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            pairs = [(one.arg, _value(one.value)) for one in node.keywords]
            if all(name is not None for name, _ in pairs):
                return node.func.id, {str(name): value for name, value in pairs}
    except BadInput:  # of a stop rule; it is a ValueError too
        raise
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        pass
    raise BadInput(
        f"a name, or a name with arguments, as mds(k=12, margin=1); got {text!r}. Every argument "
        f"has its name; a value is a number, a word, or a stop rule as first(15) | exact()."
    )


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd):
        left, right = _value(node.left), _value(node.right)
        if isinstance(left, stop.Stop) and isinstance(right, stop.Stop):
            return left | right if isinstance(node.op, ast.BitOr) else left & right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return RULES[node.func.id](*(ast.literal_eval(one) for one in node.args))
    return ast.literal_eval(node)


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
