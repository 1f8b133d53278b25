"""Logs made event by event: transactions on tables with an integer key and a text."""

from contextlib import contextmanager

from millrace.binlog.columns import Column, ColumnType
from millrace.binlog.columns.column import LengthMetadata, NoMetadata
from millrace.binlog.columns.metadata import (
    DefaultCharset,
    OptionalMetadata,
    encode_optional_metadata,
)
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events import (
    DeleteRowsEvent,
    GtidLogEvent,
    PartialRowDataEvent,
    QueryEvent,
    StatusVariables,
    TableMapEvent,
    TransactionPayloadEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
    WriteRowsEventV1,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.header import EventHeader
from millrace.binlog.row_images import RowImages

COLUMNS = (
    Column(0, ColumnType.LONG, NoMetadata(), name="id", key_position=0),
    Column(1, ColumnType.VARCHAR, LengthMetadata(400), name="note", charset="utf8mb4"),
)
ALL = b"\x03"
SID = bytes(range(16))
UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"


class Log:
    """Writes events into an events topic, as a server would log them."""

    def __init__(self, topic, *, epoch=0, log_file="bin.000001", named=True, signs=True):
        self.topic = topic
        self.epoch = epoch
        self.log_file = log_file
        self.named = named
        self.signs = signs
        self.position = 4
        self.gno = 0
        self.ids = {}
        self._sub_index = 0
        """Of the next event, where it is inside a payload; else 0."""

    def event(self, event, size=100, *, flags=0, server_id=1, timestamp=None):
        header = EventHeader(
            1_700_000_000 + self.position if timestamp is None else timestamp,
            int(event.event_type),
            server_id,
            size,
            self.position + size,
            flags,
        )
        place = self.log_file, self.position, self._sub_index
        self.topic.add(BinlogEvent(header, event), self.epoch, *place)
        if self._sub_index:
            self._sub_index += 1
        else:
            self.position += size
        return self

    @contextmanager
    def payload(self, content=b""):
        """Let what is logged meanwhile be inside a payload, whose own record has none of it."""
        start = self.position
        self.event(TransactionPayloadEvent(0, 0, content), 300)
        self.position, end, self._sub_index = start, self.position, 1
        yield
        self.position, self._sub_index = end, 0

    def gtid(self, immediate=None, original=None):
        self.gno += 1
        return self.event(GtidLogEvent(1, SID, self.gno, 2, 0, 1, immediate, original))

    def query(self, text, database="shop", variables=None, *, thread=9, **header):
        variables = variables or StatusVariables()
        return self.event(QueryEvent(thread, 0, 0, variables, database, text.encode()), **header)

    def begin(self):
        return self.gtid().query("BEGIN")

    def commit(self):
        return self.event(XidEvent(1))

    def table_map(self, table, columns=2, database="shop", *, key=(0,)):
        self.ids.setdefault(table, 100 + len(self.ids))
        types = bytes((ColumnType.LONG, ColumnType.VARCHAR, ColumnType.LONG))[:columns]
        metadata = OptionalMetadata(
            signedness=b"\x00" if self.signs else None,
            default_charset=DefaultCharset(255),
            column_name=(b"id", b"note", b"more")[:columns] if self.named else None,
            simple_primary_key=(key or None) if self.named else None,
        )
        optional = encode_optional_metadata(metadata)
        event = TableMapEvent(
            self.ids[table], 1, database, table, types, (400).to_bytes(2, "little"), b"\x06", optional
        )
        return self.event(event)

    def rows(self, table, operation, *rows, end=True):
        before, after = (None, ALL) if operation is WriteRowsEvent else (ALL, ALL)
        if operation is DeleteRowsEvent:
            before, after = ALL, None
        images = RowImages(COLUMNS, before, after)
        flags = 1 if end else 0
        return self.event(
            operation(self.ids[table], flags, b"", 2, before or b"", after or b"", images.encode(rows))
        )

    def fragments(self, table, *rows, size=20, lost=None):
        """Insert rows by one event that MariaDB logs in fragments; the one numbered ``lost`` is missing."""
        self.table_map(table)
        images = RowImages(COLUMNS, None, ALL).encode((None, row) for row in rows)
        event = WriteRowsEventV1(self.ids[table], 1, b"", 2, b"", ALL, images)
        whole = EventHeader(1, 23, 1, 0).encode() + event.encode_fields(8)
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        for number, piece in enumerate(pieces, 1):
            if number != lost:
                told = len(whole) if number == 1 else None
                self.event(PartialRowDataEvent(len(pieces), number, number == 1, told, piece))
        return self

    def insert(self, table, *rows, end=True, database="shop"):
        return self.table_map(table, database=database).rows(
            table, WriteRowsEvent, *((None, row) for row in rows), end=end
        )

    def update(self, table, *pairs):
        return self.table_map(table).rows(table, UpdateRowsEvent, *pairs)

    def delete(self, table, *rows):
        return self.table_map(table).rows(table, DeleteRowsEvent, *((row, None) for row in rows))

    def xa_start(self, name):
        return self.gtid().query(f"XA START X'{name.encode().hex()}',X'',1")

    def xa_prepare(self, name):
        self.query(f"XA END X'{name.encode().hex()}',X'',1")
        return self.event(XaPrepareLogEvent(0, 1, name.encode(), b""))

    def xa(self, verb, name):
        return self.gtid().query(f"XA {verb} X'{name.encode().hex()}',X'',1")
