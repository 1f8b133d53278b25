"""Peak memory of the services on the largest inputs: ``python -m benchmarks.memory`` (or ``make memory``).

===========  =================================================================================================
case         what is carried to row topics
===========  =================================================================================================
``rows``     1,000,000 rows that one statement inserts, in one transaction
``event``    one row with a LONGBLOB of 100 MB, which is one event
``payload``  a transaction of rows that do not compress, in one TRANSACTION_PAYLOAD of 500 MB (zstd)
``small``    a transaction of 2 GB of small events, a row in each; only on request, since it takes long
===========  =================================================================================================

The first two are logged by a real server. No server that is fetched here compresses transactions, so the
others are written by the codec, as MySQL 8.0.20 and later would write them, and read from a file.
"""

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import zstandard
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.pipeline import PipelineResult, measure_pipeline
from millrace.binlog.columns import Column, ColumnType
from millrace.binlog.columns.column import LengthMetadata, NoMetadata
from millrace.binlog.columns.metadata import DefaultCharset, OptionalMetadata, encode_optional_metadata
from millrace.binlog.declaration import Event
from millrace.binlog.event_codec import BinlogEvent, seal
from millrace.binlog.events import (
    EVENTS,
    FormatDescriptionEvent,
    GtidLogEvent,
    QueryEvent,
    TableMapEvent,
    TransactionPayloadEvent,
    WriteRowsEvent,
    XidEvent,
)
from millrace.binlog.file import MAGIC
from millrace.binlog.header import EventHeader
from millrace.binlog.row_images import RowImages
from millrace.binlog.state import StreamState
from millrace.local import LocalStack
from millrace.local.database import DatabaseServer

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

_CONSOLE = Console(width=110)
_MB = 1_000_000
_LIMIT_MB = 400
_SERVICES = ("reader", "decoder", "rowmapper")
_TIMESTAMP = 1_700_000_000


@click.command()
@click.option("--cases", default="rows,event,payload", show_default=True, help="Which cases.")
@click.option("--scale", default=1.0, show_default=True, help="Size of the cases; 1 is the full size.")
def main(cases: str, scale: float) -> None:
    """Carry what is largest through all services and print the peak of their memory; fail above 400 MB."""
    wanted = cases.split(",")
    if unknown := set(wanted) - {"rows", "event", "payload", "small"}:
        raise click.BadParameter(
            f"{', '.join(sorted(unknown))}: the cases are rows, event, payload and small"
        )
    table = Table("case", title="Peak resident memory (VmHWM), MB", title_justify="left")
    for column in (*_SERVICES, "rows"):
        table.add_column(column, justify="right")
    worst = 0.0
    with (
        tempfile.TemporaryDirectory(prefix="millrace-memory-") as folder,
        _CONSOLE.status("starting Kafka, the registry and MySQL") as status,
        LocalStack(say=_CONSOLE.print) as stack,
    ):
        for case in wanted:
            status.update(f"writing {case}")
            settings, rows = _prepared(case, stack.database, Path(folder), scale)
            status.update(f"carrying {case}")
            result = measure_pipeline(stack, f"memory-{case}", settings, rows)
            _CONSOLE.print(f"{case}: {', '.join(_figures(result))} MB")
            table.add_row(case, *_figures(result), f"{result.rows:,}")
            worst = max(worst, *(result.costs[service].peak_mb for service in _SERVICES))
        version = stack.database.version
    _CONSOLE.print(f"{machine()}; MySQL {version}; scale {scale}")
    _CONSOLE.print(table)
    if worst >= _LIMIT_MB:
        _CONSOLE.print(f"{worst:,.0f} MB is above the limit of {_LIMIT_MB} MB")
        sys.exit(1)


def _figures(result: PipelineResult) -> Iterator[str]:
    return (f"{result.costs[service].peak_mb:,.0f}" for service in _SERVICES)


def _prepared(case: str, database: DatabaseServer, folder: Path, scale: float) -> tuple[dict[str, str], int]:
    """Write the input of a case; give the reader's settings and the number of rows."""
    if case in {"payload", "small"}:
        path = folder / f"{case}.000001"
        if case == "payload":
            rows = _write_payload(path, round(500 * _MB * scale))
        else:
            rows = _write_small(path, round(2000 * _MB * scale))
        # To the end of the file and on, for a reader that has read all ends.
        return {"MILLRACE_FILES": str(path), "MILLRACE_FOLLOW": "true"}, rows
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS memory")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW MASTER STATUS")
        (log_file, *_) = cursor.fetchone()  # type: ignore[misc] # a server with its log on always answers
        if case == "rows":
            rows = _insert_rows(cursor, round(1_000_000 * scale))
        else:
            rows = 1
            # Without transactions, since InnoDB wants a redo log of ten times such a value.
            cursor.execute("CREATE TABLE memory.large (id INT PRIMARY KEY, data LONGBLOB) ENGINE=MyISAM")
            data = random.Random(42).randbytes(round(100 * _MB * scale))
            cursor.execute("INSERT INTO memory.large VALUES (1, %s)", [data])
        cursor.execute("FLUSH BINARY LOGS")
    return {"MILLRACE_START": f"{log_file}:4"}, rows


