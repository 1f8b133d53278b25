"""Rows as JSON: what the formats are, and what of JSON is not what it is in Avro."""

import base64
import dataclasses
import json
import math
import struct

import pytest

from millrace.avro.connect import connect_schema, json_text, shortest_float
from millrace.avro.registry import wire_prefix
from millrace.avro.row_records import RowEncoder, RowsEventWriter, table_schemas
from millrace.binlog.columns import AvroOptions, Column, ColumnType
from millrace.binlog.columns.column import LengthMetadata, NoMetadata, RealMetadata
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.row_images import AvroRows
from millrace.binlog.table import ResolvedTable
from millrace.rowmapper.json_format import JsonFormat, envelope_of, json_format
from millrace.stage import Output
from tests.unit.avro.test_row_records import PLACE as ANY_PLACE

from .harness import EventsTopic, World
from .logs import Log
from .test_envelope import made, world

FORMATS = ("json", "json-schema", "cloudevents")
PLACE = dataclasses.replace(ANY_PLACE, gtid=None, transaction="bin.000001:4")
LONG = ColumnType.LONG, NoMetadata(), None
TEXT = ColumnType.VARCHAR, LengthMetadata(60_000), "utf8mb4"


def payload(name, data):
    """The key or the row of a record, whatever it is in."""
    if data is None:
        return None
    found = json.loads(data)
    if name == "json-schema":
        return found["payload"]
    return found.get("data", found)


@pytest.mark.parametrize("name", FORMATS)
def test_records(name):
    """The same records as in Avro, tombstones and TRUNCATE included; other topics stay Avro."""
    options = {"tombstones": "always", "truncate": True, "key_headers": True}
    log = made().query("TRUNCATE a")
    avro, found = world(log, **options), world(log, **options, format=name)
    wanted = [
        (key, value and {side: value[side] for side in ("before", "after")})
        for key, value in avro.read("t.shop.a")
    ]
    mine = [
        (payload(name, key), value and {side: payload(name, value)[side] for side in ("before", "after")})
        for key, value, _ in found.records("t.shop.a")
    ]
    assert mine == wanted
    mark = [("content-type", b"application/cloudevents+json; charset=UTF-8")] if name == "cloudevents" else []
    for (_, _, before), (_, value, after) in zip(
        avro.records("t.shop.a"), found.records("t.shop.a"), strict=True
    ):
        assert [*(after or ())] == [*(before or ()), *(mark if value else ())]
    assert found.read("t.transactions") == avro.read("t.transactions")
    assert found.read("t.ddl") == avro.read("t.ddl")
    assert found.state == avro.state


@pytest.mark.parametrize("name", FORMATS)
def test_place_and_operation_can_be_read(name):
    found = world(made(), format=name)
    (_, value, _), *_ = found.records("t.shop.a")
    read = envelope_of(value)
    assert read["op"] == "c"
    assert (read["source"]["file"], read["source"]["pos"]) == ("bin.000001", 304)
    assert [read["source"][field] for field in ("epoch", "sub_index", "row")] == [0, 0, 0]


@pytest.mark.parametrize(
    "value", [b"{}", b"[]", b"{", b'{"op":1}', b'{"specversion":"1.0"}', b'{"payload":3}']
)
def test_what_is_no_envelope(value):
    with pytest.raises(ValueError):
        envelope_of(value)


def test_connects_json_without_a_registry_elsewhere():
    """A record of json-schema says what it is: a consumer needs nothing else."""
    (key, value, _), *_ = world(made(), format="json-schema").records("t.shop.a")
    assert json.loads(key) == {
        "schema": {
            "type": "struct",
            "optional": False,
            "name": "t.shop.a.Key",
            "fields": [{"type": "int64", "optional": False, "field": "id"}],
        },
        "payload": {"id": 1},
    }
    schema = json.loads(value)["schema"]
    assert (schema["name"], schema["version"]) == ("t.shop.a.Envelope", 2)
    assert [field["field"] for field in schema["fields"]] == list(json.loads(value)["payload"])


