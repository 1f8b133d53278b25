"""Avro libraries of other languages read what Millrace writes: ``make test-languages``.

Records of all public topics, of two servers and with several settings, go with their schemas to a small
program for each library, which prints every value that it has read, in one form. The lines must be those of
the reference: fastavro without logical types, whose values are compared with the tables. A library that
cannot be had, or whose language is not installed, fails.

The form: ``null``, ``true``, ``1``, ``f`` and the bits of a double, ``'text'`` with all but ASCII letters and
digits as ``%hh``, ``x`` and bytes in hexadecimal, ``d`` and the unscaled value of a decimal, ``[item,item]``,
and ``['name'=value,'name'=value]`` for a record. Times are numbers, as in the record.
"""

import datetime as dt
import io
import json
import re
import shutil
import struct
import subprocess
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import avro.io
import avro.schema
import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from millrace.avro.events import EventSerializer
from millrace.avro.registry import SchemaRegistry, prefix_size, split_wire_format
from millrace.binlog.event_codec import decode_event
from millrace.binlog.transaction import TransactionStep
from millrace.kafka.client import connect
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.local.artifacts import cache_folder, fetch, made_folder, made_once
from millrace.local.java import find_java
from millrace.runtime.settings import RegistrySettings
from tests.debian import unpacked
from tests.live.rows_world import RowsWorld
from tests.live.test_consumers import CHANGES, change
from tests.live.test_rowmapper import differences
from tests.live.test_snapshot_images import TYPES_SESSION, every_type
from tests.service_process import wait_for
from tests.shared import PROJECT
from tests.unit.binlog.cases import CASES, state_of

FOLDER = Path(__file__).parent
AVSC = "avsc@5.7.9"
LIBAVRO = ("libavro-dev", "libavro23", "libjansson4", "libsnappy1v5")

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "debezium": {
        "MILLRACE_ROWS_TEMPORAL": "debezium",
        "MILLRACE_ROWS_BIT": "debezium",
        "MILLRACE_ROWS_BIGINT_UNSIGNED": "long",
        "MILLRACE_ROWS_WIDE_DECIMAL": "decimal",
        "MILLRACE_ROWS_COLUMN_ATTRIBUTES": "debezium",
        "MILLRACE_ROWS_PROPAGATE_SOURCE_TYPE": "true",
        "MILLRACE_ROWS_TRUNCATE": "true",
    },
    "connect": {
        "MILLRACE_ROWS_TEMPORAL": "connect",
        "MILLRACE_ROWS_DECIMAL": "double",
        "MILLRACE_ROWS_BIGINT_UNSIGNED": "string",
        "MILLRACE_ROWS_BINARY": "hex",
        "MILLRACE_ROWS_INCLUDE_QUERY": "true",
        "MILLRACE_ROWS_COLUMN_ATTRIBUTES": "parameters",
    },
}

MORE_CHANGES = (
    "CREATE TABLE defaults (id INT PRIMARY KEY, a DECIMAL(8,2) NOT NULL DEFAULT 1.50, b CHAR(9) DEFAULT 'ü')",
    "ALTER TABLE defaults ADD c BIGINT NOT NULL DEFAULT -5, ADD d DATETIME(6) DEFAULT '2024-02-29 01:02:03'",
    "INSERT INTO defaults (id) VALUES (1)",
    "UPDATE defaults SET id = 2",
    "DELETE FROM defaults",
    "TRUNCATE defaults",
    "CREATE TABLE quarantined (id INT PRIMARY KEY, v INT)",
    "INSERT INTO quarantined VALUES (1, 1)",
    "ALTER TABLE quarantined MODIFY v VARCHAR(10)",
    "INSERT INTO quarantined VALUES (2, 'x')",
    "CREATE TABLE names (id INT PRIMARY KEY, x INT, x__ INT, a_b INT, aB INT, class INT, _id INT)",
    "INSERT INTO names VALUES (1, 2, 3, 4, 5, 6, 7)",
)
"""Defaults in the schemas, updates of keys, deletes, TRUNCATE, a dead letter, names of which Java has two."""


