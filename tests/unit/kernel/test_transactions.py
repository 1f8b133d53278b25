"""The kernel for transactions gives what the reference gives: output by partition, counters, state."""

import random
import re
from pathlib import Path
from typing import Any

import pytest

from millrace import kernel
from millrace.avro.catalog import CatalogEntry
from millrace.avro.transactions import Use
from millrace.binlog.events import (
    AnnotateRowsEvent,
    DeleteRowsEvent,
    QueryEvent,
    RowsQueryLogEvent,
    StatusVariables,
    UpdateRowsEvent,
    WriteRowsEvent,
)
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import ABANDONED, GAP
from millrace.rowmapper.partition import murmur2
from tests.unit.kernel.both_stages import (
    PARTS,
    PartitionedWorld,
    run,
    run_with_crashes,
    without_keys_of_rows,
)
from tests.unit.rowmapper.harness import EventsTopic, World
from tests.unit.rowmapper.logs import Log

pytestmark = pytest.mark.skipif(
    not all(map(kernel.built, kernel.MODULES)), reason="the kernel is not built (make kernel)"
)

LOGS = Path(__file__).parents[1] / "binlog_command" / "logs"
KERNEL = Path(kernel.__file__).with_name("transactions.pyx")
COMMIT_TIMES = (None, 0, 1_700_000_000_123_456, 1_600_000_000_654_321, 1 << 53)
TABLES = ("a", "b", "größe", "c.d")


def test_the_kernel_has_the_same_numbers() -> None:
    found = re.findall(r"^    USE_(\w+) = (\d+)", KERNEL.read_text("utf-8"), re.MULTILINE)
    assert {name: int(number) for name, number in found} == {use.name: use for use in Use}


def rows(chance: random.Random, count: int) -> list[tuple[int, str | None]]:
    texts = (None, "", "text", "é" * 70, "\U0001f600")
    return [(chance.randrange(50), chance.choice(texts)) for _ in range(count)]


def change(log: Log, chance: random.Random, table: str) -> None:
    """Write a statement on a table, perhaps in several events."""
    if chance.random() < 0.2:
        log.event(RowsQueryLogEvent(3, b"UPDATE a"))
    if chance.random() < 0.1:
        log.event(AnnotateRowsEvent(b"UPDATE a"))
    log.table_map(table)
    if chance.random() < 0.1:
        log.table_map(chance.choice(TABLES))
    events = chance.choice((1, 1, 1, 2, 4))
    for number in range(events):
        operation = chance.choice((WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent))
        some = rows(chance, chance.choice((0, 1, 1, 1, 2, 20)))
        if operation is UpdateRowsEvent:
            images: list[Any] = [
                (row, row if chance.random() < 0.7 else other)
                for row, other in zip(some, some[1:] + some[:1], strict=True)
            ]
        else:
            images = [(None, row) if operation is WriteRowsEvent else (row, None) for row in some]
        log.rows(table, operation, *images, end=number == events - 1)


def ordinary(log: Log, chance: random.Random) -> None:
    if chance.random() < 0.9:
        immediate = chance.choice(COMMIT_TIMES)
        log.gtid(immediate, None if immediate is None else chance.choice(COMMIT_TIMES))
    log.event(QueryEvent(chance.randrange(3), 0, 0, StatusVariables(), "shop", b"BEGIN"))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 5))):
        change(log, chance, chance.choice(TABLES))
    if chance.random() < 0.8:
        log.commit()
    else:
        log.query("COMMIT")


def odd(log: Log, chance: random.Random) -> None:
    """Write something that the kernel is to leave to the reference."""
    kind = chance.randrange(11)
    if kind == 0:
        log.gtid().query(
            chance.choice(("CREATE TABLE x (y INT)", "ALTER TABLE shop.a ADD z INT", "DROP TABLE x"))
        )
    elif kind == 1:
        log.begin().insert("a", *rows(chance, 2)).query("SAVEPOINT s").insert("b", *rows(chance, 1))
        log.query("ROLLBACK TO s").insert("a", *rows(chance, 1)).commit()
    elif kind == 2:
        log.begin().insert("a", *rows(chance, 1)).query("ROLLBACK")
    elif kind == 3:
        name = f"x{chance.randrange(100)}"
        log.xa_start(name).insert("a", *rows(chance, 2)).xa_prepare(name)
        if chance.random() < 0.5:
            ordinary(log, chance)
        log.xa(chance.choice(("COMMIT", "ROLLBACK")), name)
    elif kind == 4:
        log.begin().insert("a", *rows(chance, 1))
        log.topic.add_marker(chance.choice((ABANDONED, GAP)))
    elif kind == 5:
        log.topic.put(b"1:0:bin.000001:4:0", b"\xff\xffnothing")
    elif kind == 6:
        log.begin().insert("without a key", (None, "no key")).commit()  # which quarantines it
    elif kind == 7:
        log.begin().query("INSERT INTO a VALUES (1)").commit()
    elif kind == 8:
        log.begin().rows(
            "a", WriteRowsEvent, (None, (1, "x"))
        ).commit() if "a" in log.ids else log.begin().commit()
    elif kind == 9:
        log.begin().insert("large", *((number, "y" * 90) for number in range(40))).commit()
    else:
        log.epoch += 1


def events(chance: random.Random, count: int, *, named: bool = True, limit: int = 2000) -> EventsTopic:
    log = Log(EventsTopic(limit), named=named)
    for _ in range(count):
        (odd if chance.random() < 0.15 else ordinary)(log, chance)
    return log.topic


