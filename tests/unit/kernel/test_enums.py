"""What the kernel has as numbers has the numbers that the reference gives it."""

from enum import IntEnum, IntFlag
from importlib import import_module

import pytest

from millrace import kernel
from millrace.avro import columnar, plans, transactions
from millrace.binlog.columns.declaration import NativeKind, SelectedKind
from millrace.binlog.declaration import declared_fields
from millrace.binlog.events.rows import PlainRowsEvent
from millrace.binlog_command.row_kernel import TextKind
from millrace.rowmapper import json_format
from tests.unit.kernel.both import NOT_BUILT

ROWS_FIELDS = IntEnum("RowsField", [each.name.upper() for each in declared_fields(PlainRowsEvent)], start=0)  # type: ignore[misc]  # made of the declaration


@pytest.mark.skipif(not all(map(kernel.built, kernel.MODULES)), reason=NOT_BUILT)
@pytest.mark.parametrize(
    ("module", "prefix", "reference"),
    [
        ("rows", "", NativeKind),
        ("selected", "", SelectedKind),
        ("text", "", TextKind),
        ("columns", "KIND_", columnar._Kind),
        ("json_text", "KIND_", json_format._Kind),
        ("event_records", "KIND_", plans.FieldKind),
        ("event_records", "ROWS_", ROWS_FIELDS),
        ("transactions", "USE_", transactions.Use),
        ("events", "LAYOUT_", plans.Layout),
        ("events", "WIRE_", plans.Wire),
        ("events", "CONDITION_", plans.Condition),
    ],
)
def test_the_kernel_has_the_same_numbers(
    module: str, prefix: str, reference: type[IntEnum] | type[IntFlag]
) -> None:
    name = {"": "Kind", "KIND_": reference.__name__.strip("_"), "ROWS_": "RowsField"}.get(
        prefix, prefix.strip("_").capitalize()
    )
    compiled = getattr(import_module(f"millrace.kernel.{module}"), name).__members__
    assert dict(compiled) == {prefix + name: value for name, value in reference.__members__.items()}