@dataclass
class Records:
    """A schema, and the keys or values that were written by it: those of a topic."""

    topic: str
    part: MessageField
    schema_id: int
    schema: Any
    values: list[bytes]
    newest: Any = None
    """The schema by which they are read, where that is another."""


@pytest.fixture(scope="module")
def records(
    kafka: Kafka, registry: Registry, mysql: MySQL, mariadb: MariaDB, tmp_path_factory: pytest.TempPathFactory
) -> list[Records]:
    found: dict[Any, Records] = {}
    for server in (mysql, mariadb):
        with ExitStack() as stack:
            worlds = []
            for name, settings in SETTINGS.items():
                source = f"t-languages-{name}-{uuid.uuid4().hex[:6]}"
                world = RowsWorld(kafka, registry, server, source, tmp_path_factory.mktemp(source))
                world.environment |= settings
                worlds.append(world)
            stack.enter_context(worlds[0].with_database())
            for world in worlds:
                world.database = worlds[0].database
                stack.callback(world.close)
                stack.enter_context(world.service("run"))
                world.wait_for_start()
            ((version,),) = server.query("SELECT VERSION()")
            change(worlds[0], TYPES_SESSION, *every_type(version), *MORE_CHANGES, *CHANGES)
            for world in worlds:
                world.wait_for_row("done")
                wait_for(partial(world.messages, world.topics.deadletter), None, world.logs)
                collect(world, found)
            assert set(differences(worlds[0])) == {"quarantined"}
    with SchemaRegistry(RegistrySettings(url=registry.url)) as client:
        topic = f"t-languages-cases-{uuid.uuid4().hex[:6]}"
        serialize = EventSerializer(client, topic)
        for case in CASES:
            decoded = decode_event(case.data, state_of(case.server), verify=False)
            value = serialize(decoded, 0, "f", 4, 0, TransactionStep(None, 0), None)
            add(client, found, topic, MessageField.VALUE, value)
    return list(found.values())


def collect(world: RowsWorld, found: dict[Any, Records]) -> None:
    """Add what is in the topics of a source that consumers read: those with schemas of the registry."""
    topics = connect(world.settings).list_topics(timeout=30).topics
    for topic in sorted(name for name in topics if name.startswith(f"{world.source}.")):
        for message in world.messages(topic):
            for part, data in ((MessageField.KEY, message.key()), (MessageField.VALUE, message.value())):
                if isinstance(data, bytes) and data[:1] == b"\0":
                    add(world.registry, found, topic, part, data)


def add(
    registry: SchemaRegistry, found: dict[Any, Records], topic: str, part: MessageField, data: bytes
) -> None:
    schema_id, _ = split_wire_format(data)
    place = topic, part, schema_id
    if place not in found:
        found[place] = Records(topic, part, schema_id, registry.schema(schema_id), [])
    found[place].values.append(data)


def by_the_newest(records: list[Records]) -> list[Records]:
    """Return the records of each topic that has several schemas again, to be read by its newest."""
    newest = {(each.topic, each.part): each for each in sorted(records, key=lambda each: each.schema_id)}
    found = [
        replace(each, newest=last.schema)
        for each in records
        if ".t_" in each.topic and (last := newest[each.topic, each.part]) is not each
    ]
    assert len({each.topic for each in found}) > 3
    return found


