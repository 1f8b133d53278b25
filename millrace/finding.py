"""What checks find: one line each, with what to do about it.

A check is a function that takes what it looks at and yields a :class:`CheckResult` for each finding, or
nothing if it does not apply. Its name is the name of the line. A check that cannot look (a privilege is
missing, a link is lost) raises; its line is then "unchecked", and the other checks continue.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

_LISTED: Final = 5

T = TypeVar("T")


class Level(StrEnum):
    """How bad it is: errors keep a service from working or lose data, warnings cost something.

    ``UNCHECKED`` says that nothing is known.
    """

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNCHECKED = "unchecked"

    @property
    def fails(self) -> bool:
        """Whether a command that checks must not end with 0."""
        return self in {Level.ERROR, Level.UNCHECKED}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found; ``advice`` says what to do, ``items`` names all that it concerns."""

    level: Level
    text: str
    advice: str = ""
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, with the name and the place of the check."""

    place: str
    check: str
    outcome: CheckResult


def ok(text: str, items: Iterable[str] = ()) -> CheckResult:
    """Say that all is well."""
    return CheckResult(Level.OK, text, "", tuple(items))


def warning(text: str, advice: str, items: Iterable[str] = ()) -> CheckResult:
    """Say that it works, at a price."""
    return CheckResult(Level.WARNING, text, advice, tuple(items))


def error(text: str, advice: str, items: Iterable[str] = ()) -> CheckResult:
    """Say that it does not work, or loses changes."""
    return CheckResult(Level.ERROR, text, advice, tuple(items))


def unchecked(text: str, advice: str, items: Iterable[str] = ()) -> CheckResult:
    """Say that it is not known, and why."""
    return CheckResult(Level.UNCHECKED, text, advice, tuple(items))


def listed(names: Sequence[str]) -> str:
    """Name the first few, and say how many more there are."""
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"


def examine(
    place: str,
    subject: T,
    checks: Iterable[Callable[[T], Iterator[CheckResult]]],
    failures: type[Exception] | tuple[type[Exception], ...],
) -> Iterator[Finding]:
    """Run ``checks`` on ``subject``; one that raises one of ``failures`` is unchecked, for that reason."""
    for check in checks:
        try:
            outcomes = list(check(subject))
        except failures as failure:
            outcomes = [unchecked(str(failure), "mend that, then run this again")]
        for outcome in outcomes:
            yield Finding(place, check.__name__, outcome)
