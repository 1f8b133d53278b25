"""``python -m tests.upgrade.make``: record what the services of this tree write, as the next version.

Reader, decoder and row mapper carry two log files and a snapshot, and commit after each record. A cut between
two commits is a state in the middle of what they do: of a transaction, a payload, a large event's chunks, a
dead letter's, a snapshot. The file has the topics, the registry's schemas and the fingerprints of the
checked-in ones.

To record an earlier version, run this file there: copy ``tests/upgrade`` into a checkout of it.
"""

import base64
import gzip
import inspect
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from fastavro.schema import fingerprint, to_parsing_canonical_form

from millrace.avro.schemas import load_schema, schema_names
from millrace.avro.snapshots import SnapshotChunk, SnapshotRange, SnapshotState, SnapshotTable
from millrace.binlog.columns import Column, ColumnType
from millrace.binlog.columns.column import BlobMetadata, NoMetadata
from millrace.binlog.events import TableMapEvent, UserVarEvent, WriteRowsEvent, XidEvent
from millrace.binlog.row_images import RowImages
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.snapshot.images import SelectedTable
from tests import fake_broker
from tests.stages import Registry
from tests.unit import test_faults as faults
from tests.unit.binlog_command.made_logs import ALL, MadeLog

VERSIONS: Final = Path(__file__).parent / "versions"
LIMIT: Final = {"max.message.bytes": "1048588"}


def large(log: MadeLog, number: int) -> None:
    """A rows event of several records."""
    log.query("BEGIN")
    columns = Column(0, ColumnType.LONG, NoMetadata()), Column(1, ColumnType.BLOB, BlobMetadata(4))
    types = bytes(each.type for each in columns)
    values = RowImages(columns, None, ALL).encode(
        [(None, (number + row, b"x" * 300_000)) for row in range(5)]
    )
    log.add(
        TableMapEvent(8, 1, "shop", "large", types, b"\x04", b"\x02"),
        WriteRowsEvent(8, 1, b"", 2, b"", ALL, values),
        XidEvent(number),
    )


def large_dead_letter(log: MadeLog, number: int) -> None:
    """An event of several records that cannot be decoded."""
    log.query("BEGIN")
    log.add(UserVarEvent("v" * 1_500_000, 1, None, None, None, None))
    position, data = log.events.pop()
    log.position = position
    damaged = data[:19] + b"\xff" * (len(data) - 19 - faults.CHECKSUM_LENGTH)
    log.append(damaged + faults.compute_checksum(damaged))
    log.add(XidEvent(number))


FILES: Final[list[list[Any]]] = [
    [faults.insert, faults.payload, large, faults.prepare],
    [faults.ddl, faults.decide, faults.undecodable, large_dead_letter, faults.update, faults.unreadable],
]


def chunks() -> list[SnapshotChunk]:
    """Rows of a table, read while the first log file was written."""
    columns = (
        ColumnDefinition(0, "id", "int(11)", nullable=False, key_position=0),
        ColumnDefinition(1, "v", "varchar(20)", charset="utf8mb4"),
    )
    table = SelectedTable(TableDefinition("shop", "read", columns, "InnoDB"), mariadb=False)
    place = (0, "bin.000001", 400, "bin.000001", 500, 1234)
    return [
        SnapshotChunk(
            99,
            *("shop", "read", True, part, part == 2),
            *place,
            table.server_version,
            table.table_map.encode_fields(8),
            2,
            b"".join(table.image((b"%d" % (2 * part + row), b"v")) for row in range(2)),
        )
        for part in range(3)
    ]


def fingerprints() -> dict[str, str]:
    """Return what identifies each checked-in schema."""
    return {
        name: fingerprint(to_parsing_canonical_form(load_schema(name)), "CRC-64-AVRO")
        for name in schema_names()
    }


def recorded(folder: Path) -> Any:
    """Run the services; return their world."""
    made: Any = faults.World
    needs_registry = "registry" in inspect.signature(made).parameters
    world = made(folder, Registry()) if needs_registry else made(folder)
    world.commit_every = 1
    for number, actions in enumerate(FILES, 1):
        faults.write_log(folder, number, actions)
    world.broker.create(faults.TOPICS.snapshot, {"cleanup.policy": "delete"})
    world.broker.committed.add(0)
    for chunk in chunks():
        world.broker.topics[faults.TOPICS.snapshot].append(key=chunk.key, value=chunk.to_bytes())
    with patch.dict(fake_broker.BIG, LIMIT):
        world.drain()
    return world


def snapshot_state() -> bytes:
    """Return the state of a snapshot that was begun."""
    ranges = [SnapshotRange(["5"], "9"), SnapshotRange([], "5", done=True)]
    return SnapshotState(99, [SnapshotTable("shop", "read", rows=6, ranges=ranges)]).to_bytes()


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        world = recorded(Path(folder))
        logs = {path.name: _text(path.read_bytes()) for path in sorted(Path(folder).iterdir())}
    broker = world.broker
    topics = {
        name: {
            "id": topic.id,
            "config": topic.config,
            "entries": [
                [
                    *(entry.offset, _text(entry.key), _text(entry.value), entry.timestamp_ms),
                    entry.headers and [[key, _text(value)] for key, value in entry.headers],
                    *(entry.transaction, entry.control),
                ]
                for entry in topic.entries
            ],
        }
        for name, topic in broker.topics.items()
    }
    content = {
        "schemas": fingerprints(),
        "registry": world.registry.schemas,
        "subjects": {name: sorted(ids) for name, ids in world.registry.subjects.items()},
        "logs": logs,
        "topics": topics,
        "committed": sorted(broker.committed),
        "epochs": broker.epochs,
        "snapshot": _text(snapshot_state()),
    }
    number = max((int(path.name[:4]) for path in VERSIONS.iterdir()), default=0) + 1
    path = VERSIONS / f"{number:04}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    sys.stdout.write(f"{path}: {path.stat().st_size:,} bytes\n")


def _text(data: bytes | str | None) -> str | None:
    if data is None:
        return None
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


if __name__ == "__main__":
    main()