def test_a_cloud_event():
    (_, value, _), *_ = world(made(), format="cloudevents", connector="mysql").records("t.shop.a")
    event = json.loads(value)
    assert event["id"] == "name:t;file:bin.000001;pos:304;row:0;sub_index:0;epoch:0"
    assert event["source"] == "/debezium/mysql/t"
    assert event["type"] == "io.debezium.connector.mysql.DataChangeEvent"
    assert event["time"] == "2023-11-14T22:18:24.000Z"
    # 64 bits are text: CloudEvents has no such number.
    assert (event["iodebeziumpos"], event["iodebeziumrow"]) == ("304", 0)
    assert (event["iodebeziumtxtotalorder"], event["iodebeziumgtid"]) == ("1", event["iodebeziumtxid"])


def test_ids_of_cloud_events_are_unique():
    records = world(made(), format="cloudevents").records("t.shop.a")
    ids = [json.loads(value)["id"] for _, value, _ in records]
    assert len(ids) == len(set(ids)) == 7


class Table:
    """Rows of a table of some columns as JSON; ``limit`` is that of a record."""

    def __init__(self, columns, name, *, key=("id",), limit=1 << 20):
        made = tuple(
            Column(
                ordinal,
                *type_[:2],
                name=column,
                charset=type_[2],
                key_position=key.index(column) if column in key else None,
            )
            for ordinal, (column, type_) in enumerate(columns.items())
        )
        table = ResolvedTable("shop", "a", made, tuple(c for c in made if c.name in key), "table_map")
        self.schemas = table_schemas("t", table, AvroOptions())
        self.format = JsonFormat(name, {11: self.schemas.key, 12: self.schemas.envelope}.__getitem__)
        for schema_id, schema in ((11, self.schemas.key), (12, self.schemas.envelope)):
            self.format.learn(schema_id, schema)
        self.limit, small = self.format.limits(limit, 11, 12)
        self.encoder = RowEncoder(
            "t",
            "1.0",
            table,
            AvroOptions(),
            key_id=11,
            value_id=12,
            record_limit=self.limit,
            small_limit=small,
            size_of=self.format.size,
        )
        self.present = ((1 << len(made)) - 1).to_bytes((len(made) + 7) // 8, "little")

    def records(self, *rows, lost=()):
        """Insert rows: JSON of their keys and values."""

        def locate(row, side, ordinal):
            return 10, 20

        writer = RowsEventWriter(self.encoder, PLACE, b"", self.present, locate)
        writer.write(RowsOperation.WRITE, AvroRows([(None, row) for row in rows], dict(lost)))
        return [(self.format.record(key), self.format.record(value)) for key, value in writer.records]


def test_floats_have_the_digits_of_a_float():
    """As the JsonConverter prints them: not those of the DOUBLE that is the same number."""
    columns = {"id": LONG, "f": (ColumnType.FLOAT, RealMetadata(4), None)}
    nearest = struct.unpack("<f", struct.pack("<f", 1.1))[0]
    ((_, value),) = Table(columns, "json").records((1, nearest))
    assert b'"f":1.1}' in value


@pytest.mark.parametrize(
    "text", ["1.1", "0.1", "16777216.0", "3.4028235e+38", "1.1754944e-38", "-2.5", "0.0", "1e+20"]
)
def test_shortest_floats(text):
    nearest = struct.unpack("<f", struct.pack("<f", float(text)))[0]
    assert repr(shortest_float(nearest)) == text


def test_numbers_that_json_lacks_are_text():
    values = {"a": [math.nan, 1.5], "b": {"c": math.inf}, "d": -math.inf}
    assert json_text(values) == '{"a":["NaN",1.5],"b":{"c":"Infinity"},"d":"-Infinity"}'


@pytest.mark.parametrize("name", FORMATS)
def test_a_zero_date_in_a_key(name):
    """A union of a number and text, which Connect has as a struct."""
    columns = {"id": (ColumnType.DATE, NoMetadata(), None), "v": LONG}
    table = Table(columns, name)
    lost = {(1, 1): {0: "0000-00-00"}}
    keys = [payload(name, key) for key, _ in table.records((19_000, 1), (None, 2), lost=lost)]
    if name == "json-schema":
        assert keys == [
            {"id": {"int": 19_000, "string": None}},
            {"id": {"int": None, "string": "0000-00-00"}},
        ]
        (field,) = connect_schema(table.schemas.key)["fields"]
        assert field["name"] == "io.confluent.connect.avro.Union"
        assert [(one["field"], one["type"]) for one in field["fields"]] == [
            ("int", "int32"),
            ("string", "string"),
        ]
    else:
        assert keys == [{"id": 19_000}, {"id": "0000-00-00"}]


@pytest.mark.parametrize("name", FORMATS)
def test_columns_have_their_own_names(name):
    """JSON takes what Avro does not."""
    ((key, value),) = Table({"größe in m": LONG, "b": LONG}, name, key=("größe in m",)).records((1, 2))
    assert payload(name, key) == {"größe in m": 1}
    assert payload(name, value)["after"] == {"größe in m": 1, "b": 2}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("character", ["x", "\x01", '"', "ä"])
def test_what_is_too_large_in_json_goes_by_reference(name, character):
    """Where a value fits in Avro and not in JSON, in which a control character takes six bytes."""
    table = Table({"id": LONG, "v": TEXT, "w": TEXT}, name, limit=60_000)
    lengths = [100, 2_000, 5_000, 9_000, 20_000, 50_000]
    found = table.records(*((size, character * size, "w") for size in lengths))
    cut = []
    for _, value in found:
        assert len(value) <= table.limit
        data = json.loads(value)
        row = {"json": data, "json-schema": data.get("payload"), "cloudevents": data.get("data")}[name]
        if row["after"]["v"] is None:
            cut.append(row["after"]["id"])
            (note,) = row["unrepresentable"]
            assert note["column"] == "v"
            assert note["reference"] == {"key": PLACE.key.decode(), "start": 10, "end": 20}
        else:
            assert row["after"]["v"] == character * row["after"]["id"]
        assert row["after"]["w"] == "w"
    # As much as fits is there.
    size = len(json.dumps(character, ensure_ascii=False).encode()) - 2
    beside = len(found[0][1]) - size * lengths[0]
    assert cut == [length for length in lengths if beside + size * length > table.limit]


def test_binary_values_are_base64():
    columns = {"id": LONG, "v": (ColumnType.VARCHAR, LengthMetadata(10), "binary")}
    ((_, value),) = Table(columns, "json").records((1, b"\x00\xff"))
    assert json.loads(value)["after"]["v"] == base64.b64encode(b"\x00\xff").decode()


def test_partitions_stay():
    """They are those of the key in Avro."""
    table = Table({"id": LONG}, "json")
    output = Output()
    prefix = wire_prefix(11)
    output.add("t.shop.a", prefix + b"\x02", None, 5, partition=3)
    output.add("t.transactions", b"key", b"\x00avro", 5)
    written = table.format.written(output)
    assert written.groups == {
        ("t.shop.a", 3): [(b'{"id":1}', None, 5, None)],
        ("t.transactions", 0): [(b"key", b"\x00avro", 5, None)],
    }
    assert (written.count, written.size) == (2, 5)


def test_a_table_whose_schema_does_not_fit_waits_alone():
    """With json-schema it is in each record."""
    found = World(made().topic, format="json-schema", limit=3_000)
    found.run()
    (waiting,) = found.state.quarantined
    assert waiting.name == "shop.a"
    assert "does not fit into a record" in waiting.error
    assert "t.shop.a" not in found.tables


def test_avro_needs_no_format():
    assert json_format("avro", {}.__getitem__) is None
    assert Log(EventsTopic()).begin().topic.records
