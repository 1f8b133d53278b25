"""Others read row topics: the recipes of docs/consumers.md, on a table whose schema changes."""

import datetime as dt
import json
import re
import subprocess
import sys
import uuid
from decimal import Decimal

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from millrace.avro.records import deserialize
from millrace.local.artifacts import fetch
from millrace.local.java import find_java
from tests.service_process import wait_for
from tests.shared import PROJECT

from .rows_world import SERVICES, RowsWorld
from .test_rowmapper import differences
from .test_snapshot_images import TYPES_SESSION, every_type

CHANGES = (
    "CREATE TABLE a (id INT, day DATE, price DECIMAL(8,2), kind ENUM('x','y'), PRIMARY KEY (id, day))",
    "INSERT INTO a VALUES (1, '2024-02-29', 12.30, 'y')",
    "ALTER TABLE a ADD COLUMN note VARCHAR(20) DEFAULT 'none', ADD COLUMN at DATETIME(6)",
    "INSERT INTO a VALUES (2, '2024-02-29', 12.30, 'x', 'n', '2024-02-29 10:11:12.123456')",
    "ALTER TABLE a MODIFY price DECIMAL(12,2), MODIFY note TEXT, MODIFY kind ENUM('x','y','z')",
    "INSERT INTO a VALUES (3, '2024-02-29', 1234567890.12, 'z', 'n', NULL)",
    "ALTER TABLE a CHANGE note remark TEXT, DROP COLUMN at",
    "UPDATE a SET remark = 'r' WHERE id = 3",
    "CREATE TABLE done (id INT PRIMARY KEY)",
    "INSERT INTO done VALUES (1)",
)
"""Compatible with each other: columns added, widened, renamed and dropped."""


@pytest.fixture
def world(kafka, registry, mysql, source_name, tmp_path):
    made = RowsWorld(kafka, registry, mysql, source_name, tmp_path)
    with made.with_database():
        yield made


def change(world, *statements):
    world.server.execute(f"USE {world.database}", *statements)


@pytest.fixture(scope="module", params=["mysql", pytest.param("mariadb", marks=pytest.mark.slow)])
def changed(kafka, registry, request, tmp_path_factory):
    """A world whose table ``a`` has records of several schemas, the others every type."""
    server = request.getfixturevalue(request.param)
    source = f"t-consumers-{uuid.uuid4().hex[:6]}"
    made = RowsWorld(kafka, registry, server, source, tmp_path_factory.mktemp(source))
    ((version,),) = server.query("SELECT VERSION()")
    with made.with_database():
        with made.service("run"):
            made.wait_for_start()
            change(made, TYPES_SESSION, *every_type(version))
            change(made, *CHANGES)
            made.wait_for_row("done")
        yield made


def deserialized(registry, messages, part, *, newest=False):
    """Read keys or values with Confluent's deserializer, each by its own schema or all by the newest."""
    topic, context = messages[0].topic(), SerializationContext(messages[0].topic(), part)
    with SchemaRegistryClient({"url": registry.url}) as client:
        schema = client.get_latest_version(f"{topic}-{part}").schema if newest else None
        read = AvroDeserializer(client, schema, conf={"subject.name.strategy": topic_subject_name_strategy})
        parts = [one.key() if part == MessageField.KEY else one.value() for one in messages]
        return [read(each, context) for each in parts]


def test_confluents_deserializer_reads_every_version(changed, registry):
    world = changed
    messages = world.messages(world.topics.table(world.database, "a"))
    keys = deserialized(registry, messages, MessageField.KEY)
    rows = deserialized(registry, messages, MessageField.VALUE)
    assert len({one.value()[:5] for one in messages}) == 4
    day = dt.date(2024, 2, 29)
    assert [key["id"] for key in keys] == [1, 2, 3, 3]
    assert {key["day"][1] if isinstance(key["day"], tuple) else key["day"] for key in keys} == {day}
    last = {"id": 3, "day": day, "price": Decimal("1234567890.12"), "kind": "z"}
    at = dt.datetime(2024, 2, 29, 10, 11, 12, 123456)  # noqa: DTZ001 - a DATETIME has no zone
    assert [row["after"] for row in rows] == [
        {"id": 1, "day": day, "price": Decimal("12.30"), "kind": "y"},
        {"id": 2, "day": day, "price": Decimal("12.30"), "kind": "x", "note": "n", "at": at},
        {**last, "note": "n", "at": None},
        {**last, "remark": "r"},
    ]


