"""Changes of a JSON document whose document the log lacks: consumers apply them as docs/types.md says."""

import re

from millrace.binlog.columns import ABSENT, Column, ColumnType
from millrace.binlog.columns.column import BlobMetadata, NoMetadata
from millrace.binlog.columns.json_diffs import JsonDiffs
from millrace.binlog.events import PartialUpdateRowsEvent, TableMapEvent
from millrace.binlog.row_images import RowImages
from tests.shared import PROJECT

from .harness import EventsTopic, World
from .logs import Log

COLUMNS = (
    Column(0, ColumnType.LONG, NoMetadata(), name="id", key_position=0),
    Column(1, ColumnType.JSON, BlobMetadata(4), name="document"),
)
DIFFS = (
    b"\x00\x03$.a\x02\x04\x01"  # replace by true
    b"\x01\x06$.b[0]\x02\x04\x02"  # insert false
    b"\x02\x05$.old"
)


def test_changes_are_applied_to_the_document_that_a_consumer_has():
    images = RowImages(COLUMNS, b"\x01", b"\x02", partial_json=True)
    rows = images.encode([((1, ABSENT), (ABSENT, JsonDiffs(DIFFS)))])
    made = Log(EventsTopic()).begin()
    made.event(
        TableMapEvent(
            7, 1, "shop", "a", bytes((3, 245)), b"\x04", b"\x02", b"\x04\x0c\x02id\x08document\x08\x01\x00"
        )
    )
    made.event(PartialUpdateRowsEvent(7, 1, b"", 2, b"\x01", b"\x02", rows)).commit()
    world = World(made.topic)
    world.run()
    ((_, record),) = world.read("t.shop.a")
    assert record["after"]["document"] is None
    (note,) = record["unrepresentable"]
    assert (note["image"], note["column"], note["bytes"]) == ("after", "document", DIFFS)
    section = (PROJECT / "docs/types.md").read_text("utf-8").split("## Changes of a JSON document\n")[1]
    (code,) = re.findall(r"(?s)```python\n(.*?)```", section.split("\n## ")[0])
    consumer = {"note": note, "document": {"a": 1, "b": [2], "old": 3}}
    exec(code, consumer)
    assert consumer["document"] == {"a": True, "b": [False, 2]}
