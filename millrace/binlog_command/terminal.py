"""How output reaches people and programs: plain to a file or pipe, coloured and paged on a terminal.

A log may hold anything in names and statements, sequences that act on a terminal too. To a file or a pipe the
SQL text goes out exactly, since it is there to be run; on a terminal it is shown (:func:`shown`).
"""

import codecs
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final, Protocol, TypeVar

import click

from millrace.binlog_command.spool import Spool
from millrace.text import printable


class Buffer:
    """A stream for outputs to write to: it is passed on at once, or kept until it is taken."""

    def __init__(self, through: BinaryIO | None = None, *, live: bool = False) -> None:
        """With ``live`` what is written can be read by others after each :meth:`flush`."""
        self._through = through
        self._live = live
        self._kept = Spool()

    def write(self, data: bytes) -> int:
        """Take bytes."""
        if self._through is not None:
            self._through.write(data)
        else:
            self._kept.write(data)
        return len(data)

    def line(self, text: str) -> None:
        """Take a line of text, given without its end."""
        self.write(text.encode() + b"\n")

    @property
    def is_plain(self) -> bool:
        """Whether what is written needs neither to be taken nor to be sent on."""
        return self._through is not None and not self._live

    def flush(self) -> None:
        """Send on what was written, if that is wanted at once."""
        if self._live and self._through is not None:
            self._through.flush()

    def take(self) -> Iterator[bytes]:
        """Return everything that was kept since the last time, in pieces."""
        return self._kept.take()


def note(message: str) -> None:
    """Write a note, which is no error, to standard error."""
    click.echo(f"note: {printable(message)}", err=True)


def tell(message: str) -> None:
    """Write an error to standard error, in one line."""
    click.echo(f"error: {printable(message)}", err=True)


def use_colour(choice: str, *, to_file: bool) -> bool:
    """Decide about colours: ``always``, ``never``, or as the terminal and NO_COLOR say."""
    if choice != "auto":
        return choice == "always"
    return not to_file and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def use_pager(*, wanted: bool, to_file: bool) -> bool:
    """Return whether a person can turn pages here."""
    return wanted and not to_file and sys.stdout.isatty() and sys.stdin.isatty()


def deliver(chunks: Iterable[bytes], stream: BinaryIO, *, pager: bool, colour: bool, live: bool) -> None:
    """Write chunks, each of whole lines, as they come; ``live`` sends each of them on at once."""
    if pager:
        # An error ends the chunks; it must not end the pager, in which people still read what came before.
        failures: list[Exception] = []
        if colour:
            os.environ.setdefault("LESS", "-R")  # else less shows colours as the bytes that they are
        click.echo_via_pager(_texts(chunks, failures), color=colour)
        if failures:
            raise failures[0]
        return
    for chunk in chunks:
        stream.write(chunk)
        if live:
            stream.flush()
    stream.flush()


def _texts(chunks: Iterable[bytes], failures: list[Exception]) -> Iterator[str]:
    try:
        for chunk in chunks:
            yield chunk.decode("utf-8", "replace")
    except Exception as error:  # noqa: BLE001 - raised again by who called
        failures.append(error)


def shown(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Make text fit for a terminal: what would act there, or is no UTF-8, becomes an escape."""
    decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
    for chunk in chunks:
        yield printable(decode(chunk), lines=True).encode()
    yield printable(decode(b"", final=True)).encode()


_STYLES: Final[tuple[tuple[re.Pattern[bytes], dict[str, Any]], ...]] = (
    (re.compile(rb"# at \d"), {"fg": "yellow"}),
    (re.compile(rb"#\d{6} "), {"fg": "cyan"}),
    (re.compile(rb"### "), {"fg": "green"}),
    (re.compile(rb"#"), {"dim": True}),
    (re.compile(rb"(/\*!|SET |DELIMITER |BINLOG |[A-Za-z0-9+/]{20,}={0,2}$|'/\*!)"), {"dim": True}),
    (re.compile(rb"error: "), {"fg": "red"}),
)
"""Of the text form, by how a line begins; SQL stays as it is."""


def coloured(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Colour the lines of the text form; of a line that is cut into chunks, the first part alone."""
    begins = True
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        yield b"\n".join((_coloured_line(first) if begins else first, *map(_coloured_line, others)))
        begins = chunk.endswith(b"\n") if chunk else begins


def _coloured_line(line: bytes) -> bytes:
    for pattern, style in _STYLES:
        if line and pattern.match(line):
            before, after = click.style("\0", **style).encode().split(b"\0")
            return before + line + after
    return line


T = TypeVar("T")
_UPDATE_EVERY: Final = 1024


class Measured(Protocol):
    """What knows how much of it has been read, in bytes; a total of 0 is not known."""

    @property
    def total_bytes(self) -> int:
        """All there is to read."""

    @property
    def done_bytes(self) -> int:
        """What has been read."""


def progress(items: Iterable[T], measured: Measured) -> Iterator[T]:
    """Show on a terminal's standard error how far the reading of ``items`` is."""
    if not sys.stderr.isatty():
        yield from items
        return
    length = max(1, measured.total_bytes)
    with click.progressbar(length=length, file=sys.stderr, show_pos=True, show_percent=True) as bar:
        for number, item in enumerate(items):
            if number % _UPDATE_EVERY == 0:
                bar.length = max(1, measured.total_bytes)
                bar.update(measured.done_bytes - bar.pos)
            yield item
        bar.update(max(0, (bar.length or 1) - bar.pos))
