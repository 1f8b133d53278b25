"""The HTML report of a job: one file that needs nothing else, opens without network, in light or dark.

A report is a title, a line of facts, tiles with figures, and sections with charts, tables and text. All text
that comes from data is escaped here; callers pass plain text, except to :meth:`Report.chart`, which takes the
markup of :mod:`spark_jobs.common.charts`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from spark_jobs.common.charts import count, escape, share, size, verbatim

GENERATOR: Final = '<meta name="generator" content="Millrace">'
"""The contents of the head of each page."""

_FOLDER: Final = files("spark_jobs.common")
_AT_DOT: Final = re.compile(r"(?<=[\w\u2069])\.(?=[^\W\d]|\u2068)")
"""Where a name of a table is broken, if it must be."""

_STYLE: Final = (_FOLDER / "report.css").read_text(encoding="utf-8")
_SCRIPT: Final = (_FOLDER / "report.js").read_text(encoding="utf-8")

_AT_COLON: Final = re.compile(r"[:,](?=\S)")
_RUN: Final = re.compile(r"[^\s:,-]+")
_LONG_RUN: Final = 20
"""Text in a fixed-width font is broken between its parts, unless one of them is longer than this."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """A number of bytes, shown with its unit and sorted by value."""

    value: int


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole, shown in percent and sorted by it."""

    part: float
    whole: float

    @property
    def markup(self) -> str:
        """Write it into a page."""
        return share(self.part, self.whole)


