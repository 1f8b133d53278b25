"""Charts as inline SVG: stacked columns over time and stacked horizontal bars.

The output is text, for an HTML page that defines the colours ``--s0`` … ``--s7`` and the
classes ``axis`` and ``grid``; so a chart follows the page's light or dark scheme. Every mark has a
``<title>``, which a browser shows as a tooltip and a screen reader reads.
"""

import html
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

from millrace.text import printable

SERIES_COLOURS: Final = 8
"""How many colours the page defines; further series share the last one."""

_WIDTH: Final = 1040
_NARROW: Final = 380
"""Width of the form that a telephone shows: text is as large as in the wide one there."""
_HALF_DIGIT: Final = 3.5
"""Half the width of a digit of the time axis, at most."""
_COLUMN_AREA: Final = 220
_LEFT, _TOP, _BOTTOM = 64, 12, 28
_MOST_COLUMNS: Final = 120
_MINUTE: Final = 60
_DAY: Final = 86_400
_STEPS: Final = [
    *(n * unit for unit in (1, _MINUTE) for n in (1, 2, 5, 10, 15, 30)),
    *(n * 3600 for n in (1, 2, 3, 6, 12)),
]


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a stacked chart: its name and a value per column or bar."""

    name: str
    values: Sequence[int]


_RIGHT_TO_LEFT: Final = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
_NAME: Final = re.compile(rf"[{_RIGHT_TO_LEFT}](?:[^\s.,:;()'\"&]| (?=[{_RIGHT_TO_LEFT}]))*")


def escape(text: str) -> str:
    """Write text from data into markup, without characters that affect its display.

    A name that is written from right to left is isolated, so that it does not reorder what is around it.
    """
    return _NAME.sub("\u2068\\g<0>\u2069", verbatim(text))


def verbatim(text: str) -> str:
    """Write what may be copied, such as a statement, into markup: nothing is added to it."""
    return html.escape(printable(text, lines=True))


def count(value: float) -> str:
    """Return a number with its thousands grouped: ``1,234,567``."""
    return f"{value:,.0f}"


def many(number: int, one: str) -> str:
    """Return a number of things in words: ``1 row``, ``1,234 rows``."""
    return f"{count(number)} {one}{'' if number == 1 else 's'}"


def size(value: float) -> str:
    """Return a number of bytes in words: ``12.3 MB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def share(part: float, whole: float) -> str:
    """Return a part of a whole in words: ``12 %``."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _short(value: int) -> str:
    """Return a number for an axis: ``200 k``."""
    for divisor, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if value >= divisor:
            return f"{value / divisor:g} {unit}"
    return str(value)


def short_size(value: int) -> str:
    """Return a number of bytes for an axis: ``200 kB``."""
    number, _, unit = _short(value).partition(" ")
    return f"{number} {unit}B"


def ticks(highest: int) -> list[int]:
    """Return round values from 0 up to the first that is not below ``highest``, six of them at most."""
    step = 1
    while step * 5 < highest:
        step = _next_round(step)
    return [step * n for n in range(-(-max(highest, 1) // step) + 1)]


def _next_round(step: int) -> int:
    lead = int(str(step)[0])
    return step * 2 if lead in (1, 5) else step // 2 * 5


def duration(seconds: int) -> str:
    """Write the width of a column: ``30 s``, ``5 min``."""
    for unit, name in ((_DAY, "d"), (3600, "h"), (_MINUTE, "min")):
        if seconds % unit == 0:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def column_width(first: int, last: int) -> int:
    """Return a round width in seconds for columns, so that few of them reach from ``first`` to ``last``."""
    for step in _STEPS:
        if last // step - first // step < _MOST_COLUMNS:
            return step
    step = _DAY
    while last // step - first // step >= _MOST_COLUMNS:
        step += _DAY
    return step


_STRAYS: Final = 0.01
_FAR: Final = 10


def usual_span(counts: Mapping[int, int], width: int) -> tuple[int, int]:
    """Return the first and the last time that an axis should show, of ``counts`` by times ``width`` apart.

    It grows from the middle. Left out on each side are a few (a hundredth, or two) that lie far from what is
    inside: at more than ten times the distance that this reaches over, and a day. Returns 0 and 0 where there
    are none.
    """
    times = sorted(time for time, number in counts.items() if number > 0)
    if not times:
        return 0, 0
    total = sum(counts[time] for time in times)
    few = min(max(2, total * _STRAYS), total / 20)
    before = list(accumulate((counts[time] for time in times), initial=0))
    low = high = bisect_left(before, total / 2, 1) - 1
    while True:
        far = max(_DAY, _FAR * (times[high] - times[low] + width))
        gaps = []
        if low and (times[low] - times[low - 1] <= far or before[low] > few):
            gaps.append((times[low] - times[low - 1], low - 1, high))
        if high + 1 < len(times) and (times[high + 1] - times[high] <= far or total - before[high + 1] > few):
            gaps.append((times[high + 1] - times[high], low, high + 1))
        if not gaps:
            return times[low], times[high]
        _, low, high = min(gaps)


def fill(counts: Mapping[int, Mapping[str, int]], step: int) -> tuple[list[int], dict[str, list[int]]]:
    """Fill the gaps of counts by column and series; ``counts`` are by the start of a column, in seconds.

    Returns the start of each column and the counts per series, a value per column.
    """
    starts = list(range(min(counts, default=0), max(counts, default=-1) + 1, step))
    names = sorted({name for column in counts.values() for name in column})
    return starts, {name: [counts.get(start, {}).get(name, 0) for start in starts] for name in names}


def times(starts: Sequence[int], step: int) -> tuple[list[str], list[str]]:
    """Return labels and tips for columns that begin at ``starts`` and are ``step`` seconds wide; UTC."""
    days_matter = bool(starts) and starts[0] // _DAY != starts[-1] // _DAY
    clock = "%H:%M:%S" if step < _MINUTE else "%H:%M"
    label = "%Y-%m-%d" if step >= _DAY else f"%m-%d {clock}" if days_matter else clock
    tip = "%Y-%m-%d" if step >= _DAY else f"%Y-%m-%d {clock}"
    moments = [datetime.fromtimestamp(start, UTC) for start in starts]
    return (
        [moment.strftime(label) for moment in moments],
        [f"{moment.strftime(tip)}, {duration(step)}" for moment in moments],
    )


def _labelled(starts: Sequence[int], step: int, most: int) -> list[int]:
    """Return the places of the columns that begin at round times, at most so many of them."""
    least = step * len(starts) / most
    apart = next((one for one in _STEPS if one >= least and one % step == 0), None)
    if apart is None:
        days = max(step, _DAY)
        apart = days * max(1, math.ceil(least / days))
    return [place for place, start in enumerate(starts) if start % apart == 0]


def legend(names: Sequence[str]) -> str:
    """Return the legend of a chart: a coloured square and a name per series."""
    items = "".join(
        f'<li><i style="background:{_colour(i)}"></i>{escape(n)}</li>' for i, n in enumerate(names)
    )
    return f'<ul class="legend" aria-hidden="true">{items}</ul>'


def columns(
    title: str,
    starts: Sequence[int],
    step: int,
    series: Sequence[Series],
    write: Callable[[int], str] = _short,
) -> str:
    """Return a chart of stacked columns over time; ``write`` words the values of the axis.

    The columns begin at ``starts`` and are ``step`` seconds wide. The chart comes in two widths, of which the
    page shows the one that fits.
    """
    charts = "".join(
        _columns(title, starts, step, series, write, *form)
        for form in ((_WIDTH, 10, "wide"), (_NARROW, 4, "narrow"))
    )
    return f"<div>{charts}</div>"


def _columns(  # noqa: PLR0917 - a chart, and its form
    title: str,
    starts: Sequence[int],
    step: int,
    series: Sequence[Series],
    write: Callable[[int], str],
    across: int,
    most: int,
    form: str,
) -> str:
    labels, tips = times(starts, step)
    totals = [sum(column) for column in zip(*(s.values for s in series), strict=True)]
    marks = ticks(max(totals, default=1))
    scale = _COLUMN_AREA / marks[-1]
    bottom = _TOP + _COLUMN_AREA
    slot = (across - _LEFT) / max(len(labels), 1)
    width = min(max(slot * 0.86, 1.0), 48.0)
    parts = [_axis(write(mark), bottom - mark * scale, across) for mark in marks]
    for i, tip in enumerate(tips):
        left, top = _LEFT + i * slot + (slot - width) / 2, float(bottom)
        for n, one in enumerate(series):
            if value := one.values[i]:
                top -= value * scale
                parts.append(_rect((left, top), width, value * scale, n, f"{tip}: {one.name} {count(value)}"))
    for i in _labelled(starts, step, most):
        middle = min(_LEFT + (i + 0.5) * slot, across - len(labels[i]) * _HALF_DIGIT)
        place = f'x="{middle:.1f}" y="{bottom + 20}"'
        parts.append(f'<text class="axis" {place} text-anchor="middle">{escape(labels[i])}</text>')
    return _svg(title, bottom + _BOTTOM, parts, across, form)


def ranked(
    title: str,
    labels: Sequence[tuple[str, str]],
    series: Sequence[Series],
    write: Callable[[float], str] = count,
    *,
    between: str = ".",
) -> str:
    """Return stacked horizontal bars, each below its whole label: what it belongs to, and its own name.

    It is markup that wraps, so that long names are read in full at any width; ``write`` words the totals, and
    ``between`` stands between the parts of a label.
    """
    totals = [sum(column) for column in zip(*(s.values for s in series), strict=True)]
    most = max([*totals, 1])
    rows = []
    for i, (owner, name) in enumerate(labels):
        marks = "".join(
            f'<i style="width:{100 * value / most:.2f}%;background:{_colour(n)}" '
            f'title="{escape(f"{one.name} {write(value)}")}"></i>'
            for n, one in enumerate(series)
            if (value := one.values[i])
        )
        prefix = f'<span class="dim"><bdi>{escape(owner)}</bdi>{between}</span>' if owner else ""
        label = f'<span class="name">{prefix}<b><bdi>{escape(name)}</bdi></b></span>'
        rows.append(
            f'<li>{label}<span class="total">{write(totals[i])}</span><span class="track">{marks}</span></li>'
        )
    return f'<ol class="bars" aria-label="{escape(title)}">{"".join(rows)}</ol>'


def _svg(title: str, height: float, parts: Sequence[str], width: int = _WIDTH, form: str = "") -> str:
    named = f' class="{form}"' if form else ""
    opening = f'<svg{named} viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(title)}">'
    return f"{opening}<title>{escape(title)}</title>{''.join(parts)}</svg>"


def _rect(place: tuple[float, float], width: float, height: float, series: int, tip: str) -> str:
    """Return a mark; ``place`` is its left upper corner."""
    box = f'x="{place[0]:.1f}" y="{place[1]:.1f}" width="{width:.1f}" height="{max(height, 0.5):.1f}"'
    return f'<rect {box} fill="{_colour(series)}"><title>{escape(tip)}</title></rect>'


def _axis(text: str, y: float, across: int) -> str:
    line = f'<line class="grid" x1="{_LEFT}" x2="{across}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'


def _colour(series: int) -> str:
    return f"var(--s{min(series, SERIES_COLOURS - 1)})"