class Printer:
    """Prints values that Python's libraries have read by a schema."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._define(schema, "")

    def __call__(self, value: Any) -> str:
        return self._text(self._schema, value)

    def _define(self, schema: Any, namespace: str) -> None:
        match schema:
            case list():
                for each in schema:
                    self._define(each, namespace)
            case {"type": "record", "name": name, "fields": fields}:
                full = name if "." in name else f"{schema.get('namespace', namespace)}.{name}".lstrip(".")
                self._named[full] = self._named[name.rpartition(".")[2]] = schema
                for field in fields:
                    self._define(field["type"], full.rpartition(".")[0])
            case {"type": "array", "items": items}:
                self._define(items, namespace)
            case {"type": dict() | list() as inner}:
                self._define(inner, namespace)

    def _text(self, schema: Any, value: Any) -> str:
        schema = self._resolved(schema)
        match schema, value:
            case list(), _:
                return self._text(next(each for each in schema if self._fits(each, value)), value)
            case {"type": "record", "fields": fields}, dict():
                assert len(fields) == len(value)
                parts = (
                    f"{quoted(each['name'])}={self._text(each['type'], value[each['name']])}"
                    for each in fields
                )
                return f"[{','.join(parts)}]"
            case {"type": "array", "items": items}, list():
                return f"[{','.join(self._text(items, each) for each in value)}]"
            case _, None | bool():
                return json.dumps(value)
            case _, str():
                return quoted(value)
            case _, bytes():
                return f"x{value.hex()}"
            case _, float():
                return f"f{struct.pack('>d', value).hex()}"
            case _, Decimal():
                sign, digits, _ = value.as_tuple()
                return f"d{(-1) ** sign * int(''.join(map(str, digits)))}"
            case _, dt.datetime() | dt.time() | dt.date():
                return str(since_the_epoch(value) // UNITS[schema["logicalType"]])
        return str(value)

    def _resolved(self, schema: Any) -> Any:
        if isinstance(schema, str):
            return self._named.get(schema) or self._named.get(schema.rpartition(".")[2]) or {"type": schema}
        if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            return self._resolved(schema["type"])
        return schema

    def _fits(self, schema: Any, value: Any) -> bool:
        schema = self._resolved(schema)
        match schema["type"], value:
            case ("null", None) | ("boolean", bool()) | ("string", str()) | ("array", list()):
                return True
            case "record", dict():
                return {each["name"] for each in schema["fields"]} == value.keys()
            case "bytes", bytes() | Decimal():
                return True
            case "int" | "long", bool():
                return False
            case "int" | "long", int() | dt.date() | dt.time():
                return True
            case "float" | "double", float():
                return True
        return False


def quoted(text: str) -> str:
    encoded = (chr(byte) if chr(byte).isalnum() and byte < 0x80 else f"%{byte:02x}" for byte in text.encode())
    return f"'{''.join(encoded)}'"


UNITS = {"date": dt.timedelta(days=1)} | {
    f"{kind}-{name}": unit
    for kind in ("time", "timestamp", "local-timestamp")
    for name, unit in (("millis", dt.timedelta(milliseconds=1)), ("micros", dt.timedelta(microseconds=1)))
}


def since_the_epoch(value: dt.date | dt.time) -> dt.timedelta:
    match value:
        case dt.datetime():
            return value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)  # noqa: DTZ001 - both are UTC, or of no zone
        case dt.time():
            return dt.timedelta(
                hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
            )
    return value - dt.date(1970, 1, 1)


def without_logical_types(schema: Any, kept: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [without_logical_types(each, kept) for each in schema]
    if isinstance(schema, dict):
        return {
            name: without_logical_types(each, kept)
            for name, each in schema.items()
            if name != "logicalType" or each in kept
        }
    return schema


def with_fastavro(schema: Any, newest: Any = None) -> Callable[[bytes], Any]:
    parsed = fastavro.parse_schema(schema)
    by = None if newest is None else fastavro.parse_schema(newest)

    def read(body: bytes) -> Any:
        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, parsed, by)
        assert stream.read() == b""
        return value

    return read


def expected(records: list[Records], *, decimals: bool) -> list[list[str]]:
    """The lines of the reference; decimals as numbers, or as the bytes that hold them."""
    lines = []
    for each in records:
        kept = ("decimal",) if decimals else ()
        plain, newest = without_logical_types(each.schema, kept), without_logical_types(each.newest, kept)
        read, printed = with_fastavro(plain, newest), Printer(newest or plain)
        lines.append([printed(read(value[prefix_size(value) :])) for value in each.values])
    return lines


def assert_equal(records: list[Records], found: list[list[str]], *, decimals: bool) -> None:
    different = [
        f"{each.topic} {each.part}: {line} for {reference}"
        for each, lines, references in zip(records, found, expected(records, decimals=decimals), strict=True)
        for line, reference in zip(lines, references, strict=True)
        if line != reference
    ]
    assert not different, f"{len(different)} differ: {different[:3]}"
    print(f"{len(found)} schemas, {sum(map(len, found))} records")


def assert_program_equal(records: list[Records], folder: Path, *command: str | Path, decimals: bool) -> None:
    """Run a program on all records, and compare what it prints."""
    inputs = folder / "records"
    inputs.mkdir()
    for number, each in enumerate(records):
        (inputs / f"{number}.avsc").write_text(json.dumps(each.schema), encoding="utf-8")
        if each.newest is not None:
            (inputs / f"{number}.newest").write_text(json.dumps(each.newest), encoding="utf-8")
        bodies = (value[prefix_size(value) :] for value in each.values)
        (inputs / f"{number}.records").write_bytes(
            b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
        )
    found: list[list[str]] = [[] for _ in records]
    for line in run(*command, inputs).splitlines():
        number, _, text = line.partition(" ")
        found[int(number)].append(text)
    assert_equal(records, found, decimals=decimals)


def run(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def program(name: str) -> str:
    """A compiler or interpreter on PATH; without it the library has not been tested."""
    path = shutil.which(name)
    assert path, f"not tested: there is no {name} on PATH"
    return path


def test_java(records: list[Records], tmp_path: Path) -> None:
    java = find_java(17, 21)
    modules = run(java.program, "--list-modules")
    assert "jdk.compiler" in modules, f"not tested: {java.program} has no compiler, which a JDK has"
    classes = f"{fetch('connect-avro')}/*"
    command = java.program, "-cp", classes, FOLDER / "Reader.java"
    assert_program_equal(records + by_the_newest(records), tmp_path, *command, decimals=True)


def test_java_classes(records: list[Records], tmp_path: Path) -> None:
    """Those that Avro's compiler makes compile once columns are renamed as docs/consumers.md says."""
    written = next(
        each.schema for each in records if each.topic.endswith(".names") and each.part == MessageField.VALUE
    )
    renamed = json.loads(json.dumps(written))
    names = {"x__": "x2", "aB": "ab2"}
    for field in _row_of(renamed)["fields"]:
        if field["name"] in names:
            field["aliases"], field["name"] = [field["name"]], names[field["name"]]
    assert "already defined" in java_errors(written, tmp_path / "written")
    assert java_errors(renamed, tmp_path / "renamed") == ""