def test_confluents_deserializer_reads_old_records_by_the_newest_schema(changed, registry):
    """A renamed column has its former name as an alias, so that its old values are found."""
    world = changed
    messages = world.messages(world.topics.table(world.database, "a"))
    rows = deserialized(registry, messages, MessageField.VALUE, newest=True)
    assert [row["after"]["remark"] for row in rows] == [None, "n", "n", "r"]


def plain(value):
    """Return a value as every reader gives it: of a union the value, of times those of UTC."""
    match value:
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list():
            return [plain(each) for each in value]
        case (str(), each):
            return plain(each)
        case bytearray():
            return bytes(value)
        case dt.datetime(tzinfo=dt.tzinfo()):
            return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value


def test_confluents_deserializer_reads_every_type(changed, registry):
    """What is read here is compared with the tables, too."""
    assert differences(changed) == {}
    for topic in changed.table_topics():
        messages = changed.messages(topic)
        for part, data in ((MessageField.KEY, Message.key), (MessageField.VALUE, Message.value)):
            expected = [plain(deserialize(changed.registry, data(message))) for message in messages]
            assert list(map(plain, deserialized(registry, messages, part))) == expected, topic


@pytest.fixture
def java():
    found = find_java(17, 21)
    if "jdk.compiler" not in subprocess.check_output([found.program, "--list-modules"], text=True):
        pytest.skip("this Java has no compiler, which the recipe needs")

    def run(folder, name, replaced, *arguments):
        """Run a recipe, the class of a name, with other values in it; give the lines that it prints."""
        text = (PROJECT / "docs" / "consumers.md").read_text()
        recipes = re.findall(r"```java\n(.*?)```", text, re.DOTALL)
        (text,) = [recipe for recipe in recipes if f"class {name} " in recipe]
        for placeholder, value in replaced.items():
            assert text.count(placeholder) == 1
            text = text.replace(placeholder, value)
        program = folder / f"{name}.java"
        program.write_text(text)
        command = [found.program, "-cp", f"{fetch('connect-avro')}/*", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_java_reads_every_version(changed, registry, java):
    world = changed
    replaced = {
        "kafka:9092": world.settings.bootstrap_servers,
        "http://registry:8080": registry.url.removesuffix("/apis/ccompat/v7"),
        "shop.shop.orders": world.topics.table(world.database, "a"),
    }
    lines = java(world.folder, "Rows", replaced)
    assert [line.partition("} ")[2][0] for line in lines] == ["c", "c", "c", "u"], lines
    assert '"kind": "y"' in lines[0]
    assert '"remark": "r"' in lines[3]


def test_java_reads_old_records_by_the_newest_schema(changed, registry, java):
    world = changed
    topic = world.topics.table(world.database, "a")
    main = """
    public static void main(String[] values) throws Exception {
        for (var value : values) {
            System.out.println(read("TOPIC", java.util.HexFormat.of().parseHex(value)).get("after"));
        }
    }
}""".replace("TOPIC", topic)
    values = [message.value().hex() for message in world.messages(topic)]
    lines = java(world.folder, "Newest", {"http://registry:8081": registry.url, "\n}": main}, *values)
    assert [json.loads(line)["remark"] for line in lines] == [None, "n", "n", "r"]


def test_a_column_of_the_key_that_is_renamed(world, registry):
    change(world, "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE done (id INT PRIMARY KEY)")
    with world.service("run"):
        world.wait_for_start()
        change(
            world,
            "INSERT INTO a VALUES (1)",
            "ALTER TABLE a CHANGE id number BIGINT NOT NULL",
            "INSERT INTO a VALUES (2)",
            "INSERT INTO done VALUES (1)",
        )
        world.wait_for_row("done")
    messages = world.messages(world.topics.table(world.database, "a"))
    keys = deserialized(registry, messages, MessageField.KEY, newest=True)
    assert keys == [{"number": 1}, {"number": 2}]


ALTERED = [
    ("price DECIMAL(8,2)", "MODIFY price DECIMAL(12,4)", "price changed from DECIMAL(8,2) to DECIMAL(12,4)"),
    ("day DATE", "MODIFY day DATETIME", "day changed from DATE to DATETIME"),
    ("v VARCHAR(20)", "MODIFY v BLOB", "v changed from VARCHAR(20) to BLOB"),
    ("v BIGINT UNSIGNED", "MODIFY v INT", "v changed from BIGINT UNSIGNED to INT"),
    ("v TINYINT", "MODIFY v TINYTEXT", "v changed from TINYINT to TINYTEXT"),
    ("v ENUM('a','B')", "MODIFY v BIT(4)", "v changed from ENUM('a','B') to BIT(4)"),
    ("v TIMESTAMP(6)", "CHANGE v w DATETIME(6)", None),  # another field
    (
        "v INT NOT NULL DEFAULT 1",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)",
        "was (id INT) and is (id INT, v INT) now",
    ),
    ("v INT", "MODIFY id CHAR(9)", "was (id INT) and is (id CHAR(9)) now"),
]
"""Columns, changes of their table, and what the reason says of them."""


