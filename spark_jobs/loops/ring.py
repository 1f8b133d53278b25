"""Members and the links between them as inline SVG, with the path of a transaction.

As with :mod:`spark_jobs.common.charts`, the output is text and uses the page's colours. It is narrow enough
for a phone.
"""

from collections.abc import Mapping, Sequence
from math import cos, hypot, pi, sin
from typing import Final

from spark_jobs.common.charts import escape

_WIDTH: Final = 420
_CENTRE: Final = (_WIDTH / 2, 155.0)
_RADIUS: Final = (140, 108)
_NODE: Final = 21
_NAME: Final = 20
_EDGE: Final = 46
_LOOP: Final = 100
"""How far a member with its name, and a link from one to itself, reach from its centre."""
_HEAD: Final = 11
_BEND: Final = 0.13
_MOST: Final = 24

Point = tuple[float, float]


def draw(
    title: str,
    members: Sequence[tuple[str, str]],
    ways: Sequence[tuple[str, str]],
    *,
    path: Sequence[tuple[str, str]] = (),
    marks: Mapping[str, str] | None = None,
    origin: str = "",
) -> str:
    """Return the drawing. ``members`` are names and what is written into their circles.

    The ways of ``path`` are drawn strongly; ``marks`` gives members a mood, as a verdict has. ``origin`` is
    what has no place in the ring; it is drawn in the middle, and enters where the path begins.
    """
    shown = members[:_MOST]
    places = _places([name for name, _ in shown])
    parts: list[str] = []
    for start, end in dict.fromkeys([*ways, *path]):
        if start in places and end in places:
            parts.append(_way(places[start], places[end], (start, end) in path, f"{start} to {end}"))
    entry = places.get(path[0][0]) if path else None
    if origin:
        parts.append(_orphan(origin, entry))
    own = {start for start, end in {*ways, *path} if start == end}
    for name, text in shown:
        parts.append(_member(name, text, places[name], (marks or {}).get(name, ""), looped=name in own))
    heights = [y for _, y in places.values()]
    if origin:
        heights.append(_orphan_place(entry)[1])
    top = min(heights) - (_LOOP if own else _EDGE)
    box = f"0 {top:.0f} {_WIDTH} {max(heights) + _EDGE - top:.0f}"
    return (
        f'<svg class="ring" viewBox="{box}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _places(names: Sequence[str]) -> dict[str, Point]:
    """Put members on an ellipse, the first on top; two of them side by side, one in the middle."""
    if len(names) == 1:
        return {names[0]: _CENTRE}
    turn = pi if len(names) == 2 else -pi / 2
    angles = [turn + 2 * pi * number / len(names) for number in range(len(names))]
    return {
        name: (_CENTRE[0] + _RADIUS[0] * cos(angle), _CENTRE[1] + _RADIUS[1] * sin(angle))
        for name, angle in zip(names, angles, strict=True)
    }


def _way(start: Point, end: Point, strong: bool, tip: str) -> str:
    kind = "path" if strong else "way"
    length = hypot(end[0] - start[0], end[1] - start[1])
    if not length:
        x, y = start
        last, middle = (x - 8, y - _NODE), (x - 50, y - 90)
        line = f"M{x + 8:.1f} {y - _NODE:.1f} C{x + 60:.1f} {y - 90:.1f} {x - 50:.1f} {y - 90:.1f} "
    else:
        across = (end[1] - start[1]) / length, (start[0] - end[0]) / length
        bend = length * _BEND
        middle = (start[0] + end[0]) / 2 + across[0] * bend, (start[1] + end[1]) / 2 + across[1] * bend
        first, last = _towards(start, middle), _towards(end, middle)
        line = f"M{first[0]:.1f} {first[1]:.1f} Q{middle[0]:.1f} {middle[1]:.1f} "
    curve = f'<path class="{kind}" d="{line}{last[0]:.1f} {last[1]:.1f}"><title>{escape(tip)}</title></path>'
    return curve + _head(middle, last, kind)


def _head(before: Point, last: Point, kind: str) -> str:
    """Draw the head of an arrow that comes from one point and ends at another."""
    length = hypot(last[0] - before[0], last[1] - before[1]) or 1
    x, y = (last[0] - before[0]) / length * _HEAD, (last[1] - before[1]) / length * _HEAD
    sides = (
        (last[0] - x - y / 2, last[1] - y + x / 2),
        (last[0] - x + y / 2, last[1] - y - x / 2),
    )
    corners = " ".join(f"{px:.1f},{py:.1f}" for px, py in (last, *sides))
    return f'<polygon class="{kind}" points="{corners}"/>'


def _towards(place: Point, other: Point) -> Point:
    """Return the edge of a circle in the direction of a point."""
    length = hypot(other[0] - place[0], other[1] - place[1]) or 1
    step = (_NODE + 4) / length
    return place[0] + (other[0] - place[0]) * step, place[1] + (other[1] - place[1]) * step


def _member(name: str, text: str, place: Point, mood: str, *, looped: bool) -> str:
    """Draw a member; its name stands below it, or above it and a link from it to itself."""
    x, y = place
    half = _NAME // 2
    below = y + _NODE + 17 if y > _CENTRE[1] - 10 else y - (_LOOP - 20 if looped else _NODE + 8)
    short = name if len(name) <= _NAME else f"{name[:half]}…{name[1 - half :]}"
    return (
        f'<g class="member {escape(mood)}"><title>{escape(name)}</title>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_NODE}"/>'
        f'<text class="id" x="{x:.1f}" y="{y + 5:.1f}" text-anchor="middle">{escape(text)}</text>'
        f'<text class="name" x="{x:.1f}" y="{below:.1f}" text-anchor="middle">{escape(short)}</text>'
        "</g>"
    )


def _orphan_place(entry: Point | None) -> Point:
    """Return the middle of the ring, beside it where a member is there, below it if there is no entry."""
    if entry is None:
        return _CENTRE[0], _CENTRE[1] + 96
    return (_CENTRE[0] - 110, _CENTRE[1]) if entry == _CENTRE else _CENTRE


def _orphan(text: str, entry: Point | None) -> str:
    x, y = _orphan_place(entry)
    line = ""
    if entry is not None:
        length = hypot(entry[0] - x, entry[1] - y) or 1
        first = x + (entry[0] - x) * 34 / length, y + (entry[1] - y) * 34 / length
        last = _towards(entry, (x, y))
        line = f'<path class="origin" d="M{first[0]:.1f} {first[1]:.1f} L{last[0]:.1f} {last[1]:.1f}"/>'
        line += _head((x, y), last, "path")
    return (
        f'{line}<g class="member bad"><circle class="origin" cx="{x:.1f}" cy="{y:.1f}" r="30"/>'
        f'<text class="name" x="{x:.1f}" y="{y + 5:.1f}" text-anchor="middle">{escape(text)}</text></g>'
    )
