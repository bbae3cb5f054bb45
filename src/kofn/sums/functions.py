"""Functions that travel: whether one has changed since it was last sent, and how it is sent.

cloudpickle sends a function of the calling script with all that it needs: its code, its defaults,
the globals and helpers that it names, what it closes over, the object that it is a method of. Any
of that may change between two sums, so it is looked at before every one. Of what cloudpickle sends
by name (functions and classes of importable modules) nothing can be seen here: workers use the
module as they have imported it.
"""

from __future__ import annotations

import dis
import io
import pickle
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from operator import is_
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import cloudpickle

from ..errors import BadInput

Function = Callable[..., Any]
_CLASSES = b"_make_skeleton_"  # in every pickle that has a class in it, and not its name alone
_MOST = 16
_NOTHING = "kofn: no such global"  # itself, not what it says
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None)})  # cannot change
KNOWN = 8  # functions that are remembered at a time

# By name and pickle, and whether it brought classes: the process of a worker may have worked for
# another cluster before, or at the same time, whose names are the same.
_loaded: dict[tuple[str, bytes], tuple[Function, bool]] = {}


def same_method(fn: object, other: object) -> bool:
    """Whether both are the same method of one object: it is made anew each time it is named."""
    return type(fn) is type(other) is MethodType and fn == other


class Look:
    """What a function (or another object) is now, to be compared with what it is later.

    Costs a walk over what cloudpickle would send: some 10 µs for a few lines of code, 50 µs where
    there is a class in it, and 0.1 ms for a megabyte of arrays, which are compared and not copied.
    """

    def __init__(self, fn: object) -> None:
        self._views: list[Any] = []
        with io.BytesIO() as file:
            looker = _Looker(file, lambda buffer: self._views.append(buffer.raw()))
            looker.dump((len(sys.modules), fn))
            self._head = file.getvalue()
        self._held = looker.held

    def same(self, before: Look) -> bool:
        """Whether nothing has changed since that one, which was `kept`."""
        if self._head != before._head or len(self._views) != len(before._views):
            return False
        # `startswith` takes any memory, and compares without a copy.
        pairs = zip(before._views, self._views, strict=True)
        return all(len(was) == now.nbytes and was.startswith(now) for was, now in pairs)

    def kept(self) -> Look:
        """The same, with copies of the arrays, which may change."""
        self._views = [bytes(view) for view in self._views]
        return self


