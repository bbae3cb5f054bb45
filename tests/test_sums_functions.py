"""A function that has changed is another function, whatever has changed in it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
from support import ENGINES

import kofn
from kofn.sums.functions import Look, Sent, load, same_method
from kofn.sums.rivals import Backups

Change = Callable[[float], None]
Form = tuple[Any, Change]  # a function that returns part * by, and what sets `by`

SOURCE = """
from functools import partial, wraps
from enum import Enum
import numpy as np

by, table, box = 1.0, {"by": 1.0}, np.ones(1)

def scale(part): return part * by
def deeper(part): return scale(part)
def other(part): return part

class Config:
    by = 1.0
    base = 1.0
    def read(self): return self.by

class Base:
    def by(self): return 1.0

class Derived(Base): pass

class Scaled:
    def __init__(self): self.by, self.inner = 1.0, {"by": [1.0]}
    def __call__(self, part, x): return part * self.by
    def method(self, part, x): return part * self.by
    def nested(self, part, x): return part * self.inner["by"][0]
    @classmethod
    def whole(cls, part, x): return part * Config.by
    @staticmethod
    def alone(part, x): return part * by

class Slotted:
    __slots__ = ("by",)
    def __call__(self, part, x): return part * self.by

scaled, slotted, config = Scaled(), Slotted(), Config()

def wrapped(fn):
    @wraps(fn)
    def outer(part, x): return fn(part, x)
    return outer

def uses_global(part, x): return part * by
def uses_helper(part, x): return scale(part)
def uses_other(part, x): return other(part)
def uses_helper_of_helper(part, x): return deeper(part)
def uses_comprehension(part, x): return sum([part * by for _ in range(1)])
def uses_nested(part, x):
    def inner(): return part * by
    return inner()
def uses_lambda(part, x): return (lambda p: p * by)(part)
def uses_default(part, x, by=1.0): return part * by
def uses_keyword(part, x, *, by=1.0): return part * by
def uses_table(part, x): return part * table["by"]
def uses_array(part, x): return part * box[0]
def uses_class(part, x): return part * Config.by
def uses_instance(part, x): return part * config.read()
def uses_module(part, x): return part * module.by
def uses_attribute(part, x): return part * uses_attribute.by
def uses_override(part, x): return part * Derived().by()
def replaced(part, x): return part * 1.0
def recursive(part, x, left=2): return recursive(part, x, left - 1) if left else part * by
@wrapped
def decorated(part, x): return part * by
def with_scale(by, part, x): return part * by["by"]
def generates(part, x): return next(part * by for _ in range(1))

def closed():
    by = 1.0
    def closure(part, x): return part * by
    def change(new):
        nonlocal by
        by = new
    return closure, change

