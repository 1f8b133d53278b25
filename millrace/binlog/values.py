"""Immutable values with slots, like ``dataclass(frozen=True, slots=True)``, at a quarter of the cost.

A frozen dataclass sets each field through ``object.__setattr__``, and with a dozen fields that is most of the
time that decoding an event takes. :func:`value` builds two classes with the same slots: a plain dataclass
that is filled in the ordinary way, and the class that everybody sees, which allows no change. A new object
is filled as the first and then turned into the second by one assignment to ``__class__``.

Equality, hash and repr are the same functions for all classes. A dataclass has its own compiled, which takes
longest when a process starts and declares all event types.
"""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, dataclass_transform

__all__ = ["ValueType", "value"]

C = TypeVar("C")


class ValueType(type):
    """Class of value classes: makes an object mutable, fills it, and freezes it."""

    if not TYPE_CHECKING:  # checkers take the constructor from the fields

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Make an object."""
            made = cls._make(*args, **kwargs)
            made.__class__ = cls
            return made


def _refuse(self: object, name: str, *_value: object) -> NoReturn:
    raise AttributeError(f"{type(self).__name__} cannot be changed; {name} stays what it is")


def _contents(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """Give the function from an object to the values of its fields."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda made: tuple(getattr(made, name) for name in names)


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._contents(self) == self._contents(other)


def _hash(self: Any) -> int:
    return hash(self._contents(self))


def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
    return f"{type(self).__qualname__}({shown})"


def _reduce(self: Any) -> tuple[Any, tuple[Any, ...]]:
    return type(self), self._contents(self)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(declared: type[C]) -> type[C]:
    """Make a class with annotated fields an immutable value: slots, equality, hash and repr by its fields."""
    declared.__setattr__ = object.__setattr__  # type: ignore[method-assign]  # undoes an ancestor's refusal
    declared.__delattr__ = object.__delattr__  # type: ignore[method-assign]  # likewise
    mutable = dataclass(slots=True, eq=False, repr=False)(declared)
    namespace = {
        "__slots__": (),
        "__doc__": declared.__doc__,
        "__module__": declared.__module__,
        "__qualname__": declared.__qualname__,
        "__setattr__": _refuse,
        "__delattr__": _refuse,
        "__eq__": _equal,
        "__hash__": _hash,
        "__repr__": _repr,
        "__reduce__": _reduce,
        "_contents": staticmethod(_contents([each.name for each in fields(mutable)])),  # type: ignore[arg-type]  # a dataclass
        "_make": functools.partial(type.__call__, mutable),
    }
    made: Any = ValueType(declared.__name__, (mutable,), namespace)
    return made  # type: ignore[no-any-return]  # a class made at run time