def catalog(place: int) -> list[CatalogEntry]:
    """What the reader read at a place: each time another name of a column."""
    columns = (
        ColumnDefinition(0, "id", "int", nullable=False, key_position=0),
        ColumnDefinition(1, f"note_{place}", "varchar(100)", charset="utf8mb4", collation="utf8mb4_bin"),
    )
    return [
        CatalogEntry(0, "bin.000001", place, TableDefinition("shop", table, columns, engine="InnoDB"), 1)
        for table in ("a", "b")
    ]


@pytest.mark.parametrize("seed", range(12))
def test_any_log(seed: int) -> None:
    chance = random.Random(seed)
    topic = events(chance, 150)
    reference = run(World(topic), compiled=False)
    for cut in (None, chance, chance):
        compiled = run(World(topic), compiled=True, chance=cut)
        assert compiled.groups == reference.groups
        assert compiled.state == reference.state
        assert compiled.compiled > 20


@pytest.mark.parametrize("part", PARTS[1:])
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_transactions_that_are_not_taken_whole(seed: int, part: str) -> None:
    chance = random.Random(500 + seed)
    topic = events(chance, 150)
    for world in (World, PartitionedWorld):
        reference = run(world(topic), compiled=False)
        compiled = run(world(topic), compiled=True, chance=chance, part=part)
        assert compiled.groups == reference.groups
        assert compiled.state == reference.state
        assert compiled.compiled == 0
        assert compiled.parts > 50


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("seed", range(6))
def test_blocks_have_the_same_records(seed: int, part: str) -> None:
    """Rows of many transactions are in one block, and those of a transaction that is left in none."""
    chance = random.Random(600 + seed)
    topic = events(chance, 150)
    reference = run(World(topic), compiled=False, blocks=True)
    compiled = run(World(topic), compiled=True, chance=chance, part=part, blocks=True)
    assert compiled.groups == without_keys_of_rows(reference.groups)
    assert compiled.state == reference.state
    assert compiled.compiled > 20 or compiled.parts > 50


@pytest.mark.parametrize("seed", range(12))
def test_commits_and_crashes_between_any_two_yields(seed: int) -> None:
    """The kernel continues where the reference was left, and the reference where the kernel was."""
    chance = random.Random(100 + seed)
    topic = events(chance, 60)
    reference = run(World(topic), compiled=False)
    committed = run_with_crashes(World(topic), chance)
    assert committed.groups == reference.groups
    assert committed.certain == reference.certain


@pytest.mark.parametrize("seed", range(6))
def test_names_from_the_catalogue(seed: int) -> None:
    """Definitions that were read before, between and after the events; and those that come while it runs."""
    chance = random.Random(200 + seed)
    topic = events(chance, 80, named=False)
    entries = [entry for place in chance.sample((4, 3000, 9000, 10**6), 3) for entry in catalog(place)]
    for known in ([], entries, entries[:2]):
        reference = run(World(topic, catalog=known), compiled=False)
        for part in PARTS:
            compiled = run(World(topic, catalog=known), compiled=True, chance=chance, part=part)
            assert compiled.groups == reference.groups
            assert compiled.state == reference.state
            assert compiled.compiled or compiled.parts


@pytest.mark.parametrize("seed", range(6))
def test_partitions(seed: int) -> None:
    chance = random.Random(300 + seed)
    topic = events(chance, 60)
    reference = run(PartitionedWorld(topic), compiled=False)
    compiled = run(PartitionedWorld(topic), compiled=True, chance=chance)
    assert len({partition for _, partition in reference.groups}) == PartitionedWorld.partitions
    assert compiled.groups == reference.groups
    assert compiled.state == reference.state


def test_murmur2() -> None:
    from millrace.kernel.transactions import murmur2 as compiled  # noqa: PLC0415 - where it is built

    chance = random.Random(1)
    for size in range(70):
        data = chance.randbytes(size)
        assert compiled(data) == murmur2(data)


@pytest.mark.parametrize("seed", range(25))
def test_damaged_events(seed: int) -> None:
    chance = random.Random(400 + seed)
    topic = events(chance, 40)
    for _ in range(30):
        at = chance.randrange(len(topic.records))
        value = bytearray(topic.records[at].value)
        if value:
            for _ in range(chance.choice((1, 1, 2))):
                place = chance.randrange(min(len(value), chance.choice((30, 120, 10**6))))
                value[place] = chance.choice(
                    (0, 2, 0x7F, 0x80, 0xFF, value[place] ^ 2, chance.randrange(256))
                )
            del value[chance.randint(1, 10 * len(value)) :]
            topic.records[at] = topic.records[at]._replace(value=bytes(value))
    reference = run(World(topic), compiled=False)
    for part in PARTS:
        compiled = run(World(topic), compiled=True, chance=chance, part=part)
        assert compiled.groups == reference.groups
        assert compiled.state == reference.state
    reference = run(World(topic), compiled=False, blocks=True)
    compiled = run(World(topic), compiled=True, chance=chance, blocks=True)
    assert compiled.groups == without_keys_of_rows(reference.groups)
    assert compiled.state == reference.state


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.000001")), ids=lambda path: path.name)
def test_logs_of_real_servers(path: Path) -> None:
    topic = EventsTopic().add_file(path)
    reference = run(World(topic), compiled=False)
    for seed, part in enumerate((*PARTS, *PARTS)):
        compiled = run(World(topic), compiled=True, chance=random.Random(seed), part=part)
        assert compiled.groups == reference.groups
        assert compiled.state == reference.state


def test_statements_beside_the_rows_are_the_references() -> None:
    topic = events(random.Random(5), 20)
    with_query = run(World(topic, include_query=True), compiled=True)
    assert with_query.groups == run(World(topic, include_query=True), compiled=False).groups
    assert with_query.compiled == 0
