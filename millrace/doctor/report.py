"""Findings for people and for programs."""

import json
import textwrap
from collections.abc import Iterable
from typing import Final

import click

from millrace.finding import Finding, Level
from millrace.text import printable, printable_json

_COLOURS: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red", Level.UNCHECKED: "red"}
_LEVEL_WIDTH: Final = 9
_INDENT: Final = 2 + _LEVEL_WIDTH + 2


def as_lines(found: Iterable[Finding], width: int) -> Iterable[str]:
    """Yield a line for each finding, under a heading for each place; what to do stands below it."""
    place = None
    for finding in found:
        if finding.place != place:
            if place is not None:
                yield ""
            place = finding.place
            yield click.style(printable(place), bold=True)
        outcome = finding.outcome
        level = click.style(f"{outcome.level:<{_LEVEL_WIDTH}}", fg=_COLOURS[outcome.level])
        text = printable(f"{finding.check}: {outcome.text}")
        first, *more = textwrap.wrap(text, max(40, width - _INDENT), break_on_hyphens=False) or [""]
        yield f"  {level}  {first}"
        if outcome.advice:
            more += textwrap.wrap(
                printable(f"→ {outcome.advice}"),
                max(40, width - _INDENT),
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
        yield from (" " * _INDENT + line for line in more)


def as_json(found: Iterable[Finding]) -> str:
    """Return one object: all findings, and how many of them are errors, warnings and unchecked."""
    listed = list(found)
    errors, warnings, unchecked = _count(listed)
    text = json.dumps(
        {
            "errors": errors,
            "warnings": warnings,
            "unchecked": unchecked,
            "findings": [
                {
                    "place": finding.place,
                    "check": finding.check,
                    "level": str(finding.outcome.level),
                    "text": finding.outcome.text,
                    "advice": finding.outcome.advice,
                    "items": finding.outcome.items,
                }
                for finding in listed
            ],
        },
        ensure_ascii=False,
        indent=2,
    )
    return printable_json(text)


def summary(found: Iterable[Finding]) -> str:
    """Say how many errors and warnings there are, and how many checks could not be made."""
    errors, warnings, unchecked = _count(list(found))
    words = [_number(errors, "error"), _number(warnings, "warning")]
    if unchecked:
        words.append(f"{_number(unchecked, 'check')} could not be made")
    colour = "red" if errors or unchecked else "yellow" if warnings else "green"
    return click.style(", ".join(words), fg=colour, bold=True)


def _number(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def _count(found: list[Finding]) -> tuple[int, int, int]:
    levels = [finding.outcome.level for finding in found]
    return levels.count(Level.ERROR), levels.count(Level.WARNING), levels.count(Level.UNCHECKED)
