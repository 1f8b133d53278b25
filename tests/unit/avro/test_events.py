import io
import json
from typing import Any

import fastavro
import pytest

from millrace.avro.events import EventDeserializer, EventSerializer, binlog_event_schema
from millrace.avro.schemas import load_schema, schema_folder
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events import IntvarEvent, QueryEvent, StatusVariables, TableMapEvent, XidEvent
from millrace.binlog.header import EventHeader
from millrace.binlog.transaction import TransactionEnd, TransactionStep

pytestmark = pytest.mark.usefixtures("either_codec")


SCHEMA = fastavro.parse_schema(binlog_event_schema())
STEP = TransactionStep("0-1-2", 3, begins=True, ends=TransactionEnd.XA_PREPARE, xid="X'61',X'',1")
HEADER = EventHeader(1700000000, 16, 4_000_000_000, 31, 4_294_967_295, 0x8020, b"extra")


def test_checked_in_schema_is_that_of_the_declarations() -> None:
    """After a change to the declarations: ``make generate``."""
    checked_in = json.loads((schema_folder() / "BinlogEvent.avsc").read_text(encoding="utf-8"))
    assert checked_in == binlog_event_schema()
    assert load_schema("BinlogEvent") == checked_in


def read(value: bytes) -> dict[str, object]:
    record = fastavro.schemaless_reader(io.BytesIO(value), SCHEMA, None, return_record_name=True)
    assert isinstance(record, dict)
    return record


def test_head() -> None:
    decoded = BinlogEvent(HEADER, XidEvent(5), b"\1\2\3\4", b"more")
    value = EventSerializer()(decoded, 2, "mysql-bin.000001", 1 << 33, 7, STEP, ("d", "t"), artificial=True)
    assert read(value) == {
        "log_file": "mysql-bin.000001",
        "position": 1 << 33,
        "sub_index": 7,
        "type": "XID_EVENT",
        "header": {
            "timestamp": 1700000000,
            "type_code": 16,
            "server_id": 4_000_000_000,
            "event_size": 31,
            "next_position": 4_294_967_295,
            "flags": 0x8020,
            "extra_headers": b"extra",
        },
        "checksum": b"\1\2\3\4",
        "artificial": True,
        "post_header_extra": b"more",
        "context": {
            "epoch": 2,
            "transaction": "0-1-2",
            "ordinal": 3,
            "begins": True,
            "ends": "xa prepare",
            "xid": "X'61',X'',1",
            "database": "d",
            "table": "t",
        },
        "event": ("millrace.XidEvent", {"xid": 5}),
    }
    record = EventDeserializer()(value)
    assert record.decoded == decoded
    assert (record.epoch, record.sub_index, record.artificial) == (2, 7, True)
    assert (record.transaction, record.ordinal, record.begins) == ("0-1-2", 3, True)
    assert (record.ends, record.xid) == (STEP.ends, STEP.xid)
    assert (record.database, record.table) == ("d", "t")


def bare(event: object) -> bytes:
    decoded = BinlogEvent(HEADER, event)  # type: ignore[arg-type]
    return EventSerializer()(decoded, 0, "f", 4, 0, TransactionStep(None, 0), None)


@pytest.mark.parametrize("value", [0, 63, 64, 8191, 8192, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_unsigned_integers_of_64_bits(value: int) -> None:
    record = bare(IntvarEvent(1, value))
    _, fields = read(record)["event"]  # type: ignore[misc]
    assert fields["value"] % (1 << 64) == value
    assert EventDeserializer()(record).event == IntvarEvent(1, value)


@pytest.mark.parametrize(
    ("name", "written"),
    [("orders", "orders"), ("größe", "größe"), ("caf\udce9", "caf\ufdd0é"), ("a\ufdd0b", "a\ufdd0\ufdd0b")],
)
def test_names_that_are_not_utf8(name: str, written: str) -> None:
    event = TableMapEvent(1, 1, name, "t", b"", b"", b"")
    record = bare(event)
    _, fields = read(record)["event"]  # type: ignore[misc]
    assert fields["database"] == written
    assert EventDeserializer()(record).event == event


def test_recurring_status_variables() -> None:
    serialize = EventSerializer()
    for flags in range(20):
        variables = StatusVariables(codes=b"\0", flags2=flags % 11)
        event = QueryEvent(1, 0, 0, variables, "d", b"BEGIN")
        value = serialize(BinlogEvent(HEADER, event), 0, "f", 4, 0, TransactionStep(None, 0), None)
        assert EventDeserializer()(value).event == event


def test_records_of_several_schemas_one_after_the_other() -> None:
    ours, other = binlog_event_schema(), binlog_event_schema()
    other["fields"].append({"name": "later", "type": "string"})
    schemas = {1: ours, 2: other, 3: {**ours, "doc": "spelled otherwise"}}

    class Registry:
        def schema(self, schema_id: int) -> dict[str, Any]:
            return schemas[schema_id]

    deserialize = EventDeserializer(Registry())  # type: ignore[arg-type]  # all that is asked of it
    for xid, schema_id in enumerate((1, 1, 2, 1, 3, 2, 2, 3, 1)):
        body = bare(XidEvent(xid)) + (b"\x08more" if schema_id == 2 else b"")
        assert deserialize(b"\0" + schema_id.to_bytes(4, "big") + body).event == XidEvent(xid)


def test_a_damaged_record_of_another_version() -> None:
    with pytest.raises(BinlogError) as caught:
        EventDeserializer()._other_version(bytes(5) + bare(XidEvent(5))[:-3], SCHEMA)
    assert str(caught.value) == "not a record of BinlogEvent: it is cut or damaged"


def told(deserialize: EventDeserializer, value: bytes) -> str:
    with pytest.raises(BinlogError) as caught:
        _ = deserialize(value).event
    return str(caught.value)


def test_damaged_records() -> None:
    value = bare(XidEvent(5))
    found = {told(EventDeserializer(), value[:size]) for size in range(len(value))}
    assert {text for text in found if not text.startswith("a value of ")} == {
        "not a record of BinlogEvent: it ends in mid-head",
        "not a record of BinlogEvent: it is cut or damaged",
    }
    no_text = value.replace(b"\x02f", b"\x02\xff", 1)
    assert told(EventDeserializer(), no_text).startswith(
        "not a record of BinlogEvent: 'utf-8' codec can't decode"
    )
    with pytest.raises(BinlogError, match="1 bytes are left over"):
        _ = EventDeserializer()(value + b"\0").event