def test_an_incompatible_schema_is_told_in_types_of_sql(world):
    with world.service("run"):
        world.wait_for_start()
        for number, (column, alteration, _) in enumerate(ALTERED):
            change(
                world,
                f"CREATE TABLE a{number} (id INT PRIMARY KEY, {column})",
                f"INSERT INTO a{number} (id) VALUES (1)",
                f"ALTER TABLE a{number} {alteration}",
                f"INSERT INTO a{number} (id) VALUES (2)",
            )
        change(world, "CREATE TABLE done (id INT PRIMARY KEY)", "INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
    letters = [deserialize(world.registry, m.value()) for m in world.messages(world.topics.deadletter)]
    reasons = {letter["table"].rpartition(".")[2]: letter["error"] for letter in letters}
    for number, (*_, said) in enumerate(ALTERED):
        if said is None:
            assert f"a{number}" not in reasons
        else:
            assert said in reasons[f"a{number}"]


def test_an_incompatible_schema_gets_another_topic(world):
    """The table waits, its subject's level stays, and what waited goes to the topic that a person names."""
    name = f"{world.database}.a"
    change(world, "CREATE TABLE a (id INT PRIMARY KEY, v INT)", "CREATE TABLE done (id INT PRIMARY KEY)")
    with world.service("run"):
        world.wait_for_start()
        change(
            world,
            "INSERT INTO a VALUES (1, 1)",
            "ALTER TABLE a MODIFY v VARCHAR(10)",
            "INSERT INTO a VALUES (2, 'x')",
            "INSERT INTO done VALUES (1)",
        )
        world.wait_for_row("done")
    assert [row["after"]["id"] for row in world.rows("a")] == [1]
    (dead_letter,) = [deserialize(world.registry, m.value()) for m in world.messages(world.topics.deadletter)]
    assert dead_letter["table"] == name
    assert "-value: column v changed from INT to VARCHAR(10)" in dead_letter["error"]
    assert "Give the table another topic with MILLRACE_TOPICS_NAMES" in dead_letter["error"]
    world.environment["MILLRACE_TOPICS_NAMES"] = f"{name}={name}_v2"
    command = [sys.executable, "-m", "millrace.cli", "deadletter", "redrive"]
    with world.service("rowmapper", command=command) as process:
        assert process.wait(240) == 0
    assert [row["after"] for row in world.rows("a_v2")] == [{"id": 2, "v": "x"}]


def test_an_incompatible_schema_goes_on_in_the_next_version_of_the_topic(world):
    """No row waits; the versions, one after the other, are the table."""
    world.environment["MILLRACE_ROWS_ON_INCOMPATIBLE"] = "new-topic"
    world.environment["MILLRACE_TOPICS_NAMES"] = f"{world.database[:-2]}%.%=named.x%_%"
    change(world, "CREATE TABLE a (id INT PRIMARY KEY, v INT)", "CREATE TABLE done (id INT PRIMARY KEY)")
    topic = f"{world.source}.named.x{world.database[-2:]}_a"
    done = topic.removesuffix("a") + "done"

    def wait_for_done(count):
        wait_for(lambda: len(world.messages(done)) >= count, None, world.logs)

    with world.services(*SERVICES):
        world.wait_for_start()
        change(world, "INSERT INTO a VALUES (1, 1), (2, 2), (3, 3)", "ALTER TABLE a MODIFY v VARCHAR(10)")
        change(world, "UPDATE a SET v = 'x' WHERE id = 2", "INSERT INTO done VALUES (1)")
        wait_for_done(1)
    with world.service("run"):
        change(
            world,
            "DELETE FROM a WHERE id = 3",
            "INSERT INTO a VALUES (4, 'y')",
            "INSERT INTO done VALUES (2)",
        )
        wait_for_done(2)
    rows = [deserialize(world.registry, message.value()) for message in world.messages(f"{topic}-v2")]
    assert [(row["op"], (row["after"] or row["before"])["id"]) for row in rows] == [
        ("u", 2),
        ("d", 3),
        ("c", 4),
    ]
    assert len(world.messages(topic)) == 3
    assert not world.messages(world.topics.deadletter)
    said = world.command("verify", "rows", "--idle", f"{world.database}.a").stdout
    assert f"{world.database}.a: 6 records, 3 rows: equal" in said
