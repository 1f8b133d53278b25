"""Records that were written before a schema had all of its fields."""

import io

import fastavro

from millrace.avro import single_object
from millrace.avro.catalog import CatalogEntry
from millrace.avro.snapshots import SnapshotState
from millrace.binlog.table import ColumnDefinition, TableDefinition


def test_a_definition_of_an_earlier_version_is_read() -> None:
    ((fingerprint, schema),) = single_object._before_additions("Catalog").items()
    definition = TableDefinition("d", "t", (ColumnDefinition(0, "a", "int"),))
    entry = CatalogEntry(1, "bin.000001", 4, definition, 1_700_000_000_000)
    values = {**definition.to_dict()}
    del values["indexes"]
    record = {
        "epoch": 1,
        "log_file": "bin.000001",
        "position": 4,
        "gtid_set": "",
        "read_ms": 1_700_000_000_000,
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {**record, "definition": values})
    # The fingerprint of the schema before, whose records lie in topics.
    assert fingerprint.hex() == "1126457ebec2ca99"
    assert CatalogEntry.from_bytes(b"\xc3\x01" + fingerprint + out.getvalue()) == entry


def test_a_snapshot_that_an_earlier_version_began_is_read() -> None:
    ((fingerprint, schema),) = single_object._before_additions("SnapshotState").items()
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"snapshot": 7, "tables": [], "finished": True})
    assert fingerprint.hex() == "e6ebc0af6cd8b6ea"
    assert SnapshotState.from_bytes(b"\xc3\x01" + fingerprint + out.getvalue()) == SnapshotState(
        7, [], finished=True
    )
