"""Catalogue records."""

from dataclasses import replace

import pytest

from millrace.avro.catalog import CatalogEntry
from millrace.avro.schema_version import SchemaVersion
from millrace.binlog.table import (
    LARGEST_DEFINITION,
    ColumnDefinition,
    IndexDefinition,
    TableDefinition,
)
from millrace.ddl import MISSING, Unknown
from millrace.kafka.topics import LEAST_MESSAGE_BYTES

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


def members(size):
    """A definition whose records have some ``size`` bytes."""
    column = ColumnDefinition(0, "e", "enum(…)", members=("x" * size,))
    return TableDefinition("d", "t", (column,), "InnoDB", indexes=(IndexDefinition("i", True, (("e", 0),)),))


def test_a_definition_that_no_record_takes_is_not_known():
    entry = CatalogEntry(0, "bin.000001", 4, members(LARGEST_DEFINITION), 1)
    bounded, data = entry.kept()
    assert bounded.unknown is not None
    assert bounded.unknown.startswith("it is too large: more than 1,000,000 bytes are kept of no table")
    assert bounded.definition == TableDefinition("d", "t", (), "InnoDB")
    assert CatalogEntry.from_bytes(data) == bounded
    version = SchemaVersion("d", "t", 0, "bin.000001", 4, members(LARGEST_DEFINITION))
    assert version.bounded() == replace(version, state=Unknown(bounded.unknown))


def test_a_table_of_which_the_catalogue_lists_too_much_is_not_known():
    bounded, data = CatalogEntry(0, "f", 4, TableDefinition("d", "t", ()), 1).kept()
    assert bounded.unknown is not None
    assert CatalogEntry.from_bytes(data) == bounded


@pytest.mark.parametrize("state", [members(1), members(LARGEST_DEFINITION - 1000), MISSING, Unknown("why")])
def test_what_a_record_takes_stays(state):
    version = SchemaVersion("d", "t", 0, "bin.000001", 4, state)
    assert version.bounded() is version
    if isinstance(state, TableDefinition):
        entry = CatalogEntry(0, "bin.000001", 4, state, 1)
        assert entry.kept() == (entry, entry.to_bytes())


def test_a_database_has_no_columns():
    entry = CatalogEntry(0, "bin.000001", 4, TableDefinition("d", "", (), charset="utf8mb4"), 1)
    assert entry.kept() == (entry, entry.to_bytes())


def test_every_topic_takes_the_largest_definition():
    longest = "ü" * 64
    version = SchemaVersion(longest, longest, 2**31 - 1, "f" * 512, 2**63 - 1, members(LARGEST_DEFINITION))
    overhead = 2048
    assert LARGEST_DEFINITION + len(version.key) + overhead <= LEAST_MESSAGE_BYTES
