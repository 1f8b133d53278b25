"""Catalogue records."""

from millrace.avro.catalog import CatalogEntry
from millrace.binlog.table import ColumnDefinition, TableDefinition

DEFINITION = TableDefinition(
    "shop",
    "ordérs",
    (
        ColumnDefinition(0, "id", "bigint(20) unsigned", nullable=False, unsigned=True, key_position=0),
        ColumnDefinition(1, "state", "enum('a','b')", charset="utf8mb4", members=("a", "b")),
        ColumnDefinition(2, "twice", "int", generated="VIRTUAL", hidden=True),
    ),
    engine="InnoDB",
)


def test_entry_survives():
    entry = CatalogEntry(1, "bin.000001", (1 << 33), DEFINITION, 1_700_000_000_000, gtid_set="0-1-7")
    assert CatalogEntry.from_bytes(entry.to_bytes()) == entry
    assert entry.key == "shop.ordérs".encode()
    altered = CatalogEntry(1, "bin.000003", 4, DEFINITION, 1, "", True, "bin.000001", 1 << 33)
    assert CatalogEntry.from_bytes(altered.to_bytes()) == altered