def _row_of(schema: Any) -> Any:
    """The record of a table's columns in the schema of its rows."""
    for field in schema["fields"]:
        branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for branch in branches:
            if isinstance(branch, dict) and any(each["name"] == "x__" for each in branch.get("fields", ())):
                return branch
    raise LookupError("x__")


def java_errors(schema: Any, folder: Path) -> str:
    """Make Java classes of a schema and compile them; return what the compiler says."""
    classes = f"{fetch('avro-compiler')}/*:{fetch('connect-avro')}/*"
    folder.mkdir()
    (folder / "row.avsc").write_text(json.dumps(schema), encoding="utf-8")
    made = folder / "java"
    run(find_java(17, 21).program, "-cp", classes, FOLDER / "Classes.java", folder / "row.avsc", made)
    files = [str(path) for path in made.rglob("*.java")]
    assert files
    command = [program("javac"), "-cp", classes, "-proc:none", "-d", str(folder / "classes"), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("Note:"))


@pytest.mark.parametrize("library", ["hamba", "goavro"])
def test_go(records: list[Records], tmp_path: Path, library: str) -> None:
    run(program("go"), "build", "-o", tmp_path / "reader", ".", cwd=FOLDER / "go")
    # goavro reads records by the schema that wrote them alone.
    more = by_the_newest(records) if library == "hamba" else []
    assert_program_equal(records + more, tmp_path, tmp_path / "reader", library, decimals=True)


