"""Logs of a replica's own, and logs beyond 4 GiB: what the reader makes of their places."""

import struct
import time
import zlib
from pathlib import Path

import pymysql
import pytest

from millrace.avro.service_state import ReaderState
from millrace.contract import SOURCE_CHANGED
from millrace.kafka.producer import TransactionalProducer
from millrace.local import Kafka, MariaDB, MySQL
from tests.service_process import server_environment, wait_for

from .reader_world import ReaderWorld, assert_nothing_twice, files_of
from .replication import replicate
from .test_source import WITHOUT_GTIDS, executed, markers, run_to_the_end, write

Server = MySQL | MariaDB
MARIADB_GTID = 162


def test_relay_logs_are_followed(kafka: Kafka, source_name: str) -> None:
    """By their index, while the replica replicates."""
    options: dict[str, str | int | bool | None] = {"relay-log": "relay-bin", "relay-log-purge": 0}
    with MariaDB(server_id=21) as primary, MariaDB(server_id=22, options=options) as replica:
        index = replica.data_folder / "relay-bin.index"
        replicate(replica, primary)
        write(primary, "relayed")
        world = ReaderWorld(kafka, source_name, MILLRACE_FILES=str(index), MILLRACE_FOLLOW="true")
        with world.reader() as process:
            wait_for(lambda: _count(replica, "relayed") == 5, process, "the replica")
            replica.execute("FLUSH RELAY LOGS")
            write(primary, "relayed", 20)
            wait_for(lambda: _count(replica, "relayed") == 25, process, "the replica")
            # Once it has stopped, no relay log grows.
            replica.execute("FLUSH RELAY LOGS", "STOP SLAVE")
            names = [Path(line).name for line in index.read_text().split()]
            sizes = {name: (replica.data_folder / name).stat().st_size for name in names}
            wait_for(lambda: _at(world) == (names[-1], sizes[names[-1]]), process, "the end of the last")
        files = files_of(world.raw())
        # What a file says of itself while it is open differs by the IN_USE flag.
        for name in names[:-1]:
            found, there = files[0, name], (replica.data_folder / name).read_bytes()
            assert found[:21] + found[22:] == there[:21] + there[22:]
        assert len(names) > 2
        assert_nothing_twice(world.raw())
        assert_left_out_for_good(ReaderWorld.of(kafka, f"{source_name}-2", primary), primary, replica)


def assert_left_out_for_good(world: ReaderWorld, primary: MariaDB, replica: MariaDB) -> None:
    """What was read of one server does not come again from the next, though that is left while it is idle."""
    run_to_the_end(world, primary)
    read = executed(primary)
    next_server = server_environment(replica)
    with world.reader(**next_server) as process:
        wait_for(lambda: markers(world) == [SOURCE_CHANGED], process, "the next server")
    state = world.state()
    assert state is not None
    assert (state.epoch, state.gtid_set, state.left_out) == (1, read, read)
    write(replica, "relayed", 3)
    run_to_the_end(world, replica, **next_server)
    gtids = [
        (record.key.server_id, struct.unpack_from("<Q", record.value, 19)[0])
        for record in world.raw()
        if record.in_file and record.value[4] == MARIADB_GTID
    ]
    assert len(gtids) == len(set(gtids)) > 3
    assert_nothing_twice(world.raw())


def _count(server: Server, database: str) -> int:
    try:
        return int(server.query(f"SELECT COUNT(*) FROM {database}.t")[0][0])
    except pymysql.err.Error:
        return 0  # it has not come yet


def _at(world: ReaderWorld) -> tuple[str, int] | None:
    state = world.state()
    return None if state is None else (state.log_file, state.position)


def _event(type_code: int, start: int, body: bytes, *, size: int | None = None) -> bytes:
    """An event as a server logs it; with ``size``, the head of one that is so large."""
    length = size or 19 + len(body) + 4
    end = (start + length) & 0xFFFFFFFF
    data = struct.pack("<IBIIIH", int(time.time()), type_code, 21, length, end, 0) + body
    return data if size else data + struct.pack("<I", zlib.crc32(data))


def _log_beyond_4_gib(path: Path) -> tuple[int, list[tuple[int, bytes]]]:
    """Make a log file with a hole in it; return an event's start below 2^32, and the events from there on."""
    head = path.read_bytes()
    first = int.from_bytes(head[17:21], "little")
    second = int.from_bytes(head[first + 13 : first + 17], "little")
    boundary = (1 << 32) - 150
    with path.open("wb") as file:
        file.write(head[:second])
        at, count = second, 5
        for number in range(count):
            size = (boundary - at) // (count - number)
            file.seek(at)
            file.write(_event(28, at, b"", size=size))
            at += size
        file.seek(at)
        events: list[tuple[int, bytes]] = []
        for number in range(40):
            # BEGIN and XID by turns.
            body = struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0BEGIN" if number % 2 == 0 else bytes(8)
            events.append((at, _event(2 if number % 2 == 0 else 16, at, body)))
            file.write(events[-1][1])
            at += len(events[-1][1])
    return boundary, events


@pytest.mark.slow
def test_going_on_beyond_4_gib_without_gtids(kafka: Kafka, source_name: str) -> None:
    """The server is asked for the last boundary that 32 bits can hold; what was read already is left out."""
    with MySQL(server_id=21, options=WITHOUT_GTIDS) as server:
        server.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        server.stop()
        path = server.binlog_files[1]
        boundary, events = _log_beyond_4_gib(path)
        server.start()
        position = next(start for start, _ in events if start > 1 << 32)
        world = ReaderWorld.of(kafka, source_name, server)
        run_to_the_end(world, server, MILLRACE_START="latest")
        before = len(world.raw())
        with TransactionalProducer(world.settings, source_name, "reader") as producer:
            producer.open()
            producer.commit(ReaderState(0, path.name, position, boundary=boundary).to_bytes())
        run_to_the_end(world, server)
        found = [
            (record.key.position, record.value)
            for record in world.raw()[before:]
            if record.key.log_file == path.name and record.in_file
        ]
        assert found == [event for event in events if event[0] >= position]
        assert events[0][0] == boundary
