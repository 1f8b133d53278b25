"""The row mapper's records of a log beside those that Debezium 3.6.1 wrote of the same log, field by field.

What differs is in a table of ``docs/types.md``, row by row the same as ``DIFFERENCES`` here.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.avro.connect import connect_schema, json_text, plain_schema
from millrace.avro.records import read_record
from millrace.avro.registry import split_wire_format
from tests.shared import PROJECT, SHARED
from tests.unit.rowmapper.harness import EventsTopic, World

FOLDER = SHARED / "debezium"
LIKE_DEBEZIUM = {
    "bigint_unsigned": "long",
    "wide_decimal": "decimal",
    "temporal": "debezium",
    "bit": "debezium",
    "column_attributes": "debezium",
    "connector": "mysql",
    "include_query": True,
    "tombstones": "always",
    "key_headers": True,
    "truncate": True,
}
TABLES = ("numbers", "times", "texts", "composite", "keyless", "uniq", "altered", "emptied", "done")
PAGE = PROJECT / "docs" / "types.md"

DIFFERENCES = {
    r".key.schema.fields.\w+.type": "Integers in a key",
    r".value.schema.fields.(before|after).fields.\w+.optional": "NOT NULL",
    r".value.schema.fields.(before|after).fields.\w+.parameters(.millrace.\w+)?": "Parameters of our own",
    r"numbers.1 .value.payload.after.d": "NULL in a column with a DEFAULT",
    r"numbers.0 .value.payload.after.gu": "BIGINT UNSIGNED of 2^63 and more",
    r"texts.0 .value.payload.after.e": "ENUM member with a comma",
    r"texts.0 .value.payload.after.j": "JSON",
    r".value.schema.fields.(before|after).fields.p.(name|fields.(x|y|wkb.optional))": "POINT",
    r".value.payload.(before|after).p.(x|y)": "POINT",
    r".value.payload.(before|after).(p|gm).srid": "SRID 0",
    r".value.schema.fields.(before|after).fields.(p|gm).doc": "`doc` of a geometry",
    r".value.schema.fields.source.fields.(epoch|sub_index|schema_source)": "Fields of our own",
    r".value.schema.fields.(unrepresentable|before_missing|after_missing)": "Fields of our own",
    r".value.payload.source.(epoch|sub_index|schema_source)": "Fields of our own",
    r".value.payload.unrepresentable": "Fields of our own",
    r".value.schema.fields.source.fields.table.optional": "`source.table`",
    r".value.payload.source.version": "`source.version`",
    r".value.payload.ts_(ms|us|ns)": "`ts_ms`, `ts_us`, `ts_ns`",
    r"composite.4 .value.payload.source.row": "`source.row` of an update of the key",
    r"emptied.2 .value.payload.source.(thread|row|ts_us|ts_ns)": "TRUNCATE",
    r".headers.__debezium.context.\w+": "Headers `__debezium.context.…`",
}
"""What a path in a record must match, and the row of the docs that says why it differs."""
WITHOUT_RECORD = {"keyless": (4, "Tombstones without a key")}
"""The record of Debezium's that we do not write."""


def mapped(name: str) -> World:
    """The log, mapped to a format."""
    if not FOLDER.is_dir():
        pytest.skip(f"{FOLDER} is absent: set MILLRACE_SHARED to the folder that holds debezium/")
    # Only schemas have attributes.
    settings = {
        key: value
        for key, value in LIKE_DEBEZIUM.items()
        if name not in ("json", "cloudevents") or key != "column_attributes"
    }
    made = World(EventsTopic().add_file(FOLDER / "binlog.000030"), **settings, format=name)
    made.run()
    return made


@pytest.fixture(scope="module", params=["avro", "json-schema"])
def world(request: pytest.FixtureRequest) -> World:
    return mapped(request.param)