def test_rust(records: list[Records], tmp_path: Path) -> None:
    target = made_folder(cache_folder() / "languages" / "rust")
    for name in ("Cargo.toml", "main.rs"):
        shutil.copy(FOLDER / "rust" / name, tmp_path)
    run(program("cargo"), "build", "--quiet", "--release", "--target-dir", target, cwd=tmp_path)
    # It does not resolve a column that was added to a record within a union.
    assert_program_equal(records, tmp_path, target / "release" / "reader", decimals=False)


def test_javascript(records: list[Records], tmp_path: Path) -> None:
    node, npm = program("node"), program("npm")

    def install(folder: Path) -> None:
        run(npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, AVSC)

    modules = made_once(cache_folder() / "languages" / AVSC, install, waiting_for=f"npm install {AVSC}")
    shutil.copytree(modules, tmp_path, dirs_exist_ok=True)
    shutil.copy(FOLDER / "reader.js", tmp_path)
    text = (PROJECT / "docs" / "consumers.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```javascript\n(.*?)```", text, re.DOTALL)
    (tmp_path / "recipe.js").write_text(f"{recipe}\nmodule.exports = typeOf;\n", encoding="utf-8")
    command = node, tmp_path / "reader.js"
    assert_program_equal(records + by_the_newest(records), tmp_path, *command, decimals=False)


def test_c(records: list[Records], tmp_path: Path) -> None:
    compiler = program("cc")
    root = unpacked(tmp_path / "debian", *LIBAVRO)
    assert root, f"not tested: apt-get cannot download {' '.join(LIBAVRO)}"
    (libraries,) = (root / "usr" / "lib").glob("*-linux-gnu")
    flags = ("-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", f"-I{root}/usr/include", f"-L{libraries}")
    # The rpath must hold for the libraries that libavro needs, too.
    linked = ("-lavro", f"-Wl,-rpath,{libraries},--disable-new-dtags", f"-Wl,-rpath-link,{libraries}")
    reader = tmp_path / "reader"
    run(compiler, *flags, "-o", reader, FOLDER / "reader.c", *linked)
    # docs/types.md says so of connect.default, in which a DECIMAL may begin with such a byte.
    refused = [each for each in records if r"\u0000" in json.dumps(each.schema)]
    assert {each.topic.split("-")[2] for each in refused} == {"debezium"}
    (tmp_path / "0.avsc").write_text(json.dumps(refused[0].schema), encoding="utf-8")
    assert (
        "JSON_ALLOW_NUL"
        in subprocess.run([reader, tmp_path], capture_output=True, text=True, check=False).stderr
    )
    taken = [each for each in records if each not in refused]
    assert_program_equal(taken, tmp_path, reader, decimals=False)


def test_fastavro(records: list[Records]) -> None:
    found = []
    records = records + by_the_newest(records)
    for each in records:
        read, printed = with_fastavro(each.schema, each.newest), Printer(each.newest or each.schema)
        found.append([printed(read(value[prefix_size(value) :])) for value in each.values])
    assert_equal(records, found, decimals=True)


@pytest.mark.filterwarnings("ignore:Unknown local-timestamp:avro.errors.IgnoredLogicalType")
def test_apaches_python_library(records: list[Records]) -> None:
    found = []
    for each in records:
        reader = avro.io.DatumReader(avro.schema.parse(json.dumps(each.schema)))
        printed = Printer(each.schema)
        lines = []
        for value in each.values:
            stream = io.BytesIO(value[prefix_size(value) :])
            lines.append(printed(reader.read(avro.io.BinaryDecoder(stream))))
            assert stream.read() == b""
        found.append(lines)
    assert_equal(records, found, decimals=True)


def test_confluents_deserializer(records: list[Records], registry: Registry) -> None:
    found = []
    with SchemaRegistryClient({"url": registry.url}) as client:
        read = AvroDeserializer(client, conf={"subject.name.strategy": topic_subject_name_strategy})
        for each in records:
            context, printed = SerializationContext(each.topic, each.part), Printer(each.schema)
            found.append([printed(read(value, context)) for value in each.values])
    assert_equal(records, found, decimals=True)
