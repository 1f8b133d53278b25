"""What is said of rows and dead letters that contradict themselves."""

from types import SimpleNamespace

import pytest

from millrace.avro.service_state import RowsContext
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import PartialRowDataEvent, WriteRowsEvent, XidEvent
from millrace.binlog.row_images import RowImages
from millrace.rowmapper.dead_letters import WaitingRows
from millrace.rowmapper.logged_rows import locate_value, row_batches

from .logs import ALL, COLUMNS

ROWS = RowImages(COLUMNS, None, ALL).encode([(None, (1, "one"))])
EVENT = WriteRowsEvent(7, 1, b"", 2, b"", ALL, ROWS)
EMPTY = WriteRowsEvent(7, 1, b"", 2, b"", b"\x00", b"x")


def waiting(*events):
    """A dead letter that holds these events."""
    found = [SimpleNamespace(event=SimpleNamespace(event=event)) for event in events]
    return WaitingRows(found, RowsContext("t", None, None, None, None, 0, 0, ()))


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (lambda: waiting(XidEvent(1)).table_map, "a dead letter has XidEvent instead of its table map"),
        (
            lambda: waiting(XidEvent(1), XidEvent(2)).rows_event(),
            "a dead letter has XidEvent instead of rows",
        ),
        (
            lambda: waiting(XidEvent(1), PartialRowDataEvent(2, 1, 1, 40, b"\xaa")).rows_event(),
            "a dead letter has only a part of its rows event",
        ),
        (
            lambda: list(row_batches(COLUMNS, EMPTY, [b"x"], 9)),
            "there are bytes of rows in which no column is present",
        ),
        (
            lambda: list(row_batches(COLUMNS, EVENT, [ROWS[:3], ROWS[3:-1]], 9)),
            f"a row image reaches past the end of the {len(ROWS) - 1} bytes of rows",
        ),
        (
            lambda: locate_value(COLUMNS, EVENT, [ROWS], (1, 1, 1)),
            "there is no value in row 1, image 1, column 1",
        ),
    ],
)
def test_the_text(cause, text):
    with pytest.raises(BinlogError) as caught:
        cause()
    assert caught.value.message == text
