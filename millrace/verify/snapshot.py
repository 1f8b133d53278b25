"""A moment of a server that is being written to: its tables as they were, and where its log stood.

MariaDB tells the place of a consistent snapshot itself (``binlog_snapshot_file``, ``_position``). MySQL has
to be held for a moment: FLUSH TABLES WITH READ LOCK waits for the commits under way and lets none begin,
until the snapshot is taken and the place is read. Tables of engines without snapshots are read as they are.
"""

import re
import time
from collections.abc import Callable
from typing import Final

from millrace.avro.registry import SchemaStore
from millrace.avro.service_state import DecoderState, ReaderState, RowMapperState
from millrace.contract import SourcePosition, Topics
from millrace.kafka.read import read_topic
from millrace.kafka.state import decoded_state, last_record
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.status import consistent_snapshot, log_status
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings
from millrace.verify.tables import Records

_POLL_S: Final = 0.3
_NUMBER: Final = re.compile(r"\d+$")


def take_snapshot(connection: MysqlConnection, *, idle: bool) -> tuple[str, int]:
    """Open a transaction that sees the tables as they are now; return where the log stands.

    With ``idle`` nothing is locked: the caller knows that nobody writes.
    """
    doing = "take a snapshot"
    connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", doing=doing)
    if connection.flavour is Flavour.MARIADB:
        return consistent_snapshot(connection)
    if not idle:
        connection.query(
            "FLUSH TABLES WITH READ LOCK",
            doing="hold writes for the moment of a snapshot (--idle does without it, where nobody writes)",
        )
    try:
        connection.query("START TRANSACTION WITH CONSISTENT SNAPSHOT", doing=doing)
        found = log_status(connection)
    finally:
        if not idle:
            connection.query("UNLOCK TABLES", doing=doing)
    return found.log_file, found.position


def wait_until_mapped(
    kafka: KafkaSettings,
    topics: Topics,
    file: str,
    position: int,
    *,
    timeout_s: float,
    say: Callable[[str], None],
) -> SourcePosition:
    """Wait until all that the log holds before a place is in the row topics; return the place with its epoch.

    Raises :class:`UserError` with the service that does not get there within ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s

    def wait(name: str, arrived: Callable[[], bool]) -> None:
        told = False
        while not arrived():
            if not told:
                say(f"waiting for the {name} to come to {file}:{position}")
                told = True
            if time.monotonic() > deadline:
                raise UserError(
                    f"timed out after {timeout_s:g} s waiting for the {name} of "
                    f"{topics.origin if name == 'reader' else topics.source} to reach {file}:{position}: "
                    "is it running, and is this its server?",
                    ExitCode.DATA,
                )
            time.sleep(_POLL_S)

    def read() -> bool:
        reader = reader_place(kafka, topics)
        return reader.order() >= SourcePosition(reader.epoch, file, position).order()

    wait("reader", read)
    epoch = reader_place(kafka, topics).epoch
    last_raw = _last_offset(kafka, topics.raw)
    wait(
        "decoder",
        lambda: _input_offset(decoded_state(kafka, topics.source, "decoder", DecoderState)) > last_raw,
    )
    last_event = _last_offset(kafka, topics.events)
    wait(
        "row mapper",
        lambda: _input_offset(decoded_state(kafka, topics.source, "rowmapper", RowMapperState)) > last_event,
    )
    return SourcePosition(epoch, file, position)


def reader_place(kafka: KafkaSettings, topics: Topics) -> SourcePosition:
    """Return where the reader stands; raises :class:`UserError` where it has never run."""
    state = decoded_state(kafka, topics.origin, "reader", ReaderState)
    if state is None:
        raise UserError(f"the reader of {topics.origin} has no state: has it ever run?", ExitCode.SETTINGS)
    return state.place


def _input_offset(state: DecoderState | RowMapperState | None) -> int:
    """Return up to where a service has read its topic: 0 before its first state."""
    return 0 if state is None else state.input_offset


def _last_offset(kafka: KafkaSettings, topic: str) -> int:
    """Return the offset of the last committed record, -1 where there is none."""
    last = last_record(kafka, topic)
    return -1 if last is None else last.offset


def later_transactions(
    kafka: KafkaSettings, registry: SchemaStore, source: str, start: int, place: SourcePosition
) -> set[str]:
    """Name the transactions that were committed at ``place`` or after it.

    ``start`` is the end of the transactions topic before the place was read: those before it are earlier.
    """
    records = Records(registry)
    found = set()
    for message in read_topic(kafka, Topics(source).transactions, start=start):
        record = records.value_of(message)
        if (
            record is not None
            and SourcePosition(record["epoch"], record["file"], record["pos"]).order() >= place.order()
        ):
            found.add(str(record["id"]))
    return found