def theirs(table: str) -> list[dict[str, Any]]:
    text = (FOLDER / f"envelope.{table}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line.replace("golden", "t")) for line in text.splitlines()]


def decoded(world: World, data: bytes | None) -> Any:
    """A record's schema and payload as Connect has them."""
    if data is None or data.startswith(b"{"):
        return data and json.loads(data)
    schema_id, body = split_wire_format(data)
    schema = world.registry.schema(schema_id)
    value = read_record(body, plain_schema(schema))
    return {"schema": connect_schema(schema), "payload": json.loads(json_text(value))}


def ours(world: World, table: str) -> list[dict[str, Any]]:
    return [
        {
            "key": decoded(world, key),
            "value": decoded(world, value),
            "headers": {name: content.decode() for name, content in headers or ()},
        }
        for key, value, headers in world.records(f"t.envelope.{table}")
    ]


def differences(mine: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two records differ, as path and both values."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for name in {**other, **mine}:
            yield from differences(mine.get(name), other.get(name), f"{path}.{name}")
    elif isinstance(mine, list) and isinstance(other, list) and path.endswith(".fields"):
        by_name = [{field["field"]: field for field in fields} for fields in (mine, other)]
        yield from differences(*by_name, path)
    elif mine != other:
        yield path, mine, other


def reason(table: str, number: int, path: str) -> str | None:
    """The row of the docs for a difference."""
    for pattern, title in DIFFERENCES.items():
        where = path if pattern.startswith(".") else f"{table}.{number} {path}"
        if re.fullmatch(pattern, where):
            return title
    return None


def compared(world: World, table: str) -> Iterator[tuple[int, str, Any, Any]]:
    other = theirs(table)
    left_out, _ = WITHOUT_RECORD.get(table, (None, ""))
    if left_out is not None:
        assert (other[left_out]["key"], other[left_out]["value"]) == (None, None)
        del other[left_out]
    mine = ours(world, table)
    assert len(mine) == len(other)
    for number, (one, two) in enumerate(zip(mine, other, strict=True)):
        del two["offset"]
        two["headers"] = two["headers"] or {}
        yield from ((number, *found) for found in differences(one, two))


@pytest.mark.parametrize("table", TABLES)
def test_records(world: World, table: str) -> None:
    unexplained = [found for found in compared(world, table) if reason(table, found[0], found[1]) is None]
    assert unexplained == []


def test_differences_are_all_there_and_in_the_docs(world: World) -> None:
    titles = {title for _, title in WITHOUT_RECORD.values()} | {
        str(reason(table, number, path)) for table in TABLES for number, path, _, _ in compared(world, table)
    }
    assert titles == {*DIFFERENCES.values(), *(title for _, title in WITHOUT_RECORD.values())}
    page = PAGE.read_text(encoding="utf-8")
    section = page[page.index("## What differs from Debezium") :]
    assert set(re.findall(r"(?m)^\| \*\*(.+?)\*\* \|", section)) == titles


def test_transactions(world: World) -> None:
    lines = (FOLDER / "transaction.jsonl").read_text(encoding="utf-8").splitlines()
    other = [json.loads(line)["value"]["payload"] for line in lines]
    mine = [value for _, value in world.read("t.transactions")]
    assert [{name: one[name] for name in two} for one, two in zip(mine, other, strict=True)] == other


@pytest.mark.parametrize("table", TABLES)
def test_the_other_formats_have_the_same(table: str) -> None:
    """Without a schema the payload alone; in an event of CloudEvents what its attributes do not have."""
    whole, plain, events = (
        mapped(name).records(f"t.envelope.{table}") for name in ("json-schema", "json", "cloudevents")
    )
    for one, two, three in zip(whole, plain, events, strict=True):
        key, value = (data and json.loads(data)["payload"] for data in one[:2])
        assert (two[0] and json.loads(two[0]), two[1] and json.loads(two[1])) == (key, value)
        assert three[0] == two[0]
        if value is None:
            assert three[1] is None
            continue
        event = json.loads(three[1] or b"")
        source, name = value["source"], f"name:t;file:{value['source']['file']};pos:{value['source']['pos']};"
        assert event["id"] == f"{name}row:{source['row']};sub_index:0;epoch:0"
        assert event["source"] == "/debezium/mysql/t"
        assert (event["specversion"], event["datacontenttype"]) == ("1.0", "application/json")
        assert event["type"] == "io.debezium.connector.mysql.DataChangeEvent"
        assert event["iodebeziumop"] == value["op"]
        assert event["iodebeziumtsms"] == str(source["ts_ms"])
        assert event.get("iodebeziumtxid") == (value["transaction"] and value["transaction"]["id"])
        assert {event["data"][side] == value[side] for side in ("before", "after")} == {True}
        assert all(re.fullmatch("[a-z0-9]{1,40}", attribute) for attribute in event)
        assert three[2][-1] == ("content-type", b"application/cloudevents+json; charset=UTF-8")
