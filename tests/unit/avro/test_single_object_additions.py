"""Records that were written before a schema had all of its fields."""

import io
from dataclasses import asdict, replace

import fastavro
import pytest

from millrace.avro import single_object
from millrace.avro.catalog import CatalogEntry
from millrace.avro.registry import prefix_size, split_wire_format, wire_prefix
from millrace.avro.service_state import ReaderState, TableTopic
from millrace.avro.snapshots import SnapshotRange, SnapshotState, SnapshotTable
from millrace.binlog.table import ColumnDefinition, TableDefinition


def test_a_definition_of_an_earlier_version_is_read() -> None:
    schemas = single_object._before_additions("Catalog")
    # The fingerprints of the schemas before, whose records lie in topics.
    assert [fingerprint.hex() for fingerprint in schemas] == [
        "1126457ebec2ca99",
        "8ce823d000afd69e",
        "ab0a21f1cbd73e30",
        "054cfca615318b22",
        "fa762d51d6547ea9",
        "a80fbbc2f18b7a88",
        "a165289c57cc3d11",
    ]
    definition = TableDefinition("d", "t", (ColumnDefinition(0, "a", "int"),))
    entry = CatalogEntry(1, "bin.000001", 4, definition, 1_700_000_000_000)
    record = {
        "epoch": 1,
        "log_file": "bin.000001",
        "position": 4,
        "gtid_set": "",
        "read_ms": 1_700_000_000_000,
    }
    for fingerprint, schema in schemas.items():
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {**record, "definition": definition.to_dict()})
        assert CatalogEntry.from_bytes(b"\xc3\x01" + fingerprint + out.getvalue()) == entry


def test_a_snapshot_that_an_earlier_version_began_is_read() -> None:
    schemas = single_object._before_additions("SnapshotState")
    assert [fingerprint.hex() for fingerprint in schemas] == ["e6ebc0af6cd8b6ea", "51f5e95533b0df74"]
    begun = SnapshotState(7, [SnapshotTable("d", "t", ranges=[SnapshotRange(["5"], "9")])], finished=True)
    for fingerprint, schema in schemas.items():
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, asdict(begun))
        assert SnapshotState.from_bytes(b"\xc3\x01" + fingerprint + out.getvalue()) == begun


def test_a_place_of_the_reader_that_an_earlier_version_noted_is_read() -> None:
    schemas = single_object._before_additions("ReaderState")
    assert [fingerprint.hex() for fingerprint in schemas] == [
        "ade5d7534e4279fe",
        "0f40b0ba0ff773b4",
        "3d4f0da3ff3a071e",
    ]
    state = ReaderState(1, "bin.000002", 4711, gtid_set="0-1-5")
    for fingerprint, schema in schemas.items():
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, asdict(state))
        assert ReaderState.from_bytes(b"\xc3\x01" + fingerprint + out.getvalue()) == state


def test_a_topic_of_a_table_that_an_earlier_version_noted_is_read() -> None:
    schemas = single_object._before_additions("TableTopic")
    ours = TableTopic("s.d.t", "id", "d", "t", 7, "k", 2**31 - 1, "v")
    assert [fingerprint.hex() for fingerprint in schemas] == [
        "6172f7871f554808",
        "4e5f9e4d6a5fbae4",
        "1e45425ac5a798df",
    ]
    for fingerprint, schema in schemas.items():
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, asdict(ours))
        assert TableTopic.from_bytes(b"\xc3\x01" + fingerprint + out.getvalue()) == ours
    least = replace(ours, key_schema=None, value_schema=-(2**63))
    assert TableTopic.from_bytes(least.to_bytes()) == least


@pytest.mark.parametrize(("schema_id", "size"), [(0, 5), (2**32 - 1, 5), (-1, 10), (-(2**63), 10)])
def test_what_stands_in_front_of_a_record(schema_id: int, size: int) -> None:
    data = wire_prefix(schema_id) + b"avro"
    assert prefix_size(data) == size
    assert split_wire_format(data) == (schema_id, b"avro")
    with pytest.raises(ValueError, match="Confluent"):
        split_wire_format(data[: size - 1])
