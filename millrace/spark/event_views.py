"""The view of typed events: no image of a row is decoded for it."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa

from millrace.avro.columnar import AvroColumns, chosen
from millrace.avro.events import binlog_event_schema
from millrace.avro.registry import split_wire_format
from millrace.spark.decoding import Decoding
from millrace.spark.views import DecodedView, batch_of, marker_of
from millrace.stage import OutputRecord

_EVENT: Final = "event"


@cache
def events_schema() -> pa.Schema:
    """Return the columns of the view ``events``: an event's head, and a struct with a column per type."""
    schema = binlog_event_schema()
    *head, union = schema["fields"]
    types = [
        pa.field(one["name"], _columns_of(schema, head, union, branch).schema.field(_EVENT).type)
        for branch, one in enumerate(union["type"])
    ]
    heads = AvroColumns({**schema, "fields": head}).schema
    return pa.schema([*heads, pa.field(_EVENT, pa.struct(types))])


def _columns_of(schema: Any, head: Any, union: Any, branch: int) -> AvroColumns:
    one = {**union, "type": chosen(union["type"], branch)}
    return AvroColumns({**schema, "fields": [*head, one]})


class EventsView(DecodedView):
    """Typed events: of each the column of its type is not null."""

    def __init__(self, decoding: Decoding, layout: pa.Schema, *, fail: bool) -> None:
        super().__init__(decoding, layout, fail=fail)
        self._heads: AvroColumns | None = None
        self._branches: dict[int, AvroColumns] = {}

    def _made(self, topic: str, made: Sequence[OutputRecord]) -> Iterator[pa.RecordBatch]:
        if topic != self._decoder.topics.events:
            return
        values = [value or b"" for _, value, _, headers in made if not marker_of(headers)]
        if not values:
            return
        schema = self._decoder.schema(split_wire_format(values[0])[0])
        *head, union = schema["fields"]
        if self._heads is None:
            number = {"name": _EVENT, "type": "long"}
            self._heads = AvroColumns({**schema, "fields": [*head, number]}, whole=False)
        heads = self._heads.read(values)
        if _EVENT not in self._layout.names:
            yield batch_of(heads, self._layout)
            return
        of_branch: dict[int, list[bytes]] = {}
        for branch, value in zip(heads.column(_EVENT).to_pylist(), values, strict=True):
            of_branch.setdefault(branch, []).append(value)
        for branch, same in of_branch.items():
            if branch not in self._branches:
                self._branches[branch] = _columns_of(schema, head, union, branch)
            rows = self._branches[branch].read(same)
            event = pa.StructArray.from_arrays([rows.column(_EVENT)], [union["type"][branch]["name"]])
            columns = [*rows.columns[:-1], event]
            yield batch_of(pa.RecordBatch.from_arrays(columns, rows.schema.names), self._layout)
