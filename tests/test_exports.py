"""The public names: listed, documented, typed, and in the docs."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kofn

# The names of an engine are found by entry points; the others are commands.
WITHOUT_NAMES = {"chaos", "cli", "engines", "peers", "reproduce"}
PACKAGES = [
    "kofn",
    *(
        f"kofn.{module.name}"
        for module in pkgutil.iter_modules(kofn.__path__)
        if module.ispkg and module.name not in WITHOUT_NAMES
    ),
]
PAGE = Path(__file__).parent.parent / "docs" / "names.md"


def named(package: str) -> list[tuple[str, Any]]:
    """The public names of a package, and what they are of."""
    module = import_module(package)
    return [(name, getattr(module, name)) for name in module.__all__]


def functions(thing: Any) -> Iterator[Callable[..., Any]]:
    """The function itself, or the public methods that a class defines."""
    if inspect.isfunction(thing):
        yield thing
    elif inspect.isclass(thing):
        for name, member in vars(thing).items():
            method = getattr(member, "__func__", member)
            method = method.fget if isinstance(method, property) else method
            if inspect.isfunction(method) and not name.startswith(("_", "test_")):
                yield method


def test_types_are_shipped() -> None:
    assert Path(kofn.__file__).with_name("py.typed").exists()


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_whole_and_has_no_name_twice(package: str) -> None:
    module = import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    imported = {
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", "").startswith("kofn.")
    }
    assert imported <= set(module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_documented(package: str) -> None:
    for name, thing in named(package):
        text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        assert text, name
        assert not text.startswith(f"{name}("), f"the docstring of {name} is dataclass's own"
        if inspect.isclass(thing):  # an override may leave it to what it overrides
            for method in functions(thing):
                assert inspect.getdoc(getattr(thing, method.__name__)), method.__qualname__


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_typed(package: str) -> None:
    for _, thing in named(package):
        for function in functions(thing):
            signature = inspect.signature(function)
            bare = [
                parameter.name
                for parameter in signature.parameters.values()
                if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
            ]
            assert not bare, function.__qualname__
            assert signature.return_annotation is not signature.empty, function.__qualname__


def test_the_page_of_names_lists_every_name_and_no_other() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \| ", PAGE.read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    modules = {name for name in listed if name.startswith("kofn.")}
    assert sorted(set(listed) - modules | {"KofnError"}) == sorted(kofn.__all__)
    assert modules - {"kofn.engines.base"} == set(PACKAGES) - {"kofn"}
    assert all(isinstance(import_module(name), ModuleType) for name in modules)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"kofn\.learn.*no attribute 'Lasso'"):
        _ = kofn.learn.Lasso  # type: ignore[attr-defined]