def _insert_rows(cursor: "Cursor[Any]", count: int) -> int:
    """Insert rows by one statement; give how many there are in the log, those of a helping table too."""
    cursor.execute("CREATE TABLE memory.digits (d INT PRIMARY KEY)")
    digits = cursor.execute("INSERT INTO memory.digits VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)")
    cursor.execute(
        "CREATE TABLE memory.many "
        "(id INT PRIMARY KEY, name VARCHAR(64), amount DECIMAL(12,2), note VARCHAR(200))"
    )
    number = " + ".join(f"{10**place} * {name}.d" for place, name in enumerate("abcdef"))
    tables = ", ".join(f"memory.digits {name}" for name in "abcdef")
    return digits + cursor.execute(
        f"INSERT INTO memory.many SELECT n, MD5(n), n / 100, REPEAT(MD5(n + 1), 3) FROM "
        f"(SELECT {number} AS n FROM {tables}) AS numbers WHERE n < {count}"
    )


def _write_payload(path: Path, size: int) -> int:
    """Write a log file with a payload of about ``size`` bytes; give the number of its rows."""
    state = StreamState()
    content = bytearray()
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    rows = unpacked = 0
    head = _head(state, size)
    for data, count in _payload_events(state.for_payload(), size):
        content += compressor.compress(data)
        rows += count
        unpacked += len(data)
    content += compressor.flush()
    with path.open("wb") as file:
        file.write(MAGIC + head)
        file.write(_sealed(TransactionPayloadEvent(0, unpacked, bytes(content)), state))
    return rows


def _head(state: StreamState, size: int) -> bytes:
    """Return the format description of a log, and the GTID of a transaction of ``size`` bytes."""
    lengths = bytes(EVENTS[code].post_header_lengths[-1] if code in EVENTS else 0 for code in range(1, 43))
    gtid = GtidLogEvent(0, bytes(range(16)), 1, 2, 0, 1, _TIMESTAMP * 1_000_000, None, size, 80030)
    return _sealed(FormatDescriptionEvent(4, "8.0.30", _TIMESTAMP, 19, lengths, 1), state) + _sealed(
        gtid, state
    )


def _write_small(path: Path, size: int) -> int:
    """Write a log file of one transaction, with a row in each event; give the number of its rows."""
    state = StreamState()
    head = _head(state, size) + _sealed(QueryEvent(1, 0, 0, None, "memory", b"BEGIN"), state)
    columns = (Column(0, ColumnType.LONG, NoMetadata(), name="id", key_position=0),)
    metadata = OptionalMetadata(signedness=b"\0", column_name=(b"id",), simple_primary_key=(0,))
    table_map = TableMapEvent(
        7, 1, "memory", "small", bytes((ColumnType.LONG,)), b"", b"\0", encode_optional_metadata(metadata)
    )
    images = RowImages(columns, None, b"\1")
    block = b"".join(
        _sealed(table_map, state)
        + _sealed(WriteRowsEvent(7, 1, b"", 1, b"", b"\1", images.encode([(None, (number,))])), state)
        for number in range(10_000)
    )
    blocks = max(1, size // len(block))
    with path.open("wb") as file:
        file.write(MAGIC + head)
        for _ in range(blocks):
            file.write(block)
        file.write(_sealed(XidEvent(1), state))
    return 10_000 * blocks


def _payload_events(state: StreamState, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield events of about ``size`` bytes together, each with the number of its rows."""
    columns = (
        Column(0, ColumnType.LONG, NoMetadata(), name="id", key_position=0),
        Column(1, ColumnType.VARCHAR, LengthMetadata(2000), name="data", charset="binary"),
    )
    metadata = OptionalMetadata(
        signedness=b"\0",
        default_charset=DefaultCharset(63),
        column_name=(b"id", b"data"),
        simple_primary_key=(0,),
    )
    table_map = TableMapEvent(
        7,
        1,
        "memory",
        "packed",
        bytes((ColumnType.LONG, ColumnType.VARCHAR)),
        (2000).to_bytes(2, "little"),
        b"\2",
        encode_optional_metadata(metadata),
    )
    yield _sealed(QueryEvent(1, 0, 0, None, "memory", b"BEGIN"), state), 0
    yield _sealed(table_map, state), 0
    pick = random.Random(42)
    images = RowImages(columns, None, b"\3")
    count = max(1, size // 8000)
    for number in range(count):
        rows = [(None, (4 * number + row, pick.randbytes(1980))) for row in range(4)]
        yield (
            _sealed(
                WriteRowsEvent(7, int(number + 1 == count), b"", 2, b"", b"\3", images.encode(rows)), state
            ),
            4,
        )
    yield _sealed(XidEvent(1), state), 0


def _sealed(event: Event, state: StreamState) -> bytes:
    return seal(BinlogEvent(EventHeader(_TIMESTAMP, int(event.event_type), 1, 0), event), state)


if __name__ == "__main__":
    main()
