"""Row topics as JSON: from a real server, through the services, to an ordinary consumer."""

import base64
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from millrace.local import Kafka, MySQL, Registry
from millrace.runtime.exit_codes import ExitCode
from tests.service_process import wait_for

from .rows_world import SERVICES, RowsWorld
from .test_continuity import command, deleted
from .test_snapshot import state, take, wait_until_merged

TABLES = """
CREATE TABLE everything (id INT PRIMARY KEY, tiny TINYINT UNSIGNED, big BIGINT, f FLOAT, r DOUBLE,
  price DECIMAL(12,2), bits BIT(9), y YEAR, d DATE, t TIME(3), at DATETIME(6), ts TIMESTAMP(3),
  `größe` TEXT, blank VARBINARY(20), kind ENUM('a','b,c'), flags SET('x','y'), j JSON, p POINT);
CREATE TABLE pair (day DATE, n INT, v TEXT, PRIMARY KEY (day, n));
CREATE TABLE keyless (v VARCHAR(20));
CREATE TABLE scale (id INT PRIMARY KEY, d DECIMAL(8,2), b BIGINT UNSIGNED);
CREATE TABLE done (id INT PRIMARY KEY);
SET SESSION sql_mode = '';
INSERT INTO everything (id, `größe`) VALUES (100, 'before the services');
INSERT INTO keyless VALUES ('before')
"""
WORK = r"""
SET SESSION sql_mode = '', time_zone = '+00:00';
INSERT INTO everything VALUES (1, 255, -9223372036854775808, 1.1, 0.1, -1234567890.12, b'101', 2024,
  '2024-02-29', '-838:59:59.000', '2024-02-29 10:11:12.123456', '2024-02-29 10:11:12.123',
  'ü\0"\\ 日本', x'00ff', 'b,c', 'x,y',
  '{"a": [1, 2.5]}', ST_GeomFromText('POINT(1 2)'));
INSERT INTO everything (id) VALUES (2), (3), (4);
INSERT INTO everything (id, d, at) VALUES (5, '0000-00-00', '0000-00-00 00:00:00');
UPDATE everything SET f = 3.4e38, `größe` = REPEAT('x', 3000) WHERE id = 2;
UPDATE everything SET id = 30 WHERE id = 3;
DELETE FROM everything WHERE id = 4;
INSERT INTO pair VALUES ('2024-02-29', 1, 'x'), ('0000-00-00', 2, 'y');
UPDATE pair SET v = 'z' WHERE n = 2;
ALTER TABLE pair ADD COLUMN more INT DEFAULT 7;
INSERT INTO pair VALUES ('2024-03-01', 3, 'w', 8);
INSERT INTO keyless VALUES ('after');
INSERT INTO scale VALUES (1, 1.25, 18446744073709551615);
ALTER TABLE scale MODIFY d DECIMAL(8,3);
INSERT INTO scale VALUES (2, -1.375, 0);
INSERT INTO done VALUES (1)
"""


@pytest.fixture
def world(
    kafka: Kafka, registry: Registry, mysql: MySQL, source_name: str, tmp_path: Path
) -> Iterator[RowsWorld]:
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as made:
        made.environment["MILLRACE_ROWS_TOMBSTONES"] = "always"
        made.environment["MILLRACE_ROWS_ON_INCOMPATIBLE"] = "new-topic"
        yield made


def execute(world: RowsWorld, statements: str) -> None:
    world.server.execute(f"USE {world.database}", *filter(None, map(str.strip, statements.split(";\n"))))


