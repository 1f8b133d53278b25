"""Logs put together event by event, for what real logs at hand do not hold."""

import base64
import io
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from millrace.binlog.columns import Column, ColumnType
from millrace.binlog.columns.column import LengthMetadata, NoMetadata
from millrace.binlog.declaration import Event
from millrace.binlog.event_codec import BinlogEvent, decode_event, seal
from millrace.binlog.events import (
    FormatDescriptionEvent,
    QueryEvent,
    StatusVariables,
    TableMapEvent,
)
from millrace.binlog.events.control import has_checksum_algorithm
from millrace.binlog.file import iter_events
from millrace.binlog.header import EventHeader
from millrace.binlog.row_images import Row, RowImages
from millrace.binlog.state import StreamState
from millrace.binlog_command.records import LogDecoder, LogRecord, RawEvent
from millrace.binlog_command.text import TextOutput
from millrace.cli import main

LOGS = Path(__file__).parent / "logs"
COLUMNS = (
    Column(0, ColumnType.LONG, NoMetadata()),
    Column(1, ColumnType.VARCHAR, LengthMetadata(80), charset="utf8mb4"),
)
TABLE_MAP = TableMapEvent(
    7, 1, "shop", "t", bytes((ColumnType.LONG, ColumnType.VARCHAR)), (80).to_bytes(2, "little"), b"\x02"
)
ALL = b"\x03"
START = 1_700_000_000
"""2023-11-14 22:13:20 UTC."""


def _description(name: str, server_version: str, created: int) -> FormatDescriptionEvent:
    """Take the format description of a real log, with another server version."""
    with (LOGS / name).open("rb") as stream:
        _, data = next(iter_events(stream))
    event = decode_event(data, StreamState()).event
    assert isinstance(event, FormatDescriptionEvent)
    return FormatDescriptionEvent(
        event.binlog_version,
        server_version,
        created,
        event.header_length,
        event.post_header_lengths,
        event.checksum_algorithm if has_checksum_algorithm(server_version) else None,
    )


@dataclass
class MadeLog:
    """Writes events into a log of a server of some version; each is a second later than the one before."""

    server_version: str = "8.0.30"
    created: int = 0
    name: str = "bin.000001"
    begun: int = START
    events: list[tuple[int, bytes]] = field(default_factory=list)
    position: int = 4
    state: StreamState = field(default_factory=StreamState)

    def __post_init__(self) -> None:
        source = "mariadb.000001" if "MariaDB" in self.server_version else "mysql.000001"
        self.add(_description(source, self.server_version, self.created))

    def add(self, *events: Event, flags: int = 0, server_id: int = 1) -> "MadeLog":
        """Append events."""
        for event in events:
            header = EventHeader(self.begun + len(self.events), event.event_type, server_id, 0, 0, flags)
            size = len(seal(BinlogEvent(header, event), self.state))
            header = EventHeader(
                header.timestamp, event.event_type, server_id, size, self.position + size, flags
            )
            self.append(seal(BinlogEvent(header, event), self.state))
        return self

    def append(self, data: bytes) -> None:
        """Append an event's bytes as they are."""
        self.events.append((self.position, data))
        self.position += len(data)

    def query(self, text: str, *, database: str = "shop", flags: int = 0, thread_id: int = 9) -> "MadeLog":
        """Append a statement."""
        return self.add(QueryEvent(thread_id, 0, 0, StatusVariables(), database, text.encode()), flags=flags)

    def raw(self) -> list[RawEvent]:
        """Return the events as an input does."""
        return [RawEvent(self.name, self.name, position, data) for position, data in self.events]

    def records(self) -> list[LogRecord]:
        """Decode the log."""
        return list(LogDecoder().records([self.raw()]))


def rows(*values: Row) -> bytes:
    """Write rows of the table of ``TABLE_MAP``, complete images."""
    before = ALL if values[0][0] is not None else None
    after = ALL if values[0][1] is not None else None
    return RowImages(COLUMNS, before, after).encode(values)


def text_of(*logs: MadeLog, options: Any = None, make: Any = TextOutput) -> str:
    """Write logs as text, or by another output."""
    stream = io.BytesIO()
    output = make(stream, options)
    decoder = LogDecoder()
    for log in logs:
        for record in decoder.records([log.raw()]):
            output.write(record)
    output.close()
    return stream.getvalue().decode("utf-8", "surrogateescape")


def body(text: str) -> list[str]:
    """Return the lines after the first log's format description, without the tail."""
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if line.startswith(("# at ", "'/*!*/;"))]
    start = starts[1] + 1 if lines[starts[1]].startswith("'") else starts[1]
    return lines[start : lines.index("DELIMITER ;")]


def binlog_statements(text: str) -> list[list[bytes]]:
    """Return the events of each BINLOG statement."""
    found = []
    for block in re.findall(r"BINLOG '\n(.*?)\n'", text, re.DOTALL):
        data = b"".join(map(base64.b64decode, block.split("\n")))
        events = []
        while data:
            size = int.from_bytes(data[9:13], "little")
            events.append(data[:size])
            data = data[size:]
        found.append(events)
    return found


def listed(*arguments: str) -> list[dict[str, Any]]:
    """Return what ``millrace binlog --json`` says of files."""
    outcome = CliRunner().invoke(main, ["binlog", "--json", *arguments], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.stderr
    return [json.loads(line) for line in outcome.stdout.splitlines()]