class Fixed:
    """A value that nobody changes, so that it need not be looked at again. Pickled once."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._blob: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._blob is None:
            self._blob = _dumps(self.value)
        return _fixed, (self._blob,)


def _fixed(blob: bytes) -> Fixed:
    return Fixed(pickle.loads(blob))


class Sent:
    """Functions that are pickled again when they have changed, and only then."""

    def __init__(self) -> None:
        self._known: tuple[tuple[Look, bytes], ...] = ()  # the newest last
        self._identity: tuple[Any, ...] = ()  # of the last function, where that tells all
        self._last, self._modules = b"", 0

    def __call__(self, fn: Function) -> bytes:
        """A function as it is now; the same object as before where nothing has changed."""
        # With a module imported since, a function may find more where it names submodules.
        modules, seen = len(sys.modules), _identity(fn)
        before = self._identity if modules == self._modules else ()
        if seen is not None and len(seen) == len(before) and all(map(is_, seen, before)):
            return self._last
        self._last = self._look(fn)
        self._identity, self._modules = seen or (), modules
        return self._last

    def _look(self, fn: Function) -> bytes:
        try:
            look = Look(fn)
        except Exception:
            look = None  # where it looks at more than is sent, what is sent may be picklable
        for known, blob in reversed(self._known):
            if look is not None and look.same(known):
                return blob
        try:
            blob = _dumps(fn)
        except Exception as error:
            raise BadInput(
                f"fn travels to the workers, so it must be picklable; {fn!r} is not: {error}. "
                f"Leave open files, locks and clusters out of it."
            ) from error
        if look is not None:
            self._known = (*self._known[1 - KNOWN :], (look.kept(), blob))
        return blob


def _identity(fn: Function) -> tuple[Any, ...] | None:
    """All that a function is, where none of it can change by itself; else None.

    Most functions name modules and numbers alone. Two looks at such a one saw the same where they
    saw the same objects, which takes a tenth of the time of a `Look`.
    """
    if type(fn) is not FunctionType or fn.__dict__ or cloudpickle.list_registry_pickle_by_value():
        return None
    code, known, modules = fn.__code__, fn.__globals__, sys.modules
    notes, defaults, named = fn.__annotations__, fn.__defaults__ or (), fn.__kwdefaults__ or {}
    try:
        cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    except ValueError:  # one that is still empty
        return None
    used = [known.get(name, _NOTHING) for name in _names(code)]
    values = (*notes.values(), *defaults, *named.values(), *cells, *used)
    for value in values:
        if type(value) not in _ATOMS and not (
            type(value) is ModuleType and modules.get(value.__name__) is value
        ):
            return None
    return (
        *(fn, code, fn.__name__, fn.__qualname__, fn.__module__, fn.__doc__, known, _by_name(fn)),
        *(*notes, _NOTHING, *defaults, _NOTHING, *named),
        *values,
    )


def load(name: str, blob: bytes) -> Function:
    """The function in a pickle; the same object as before for the same name and pickle."""
    known = _loaded.get((name, blob))
    if known is None:
        classes = _CLASSES in blob
        # A class is one object in a process, whatever brought it: loading this one makes it what it
        # is now, and functions that knew it as it was must be loaded again.
        for old in [old for old, (_, brought) in _loaded.items() if classes and brought]:
            del _loaded[old]
        while len(_loaded) >= _MOST:
            del _loaded[next(iter(_loaded))]
        known = _loaded[name, blob] = (pickle.loads(blob), classes)
    return known[0]


class _Sender(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, but a class that is known already also loses what it has lost here."""

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if type(reduced) is tuple and reduced[0].__name__ == "_make_skeleton_class":
            return (*reduced[:5], partial(_set_class, reduced[5]))
        return reduced


def _set_class(fill: Callable[[type, Any], Any], kind: type, state: Any) -> Any:
    """Fill a class that is new, or one that is known, which may have more than it should."""
    now = state[0]
    for name, value in list(vars(kind).items()):
        ours = name == "_abc_impl" or name.startswith("__") or type(value) is MemberDescriptorType
        if name not in now and not ours:
            delattr(kind, name)
    return fill(kind, state)


class _Looker(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes the same twice only where cloudpickle would; for comparison, never to be loaded.

    It does not look for submodules of what a function names: that takes ten times all the rest.
    """

    def __init__(self, file: io.BytesIO, callback: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(file, 5, callback)
        self.held: list[Any] = []  # what is known by its id: that stays its own as long as it lives

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is FunctionType and not _by_name(obj):
            code = obj.__code__  # cannot change
            self.held.append(code)
            known = obj.__globals__
            state = (
                *(obj.__name__, obj.__qualname__, obj.__module__, obj.__doc__),
                *(obj.__annotations__, obj.__defaults__, obj.__kwdefaults__, obj.__closure__),
                {name: known[name] for name in _names(code) if name in known},
                obj.__dict__,
            )
            return id, (id(code),), state  # a function may name itself: not in the arguments
        if type(obj) is Fixed:
            self.held.append(obj)
            return id, (id(obj),)
        return super().reducer_override(obj)


def _dumps(value: Any) -> bytes:
    with io.BytesIO() as file:
        _Sender(file, 5).dump(value)
        return file.getvalue()


def _by_name(fn: FunctionType) -> bool:
    """Whether a function goes by its name. Where that is in doubt, it does not."""
    name = fn.__module__
    named: Any = sys.modules.get(name)
    if named is None or name == "__main__":
        return False
    values = cloudpickle.list_registry_pickle_by_value()
    if values and any(name == one or name.startswith(one + ".") for one in values):
        return False
    for step in fn.__qualname__.split("."):
        named = getattr(named, step, None)
    return named is fn


@lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[str, ...]:
    """The globals that code may name, and code within it."""
    names = {str(one.argval) for one in dis.get_instructions(code) if "_GLOBAL" in one.opname}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names.update(_names(const))
    return tuple(sorted(names))