@dataclass(frozen=True, slots=True)
class Code:
    """Text shown in a fixed-width font: keys, positions, statements."""

    text: str

    @property
    def markup(self) -> str:
        """Write it into a page."""
        anywhere = any(len(run) > _LONG_RUN for run in _RUN.findall(self.text))
        markup = verbatim(self.text)
        if " " not in self.text:
            markup = _AT_COLON.sub(r"\g<0><wbr>", markup)
        named = ' class="long"' if anywhere else ""
        return f"<code{named}>{markup}</code>"


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another page; ``target`` is relative and quoted as URLs are."""

    text: str
    target: str

    @property
    def markup(self) -> str:
        """Write it into a page."""
        return f'<a href="{escape(self.target)}">{escape(self.text)}</a>'


@dataclass(frozen=True, slots=True)
class Mood:
    """Text in the colour of a verdict: ``good``, ``bad``, ``doubt``, or none."""

    text: str
    mood: str

    @property
    def markup(self) -> str:
        """Write it into a page."""
        return f'<span class="{escape(self.mood)}">{escape(self.text)}</span>'


_NUMBER: Final = int | float | Bytes | Share
Cell = str | int | float | Bytes | Share | Code | Link | Mood | None


class Report:
    """Collects the parts of a report in the order of the calls and writes the page."""

    def __init__(self, title: str, facts: Sequence[str]) -> None:
        self._title = title
        self._facts = facts
        self._notice = ""
        self._parts: list[str] = []
        self._open = False
        self.result: tuple[str, str] | None = None
        """The verdict and its mood."""

    def verdict(self, text: str, mood: str) -> None:
        """Put one sentence on top that says what came out; ``mood`` is ``good``, ``bad`` or ``doubt``."""
        self.result = text, mood

    def notice(self, text: str) -> None:
        """Put a sentence that must not be missed after the verdict; one that is good is in doubt then."""
        self._notice = f'<ul class="points"><li class="bad">{escape(text)}</li></ul>'
        if self.result is not None and self.result[1] == "good":
            self.result = self.result[0], "doubt"

    def tiles(self, figures: Sequence[tuple[str, int | Bytes | str]]) -> None:
        """Show a row of figures, each with its name."""
        items = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in figures
        )
        self._parts.append(f'<dl class="tiles">{items}</dl>')

    def points(self, points: Sequence[tuple[str, str]]) -> None:
        """List notable findings: for each a mood, as of a verdict, and a sentence."""
        items = "".join(f'<li class="{escape(mood)}">{escape(text)}</li>' for mood, text in points)
        if items:
            self._parts.append(f'<ul class="points">{items}</ul>')

    def section(self, heading: str, text: str = "") -> None:
        """Begin a section; what follows is in it."""
        self._close()
        self._open = True
        self._parts.append(f"<section><h2>{escape(heading)}</h2>")
        if text:
            self.text(text)

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f'<p class="dim">{escape(text)}</p>')

    def chart(self, markup: str) -> None:
        """Add the markup of a chart."""
        self._parts.append(f'<div class="scroll">{markup}</div>')

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Cell]], *, folded: str = "") -> None:
        """Add a table that sorts on a click on a heading; with ``folded``, under a line of that text.

        Of nothing it says so in place of a table.
        """
        if not rows:
            self.text("None.")
            return
        numeric = [any(isinstance(row[i], _NUMBER) for row in rows) for i in range(len(headings))]
        head = "".join(
            f'<th scope="col"{_number_class(number)}><button type="button">{escape(name)}</button></th>'
            for name, number in zip(headings, numeric, strict=True)
        )
        body = "".join(f"<tr>{''.join(map(_cell, row, numeric, headings))}</tr>" for row in rows)
        table = (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )
        self._parts.append(
            f"<details><summary>{escape(folded)}</summary>{table}</details>" if folded else table
        )

    def facts(self, facts: Sequence[tuple[str, str | None]]) -> None:
        """Add a list of names and what is known of them; what is not known is left out."""
        items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts if value)
        self._parts.append(f'<dl class="known">{items}</dl>')

    def statement(self, text: str, sql: str) -> None:
        """Add statements to be run, under a line of text."""
        self._parts.append(f'<p class="dim">{escape(text)}</p><pre><code>{verbatim(sql)}</code></pre>')

    def keys(self, summary: str, keys: Sequence[str]) -> None:
        """Add a list of record keys under a line of text."""
        lines = "<br>".join(f"<code>{verbatim(key)}</code>" for key in keys)
        self._parts.append(f"<details><summary>{escape(summary)}</summary><p>{lines}</p></details>")

    def html(self, footer: str) -> str:
        """Return the page."""
        self._close()
        head = (
            f'<meta charset="utf-8">{GENERATOR}'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style>"
        )
        top = [f"<h1>{escape(self._title)}</h1>"]
        top += [f'<p class="facts">{escape(fact)}</p>' for fact in self._facts]
        if self.result is not None:
            text, mood = self.result
            top.append(f'<p class="verdict {escape(mood)}">{escape(text)}</p>')
        body = "".join([*top, self._notice, *self._parts])
        return (
            f'<!doctype html><html lang="en"><head>{head}</head><body><main>{body}'
            f"<footer>{escape(footer)}</footer></main><script>{_SCRIPT}</script></body></html>\n"
        )

    def _close(self) -> None:
        if self._open:
            self._parts.append("</section>")
            self._open = False


def _number_class(number: bool) -> str:
    return ' class="number"' if number else ""


def _cell(value: Cell, number: bool, heading: str) -> str:
    if isinstance(value, Bytes):
        exact = f' title="{count(value.value)} bytes" data-value="{value.value}"'
    elif isinstance(value, Share):
        exact = f' data-value="{value.part / value.whole if value.whole else 0}"'
    elif isinstance(value, int | float):
        exact = f' data-value="{value}"'
    else:
        exact = ""
    label = f' data-label="{escape(heading)}"'
    return f'<td{_number_class(number)}{exact}{label}><bdi dir="ltr">{_text(value)}</bdi></td>'


def _text(value: Cell) -> str:
    match value:
        case None:
            return '<span class="dim">&ndash;</span>'
        case Bytes():
            return size(value.value)
        case Share() | Code() | Link() | Mood():
            return value.markup
        case int():
            return count(value)
        case float():
            return f"{value:,.1f}"
        case _:
            return _AT_DOT.sub(".<wbr>", escape(value))
