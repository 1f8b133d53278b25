"""The status of a source for people and for programs."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import click

from millrace.contract import SourcePosition
from millrace.status.collect import SourceStatus
from millrace.status.lag import Lag
from millrace.text import printable

_UNKNOWN: Final = "?"
_COLUMNS: Final = ("bytes", "seconds", "transactions", "records")


def as_dict(status: SourceStatus) -> dict[str, Any]:
    """Return what JSON takes; None stands for what cannot be told."""
    server = status.server
    return {
        "source": status.source,
        "reads": status.origin,
        "paused": None
        if status.pause is None
        else {"since": _time(status.pause.written_ms), "owner": status.pause.owner},
        "server": None
        if server is None
        else {
            "address": server.address,
            "log_file": server.log_file or None,
            "position": server.position or None,
            "gtid_set": server.gtid_set or None,
            "error": server.error or None,
        },
        "services": {
            service.name: {
                "place": None if service.place is None else service.place._asdict(),
                "input_offset": service.input_offset,
                "gtid_set": service.gtid_set or None,
                "work": service.work,
                "owner": service.owner,
                "written": _time(service.written_ms),
                "error": service.error or None,
            }
            for service in status.services
        },
        "hops": [{"from": hop.start, "to": hop.end, **asdict(hop.lag)} for hop in status.hops],
        "quarantined": [
            {"table": table.name, "since": table.key, "error": table.error} for table in status.quarantined
        ],
        "pending_xa": status.pending_xa,
        "non_row_changes": dict(status.non_row_changes),
        "dead_letters": {
            "count": status.dead_letters,
            "exact": status.dead_letters_exact,
            "waiting": status.dead_letters_waiting,
            "redriven": status.dead_letters_redriven,
            "discarded": status.dead_letters_discarded,
        },
        "missing": [{"kind": one.kind, "text": one.text} for one in status.missing],
        "problems": status.problems,
    }


def as_lines(status: SourceStatus) -> Iterator[str]:
    """Yield a paragraph: places, lags, and what is quarantined."""
    other = f", from {status.origin}.raw" if status.origin != status.source else ""
    yield click.style(status.source, bold=True) + other
    server = status.server
    if server is not None and server.error:
        yield f"  {'server':<10} {click.style(printable(server.error), fg='red')}"
    elif server is not None:
        yield f"  {'server':<10} {printable(server.log_file)}:{server.position}  {server.address}"
    if status.pause is not None:
        paused = f"paused since {_time(status.pause.written_ms)}, by {printable(status.pause.owner)}"
        yield "  " + click.style(f"{paused}: 'millrace resume' resumes it", fg="yellow")
    for service in status.services:
        work = "" if service.work == "running" else f"{service.work}; last: "
        place = f"{service.error or _placed(service.place)}  {work}{service.owner}"
        yield f"  {service.name:<10} {printable(place)}, last wrote {_ago(service.written_ms)}"
    if status.hops:
        yield ""
        yield "  " + f"{'not through':<18}" + "".join(f"{column:>15}" for column in _COLUMNS)
    for hop in status.hops:
        name = f"{hop.start} → {hop.end}"
        yield f"  {name:<18}" + "".join(f"{cell:>15}" for cell in _cells(hop.lag))
    if status.hops:
        yield ""
    for table in status.quarantined:
        name = click.style(printable(table.name), fg="red")
        since = f"since {table.key}: " if table.key else ""
        yield f"  quarantined: {name} {printable(since + table.error)}"
    yield f"  dead letters: {_dead_letters(status)}"
    if status.pending_xa:
        yield f"  XA transactions prepared and not decided: {status.pending_xa}"
    for one in status.missing:
        yield f"  {one.kind}: " + click.style(printable(one.text), fg="red")
    for problem in status.problems:
        yield f"  {click.style(printable(problem), fg='yellow')}"


def _dead_letters(status: SourceStatus) -> str:
    """Write how many dead letters are in the topic, and what became of them."""
    least = "" if status.dead_letters_exact else "at least "
    if not status.dead_letters:
        return "0"
    found = f"{least}{status.dead_letters:,}, of which {least}{status.dead_letters_waiting:,} wait"
    done = f"; {status.dead_letters_redriven:,} were redriven, {status.dead_letters_discarded:,} discarded"
    return click.style(found, fg="red") + done


def _cells(lag: Lag) -> Iterator[str]:
    """Write a lag in columns; "≥" before what was not counted to its end."""
    least = "" if lag.exact else "≥ "
    yield _UNKNOWN if lag.bytes is None else f"{least}{lag.bytes:,}"
    yield _UNKNOWN if lag.seconds is None else f"{lag.seconds:,.1f}"
    yield _UNKNOWN if lag.transactions is None else f"{least}{lag.transactions:,}"
    yield "" if lag.records is None else f"{least}{lag.records:,}"


def _placed(place: SourcePosition | None) -> str:
    return _UNKNOWN if place is None else f"{place} (epoch {place.epoch})"


def _ago(written_ms: int) -> str:
    return f"{max(0.0, time.time() - written_ms / 1000):,.0f} s ago"


def _time(written_ms: int) -> str:
    return datetime.fromtimestamp(written_ms / 1000, UTC).isoformat(timespec="milliseconds")
