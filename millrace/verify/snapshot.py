"""A moment of a server that is being written to: its tables as they were, and where its log stood.

MariaDB tells the place of a consistent snapshot itself (``binlog_snapshot_file``, ``_position``). MySQL has
to be held for a moment: FLUSH TABLES WITH READ LOCK waits for the commits under way and lets none begin,
until the snapshot is taken and the place is read. Tables of engines without snapshots are read as they are.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millrace.avro.registry import SchemaStore
from millrace.avro.service_state import DecoderState, ReaderState, RowMapperState
from millrace.contract import SourcePosition, Topics
from millrace.kafka.read import read_topic
from millrace.kafka.state import held_range, read_state
from millrace.mysql.connection import Flavour, MysqlConnection, Row
from millrace.mysql.names import log_file_name
from millrace.mysql.status import log_status
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings
from millrace.verify.tables import Records

__all__ = ["later_transactions", "take_snapshot", "wait_until_mapped"]

_POLL_S: Final = 0.3
_FIRST_STRIDE: Final = 500
_NUMBER: Final = re.compile(r"\d+$")


def take_snapshot(connection: MysqlConnection, *, idle: bool) -> tuple[str, int]:
    """Open a transaction that sees the tables as they are now; return where the log stands.

    With ``idle`` nothing is locked: the caller knows that nobody writes.
    """
    doing = "take a snapshot"
    connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", doing=doing)
    begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
    if connection.flavour is Flavour.MARIADB:
        connection.query(begin, doing=doing)
        status = {
            row.text("Variable_name").lower(): row
            for row in connection.query("SHOW STATUS LIKE 'binlog_snapshot_%'", doing=doing)
        }
        file, position = (status.get(f"binlog_snapshot_{name}", Row()) for name in ("file", "position"))
        if file and position and file["Value"]:
            return log_file_name(file.text("Value"), file.where), position.number("Value")
        raise UserError(f"{connection.address}: the binary log is off", ExitCode.SOURCE)
    if not idle:
        connection.query(
            "FLUSH TABLES WITH READ LOCK",
            doing="hold writes for the moment of a snapshot (--idle does without it, where nobody writes)",
        )
    try:
        connection.query(begin, doing=doing)
        found = log_status(connection)
    finally:
        if not idle:
            connection.query("UNLOCK TABLES", doing=doing)
    return found.log_file, found.position


@dataclass(frozen=True, slots=True)
class _Services:
    """Where the services of a source stand."""

    kafka: KafkaSettings
    topics: Topics

    def state(self, service: str) -> bytes | None:
        source = self.topics.origin if service == "reader" else self.topics.source
        stored = read_state(self.kafka, source, service)
        return None if stored is None else stored.value

    def reader(self) -> SourcePosition:
        value = self.state("reader")
        if value is None:
            raise UserError(
                f"the reader of {self.topics.origin} has no state: has it ever run?", ExitCode.SETTINGS
            )
        state = ReaderState.from_bytes(value)
        return SourcePosition(state.epoch, state.log_file, state.position)

    def input_offset(self, service: str, kind: type[DecoderState] | type[RowMapperState]) -> int:
        """Give up to where a service has read its topic: 0 before its first state."""
        value = self.state(service)
        return 0 if value is None else kind.from_bytes(value).input_offset


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
    services = _Services(kafka, topics)
    deadline = time.monotonic() + timeout_s

    def wait(name: str, arrived: Callable[[], bool]) -> None:
        told = False
        while not arrived():
            if not told:
                say(f"waiting for the {name} to come to {file}:{position}")
                told = True
            if time.monotonic() > deadline:
                raise UserError(
                    f"the {name} of {topics.origin if name == 'reader' else topics.source} has not come to "
                    f"{file}:{position} within {timeout_s:g} s: is it running, and is this its server?",
                    ExitCode.DATA,
                )
            time.sleep(_POLL_S)

    wait(
        "reader",
        lambda: services.reader().order() >= SourcePosition(services.reader().epoch, file, position).order(),
    )
    epoch = services.reader().epoch
    last_raw = _last_offset(kafka, topics.raw)
    wait("decoder", lambda: services.input_offset("decoder", DecoderState) > last_raw)
    last_event = _last_offset(kafka, topics.events)
    wait("row mapper", lambda: services.input_offset("rowmapper", RowMapperState) > last_event)
    return SourcePosition(epoch, file, position)


def _last_offset(kafka: KafkaSettings, topic: str) -> int:
    """Give the offset of the last committed record, -1 where there is none."""
    held = held_range(kafka, topic)
    stride, start = _FIRST_STRIDE, held.stop
    while start > held.start:
        start = max(held.start, start - stride)
        found = -1
        for message in read_topic(kafka, topic, start=start):
            found = message.offset() or 0
        if found >= 0:
            return found
        stride *= 8
    return -1


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