def consumed(world: RowsWorld, table: str) -> list[Message]:
    """What any consumer gets of a table's topic."""
    topic = world.topics.table(world.database, table)
    consumer = Consumer(
        {
            "bootstrap.servers": world.settings.bootstrap_servers,
            "group.id": "anyone",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        consumer.assign([TopicPartition(topic, 0, low)])
        found: list[Message] = []
        while True:
            message = consumer.poll(5)
            if message is None:
                return found
            assert message.error() is None
            found.append(message)
            if (message.offset() or 0) + 2 >= high:  # after the last one is the end of its transaction
                return found
    finally:
        consumer.close()


def payload(name: str, data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if name == "json-schema":
        check(found["schema"], found["payload"])
        found = found["payload"]
    result: dict[str, Any] = found.get("data", found)
    return result


def check(schema: dict[str, Any], value: Any) -> None:
    """A value is what its schema says."""
    if value is None:
        assert schema["optional"], schema
        return
    kinds: dict[str, type | tuple[type, ...]] = {
        **dict.fromkeys(("int8", "int16", "int32", "int64"), int),
        **dict.fromkeys(("string", "bytes"), str),
        **dict.fromkeys(("float", "double"), (float, int)),
        "boolean": bool,
        "struct": dict,
        "array": list,
    }
    assert isinstance(value, kinds[schema["type"]]), (schema, value)
    if schema["type"] == "struct":
        assert [field["field"] for field in schema["fields"]] == list(value)
        for field in schema["fields"]:
            check(field, value[field["field"]])
    for item in value if schema["type"] == "array" else ():
        check(schema["items"], item)


def folded(world: RowsWorld, name: str, table: str) -> dict[bytes, dict[str, Any]]:
    """The last row of each key."""
    rows: dict[bytes, dict[str, Any]] = {}
    for message in consumed(world, table):
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        if value is None:
            assert key not in rows, "a tombstone comes after its deletion"
            continue
        assert isinstance(value, bytes)
        envelope = payload(name, value)
        if envelope["after"] is None:
            del rows[key]
        else:
            rows[key] = envelope["after"]
    return rows


@pytest.mark.parametrize(
    ("name", "services"), [("json", SERVICES), ("json-schema", ("run",)), ("cloudevents", ("run",))]
)
def test_a_consumer_reads_json(world: RowsWorld, name: str, services: tuple[str, ...]) -> None:
    world.environment["MILLRACE_ROWS_FORMAT"] = name
    execute(world, TABLES)
    with world.services(*services):
        world.wait_for_start()
        execute(world, WORK)
        wait_for(lambda: bool(world.messages(world.topics.table(world.database, "done"))))
        take(world, code=ExitCode.DATA, MILLRACE_SNAPSHOT_EXCLUDE=f"{world.database}.scale")
        wait_until_merged(world)
        # That of a table without a key is read: it has rows that the snapshot would count twice.
        (refused,) = [table for table in state(world).tables if table.table == "keyless"]
        assert "twice" in refused.note
    rows = list(folded(world, name, "everything").values())
    columns = ("id", "tiny", "big", "r", "y", "d", "größe", "kind", "flags", "j")
    wanted = world.server.query(
        "SELECT id, tiny, big, r, y, IF(d > 0, DATEDIFF(d, '1970-01-01'), NULL), `größe`, kind, flags, "
        f"CAST(j AS CHAR) FROM {world.database}.everything"
    )
    assert Counter(tuple(row[column] for column in columns) for row in rows) == Counter(wanted)
    by_id = {row["id"]: row for row in rows}
    one = by_id[1]
    assert (one["f"], by_id[2]["f"]) == (1.1, 3.4e38)
    assert Decimal(int.from_bytes(base64.b64decode(one["price"]), "big", signed=True)) / 100 == Decimal(
        "-1234567890.12"
    )
    assert base64.b64decode(one["bits"]) == b"\x00\x05"
    assert base64.b64decode(one["blank"]) == b"\x00\xff"
    assert one["t"] == -(838 * 3600 + 59 * 60 + 59) * 1_000_000
    assert one["at"] == one["ts"] + 456 == 1_709_201_472_123_456
    assert base64.b64decode(one["p"]["wkb"])[5:13] == b"\x00\x00\x00\x00\x00\x00\xf0\x3f"
    assert by_id[100]["größe"] == "before the services"
    # A key is the same in all records of its row, whatever its columns hold.
    pairs = folded(world, name, "pair")
    keys = [payload(name, key) for key in pairs]
    days = [
        key["day"]["int"] or key["day"]["string"] if name == "json-schema" else key["day"] for key in keys
    ]
    assert sorted(zip([key["n"] for key in keys], days, strict=True)) == [
        (1, 19_782),
        (2, "0000-00-00"),
        (3, 19_783),
    ]
    assert {row["n"]: row["v"] for row in pairs.values()} == {1: "x", 2: "z", 3: "w"}
    values = [message.value() for message in consumed(world, "everything")]
    envelopes = [payload(name, value) for value in values if isinstance(value, bytes)]
    notes = [note for envelope in envelopes for note in envelope["unrepresentable"] or ()]
    assert ("d", "0000-00-00") in {(note["column"], note["text"]) for note in notes}
    said = command(world, "verify", "rows", "--idle", code=1)
    verdicts = dict(re.findall(rf"{world.database}\.(\w+): .* rows: (.*)", said))
    assert verdicts == {
        **dict.fromkeys(("everything", "pair", "scale", "done"), "equal"),
        "keyless": "DIFFERENT, 1 rows missing, 0 too many",
    }


@pytest.mark.slow
def test_state_is_rebuilt_of_json(world: RowsWorld) -> None:
    """And rows of both forms lie in a topic after a change of the format."""
    world.environment["MILLRACE_ROWS_FORMAT"] = "json-schema"
    topic = world.topics.table(world.database, "t")
    execute(world, "CREATE TABLE t (id INT PRIMARY KEY)")
    with world.services(*SERVICES):
        world.wait_for_start()
        execute(world, "INSERT INTO t VALUES (1);\nINSERT INTO t VALUES (2)")
        wait_for(lambda: len(world.messages(topic)) == 2)
    deleted(world, world.topics.state)
    for service in SERVICES:
        command(world, "state", "rebuild", service, "--yes")
    execute(world, "INSERT INTO t VALUES (3)")
    with world.services(*SERVICES):
        wait_for(lambda: len(world.messages(topic)) == 3)
        time.sleep(2)
    rows = [payload("json-schema", message.value() or b"")["after"]["id"] for message in consumed(world, "t")]
    assert rows == [1, 2, 3]
    world.environment["MILLRACE_ROWS_FORMAT"] = "avro"
    # What the topic ends with is in the form that was left.
    deleted(world, world.topics.state)
    for service in SERVICES:
        command(world, "state", "rebuild", service, "--yes")
    execute(world, "INSERT INTO t VALUES (4)")
    with world.services(*SERVICES):
        wait_for(lambda: len(world.messages(topic)) == 4)
    first = [(message.value() or b"")[:1] for message in consumed(world, "t")]
    assert first == [b"{", b"{", b"{", b"\x00"]