closure, change_closure = closed()
"""


@pytest.fixture
def forms() -> Iterator[dict[str, Form]]:
    """One function for each thing that may change in it, in a module as a notebook's is.

    Nobody can import it, so all of it goes by value.
    """
    module: Any = ModuleType("notebook")
    exec(compile(SOURCE, "notebook", "exec"), vars(module))
    module.module = library = ModuleType("library")  # imported, and registered to go by value
    library.by = 1.0  # type: ignore[attr-defined]
    sys.modules["library"] = library
    cloudpickle.register_pickle_by_value(library)

    def sets(owner: Any, name: str) -> Change:
        return lambda new: setattr(owner, name, new)

    def override(new: float) -> None:
        module.Derived.by = lambda self: new
        if new == 1.0:  # back to what it inherits
            del module.Derived.by

    def code(new: float) -> None:
        exec(f"def edited(part, x): return part * {new!r}", vars(module))
        module.replaced.__code__ = module.edited.__code__

    def helper(new: float) -> None:
        exec(f"def other(part): return part * {new!r}", vars(module))

    module.uses_attribute.by = 1.0
    module.slotted.by = 1.0
    partly = partial(module.with_scale, module.table)
    by, table, box = sets(module, "by"), module.table, module.box
    default, keyword = module.uses_default, module.uses_keyword
    deep = module.scaled.inner["by"]
    yield {
        "a global": (module.uses_global, by),
        "a helper's global": (module.uses_helper, by),
        "a helper": (module.uses_other, helper),
        "a helper of a helper": (module.uses_helper_of_helper, by),
        "in a comprehension": (module.uses_comprehension, by),
        "in a generator": (module.generates, by),
        "in a nested def": (module.uses_nested, by),
        "in a lambda": (module.uses_lambda, by),
        "in a recursion": (module.recursive, by),
        "under a decorator": (module.decorated, by),
        "a default": (default, lambda new: setattr(default, "__defaults__", (new,))),
        "a keyword's default": (keyword, lambda new: keyword.__kwdefaults__.update(by=new)),
        "in a dict": (module.uses_table, lambda new: table.update(by=new)),
        "in an array": (module.uses_array, lambda new: box.fill(new)),
        "a class attribute": (module.uses_class, sets(module.Config, "by")),
        "an instance's attribute": (module.uses_instance, sets(module.config, "by")),
        "a method": (module.uses_override, override),
        "a module's attribute": (module.uses_module, sets(library, "by")),
        "its own attribute": (module.uses_attribute, sets(module.uses_attribute, "by")),
        "its code": (module.replaced, code),
        "a callable object": (module.scaled, sets(module.scaled, "by")),
        "a bound method": (module.scaled.method, sets(module.scaled, "by")),
        "deep in an object": (module.scaled.nested, lambda new: deep.__setitem__(0, new)),
        "a class method": (module.Scaled.whole, sets(module.Config, "by")),
        "a static method": (module.Scaled.alone, by),
        "a slot": (module.slotted, sets(module.slotted, "by")),
        "a partial": (partly, lambda new: table.update(by=new)),
        "a partial's function": (partial(module.uses_helper_of_helper), by),
        "a closure": (module.closure, module.change_closure),
        "another global of that name": (eval("lambda part, x: part * by", vars(module)), by),
    }  # fmt: skip
    cloudpickle.unregister_pickle_by_value(library)
    del sys.modules["library"]


@pytest.fixture(scope="module", params=ENGINES)
def cluster(request: Any) -> Iterator[kofn.Cluster]:
    with kofn.connect(request.param, workers=2) as found:
        yield found


TERMS = [np.float64(1.0), np.float64(2.0), np.float64(3.0), np.float64(4.0)]
STEPS = (1.0, 1.0, 2.0, 3.0, 3.0, 2.0, 1.0)  # and back: an older form must not be mistaken for it


def test_whatever_changes_is_noticed(cluster: kofn.Cluster, forms: dict[str, Form]) -> None:
    def each(fn: Any, stack: Any, x: Any) -> Any:
        return np.array([fn(part, x) for part in stack])

    parts, stacks = (cluster.parts(TERMS, kofn.Uncoded()) for _ in range(2))
    rival = Backups(cluster, TERMS)
    wrong = []
    for name, (fn, change) in forms.items():
        for by in STEPS:
            change(by)
            found = [
                parts.sum(fn).value,
                rival.sum(fn),
                stacks.sum(partial(each, fn), vectorised=True).value,
            ]
            if found != 3 * [10.0 * by]:
                wrong.append((name, by, *found))
    assert not wrong


@pytest.mark.engine
def test_what_has_not_changed_is_not_sent_again(forms: dict[str, Form]) -> None:
    with kofn.connect("local", workers=2) as cluster:
        parts = cluster.parts(TERMS, kofn.Uncoded())
        fns = [forms["a helper's global"][0], forms["a callable object"][0], lambda part, x: part]
        for _ in range(3):
            for fn in fns:
                parts.sum(fn)
        stored = sum(record.kind == "stored" for record in cluster.log)
        assert stored == 2 * (1 + len(fns))  # the parts, and each function once
        for _ in range(20):  # one function, however often it is made
            parts.sum(lambda part, x: 2 * part)
        stored = sum(record.kind == "stored" for record in cluster.log)
        assert stored == 2 * (2 + len(fns))


def test_enums_slots_and_abstract_classes_arrive(cluster: kofn.Cluster) -> None:
    from abc import ABC, abstractmethod

    class Kind(Enum):
        TWICE = 2.0

        @property
        def twice(self) -> float:
            return 2 * float(self.value)

    class Abstract(ABC):
        __slots__ = ("by",)

        @abstractmethod
        def times(self, part: Any) -> Any: ...

    class Concrete(Abstract):
        def times(self, part: Any) -> Any:
            return part * Kind.TWICE.twice

    parts = cluster.parts(TERMS, kofn.Uncoded())
    for _ in range(2):
        assert parts.sum(lambda part, x: Concrete().times(part)).value == 40.0


def test_a_class_of_the_parts_is_the_class_of_the_function(cluster: kofn.Cluster) -> None:
    class Term:
        by = 1.0

        def __init__(self, value: float) -> None:
            self.value = value

    parts = cluster.parts([Term(1.0), Term(2.0)], kofn.Uncoded())
    for by in (1.0, 2.0, 1.0):
        Term.by = by
        found = parts.sum(lambda part, x: part.value * part.by * isinstance(part, Term))
        assert found.value == 3.0 * by


def test_a_look_finds_the_same_twice_and_holds_what_it_knows_by_id() -> None:
    def made(by: float) -> Any:
        return eval(f"lambda part, x: part * {by}")

    before = Look(made(1.0)).kept()
    for by in range(2, 300):  # had the first one's code been given up, one of these had its id
        assert not Look(made(by)).same(before)
    fn, array = made(1.0), np.zeros(3)
    assert Look((fn, array)).same(Look((fn, array)).kept())
    was = Look((fn, array)).kept()
    array[1] = 1.0
    assert not Look((fn, array)).same(was)


def test_what_cannot_be_looked_at_is_pickled_every_time() -> None:
    module: Any = ModuleType("elsewhere")
    exec("lock = None\ndef fn(part, x): return part if lock else None", vars(module))
    module.lock, module.fn.__module__ = threading.Lock(), None  # pickle finds out where it is
    sys.modules["elsewhere"] = module
    try:
        with pytest.raises(TypeError):
            Look(module.fn)
        assert load("elsewhere", Sent()(module.fn)) is module.fn
    finally:
        del sys.modules["elsewhere"]


def test_a_name_that_another_cluster_used_in_this_process_is_not_mistaken() -> None:
    """A Dask worker serves one cluster after another, and each numbers its functions from 0."""
    one, two = (Sent()(lambda part, x, by=by: part * by) for by in (2.0, 3.0))
    assert load("share-0-fn-7", one)(1.0, None) == 2.0
    assert load("share-0-fn-7", two)(1.0, None) == 3.0
    assert load("share-0-fn-7", one) is load("share-0-fn-7", one)


@dataclass
class Times:
    """Equal to others of its class where it is not the same; or there is no telling."""

    by: float = field(compare=False)
    table: np.ndarray[Any, Any] | None = None

    def __call__(self, part: np.ndarray[Any, Any], x: Any) -> Any:
        return part.sum() * self.by


@pytest.mark.parametrize("code", [None, kofn.FractionalRepetition(c=2)], ids=["auto", "named"])
@pytest.mark.parametrize("ambiguous", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_functions_that_are_equal_are_not_mistaken(engine: str, ambiguous: bool, code: Any) -> None:
    with kofn.connect(engine, workers=4) as cluster:
        parts = cluster.parts(np.ones((8, 2)), code=code)
        for by in (1.0, 2.0, 2.0, 3.0):
            times = Times(by, np.ones(2) if ambiguous else None)
            assert parts.sum(times).value == 16.0 * by


def test_a_method_of_the_same_object_is_the_same_function() -> None:
    one, other = Times(1.0), Times(2.0)  # equal
    assert same_method(one.__call__, one.__call__)
    assert not same_method(one, one)
    assert not same_method(one.__call__, other.__call__)
