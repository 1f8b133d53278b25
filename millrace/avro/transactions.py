"""What the kernel for transactions needs to know of events and tables, as numbers and bytes.

:mod:`millrace.kernel.transactions` has the meaning of the numbers; ``make generate`` copies them there.
What has no use is left to the reference, and its transaction with it.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from millrace import kernel
from millrace.avro.binary import string
from millrace.avro.events import event_branches
from millrace.avro.plans import field_kinds
from millrace.avro.row_records import RowEncoder, not_of_snapshot
from millrace.binlog.declaration import EVENTS, Event, declared_fields
from millrace.binlog.events import (
    AnnotateRowsEvent,
    QueryEvent,
    RowsQueryLogEvent,
    TableMapEvent,
)
from millrace.binlog.events.rows import PartialUpdateRowsEvent, PlainRowsEvent, RowsOperation
from millrace.binlog.grammar import GTIDS, SILENT

if TYPE_CHECKING:
    from millrace.kernel.records import RecordBlock
    from millrace.kernel.transactions import TableWriter, TransactionWriter

UsePlan = tuple[int, int, bytes]
"""Use, branch of the union of events, kinds of the event's fields; of a GTID those up to the commit time."""

_COMMITTED: Final = "original_commit_timestamp"

Images = Callable[[int, bytes, bytes], Any]
"""From type code and the bitmaps of both images to what writes such rows; see TableWriter."""


class Use(IntEnum):
    """What the rows of a transaction need an event for."""

    NONE = 0
    GTID = 1
    SILENT = 2
    QUERY = 3
    TABLE_MAP = 4
    COMMENT = 5
    WRITE = 6
    UPDATE = 7
    DELETE = 8


_USES_OF_ROLES: Final = {
    **dict.fromkeys(GTIDS, Use.GTID),
    **dict.fromkeys(SILENT - GTIDS, Use.SILENT),
}
_USES: Final[dict[type[Event], Use]] = {
    QueryEvent: Use.QUERY,
    TableMapEvent: Use.TABLE_MAP,
    RowsQueryLogEvent: Use.COMMENT,
    AnnotateRowsEvent: Use.COMMENT,
}
_OPERATIONS: Final = {
    RowsOperation.WRITE: Use.WRITE,
    RowsOperation.UPDATE: Use.UPDATE,
    RowsOperation.DELETE: Use.DELETE,
}


def _use(event_class: type[Event]) -> Use:
    if issubclass(event_class, PlainRowsEvent) and not issubclass(event_class, PartialUpdateRowsEvent):
        return _OPERATIONS[event_class.operation]
    return _USES.get(event_class) or _USES_OF_ROLES.get(event_class.role, Use.NONE)


def use_plans() -> list[UsePlan]:
    """Make the plans of all events, by type code."""
    branches = event_branches()
    plans: list[UsePlan] = [(Use.NONE, 0, b"")] * 256
    for code, declaration in EVENTS.items():
        use = _use(declaration.event_class)
        if use is not Use.NONE:
            kinds, _ = field_kinds(declaration.event_class, lambda _: None)
            if use is Use.GTID:
                del kinds[_fields_to_commit(declaration.event_class) :]
            plans[code] = use, branches[declaration.event_class], bytes(kinds)
    return plans


def _fields_to_commit(event_class: type[Event]) -> int:
    """Count the fields up to the time of the commit; 0 where an event has none."""
    names = [field.name for field in declared_fields(event_class)]
    return names.index(_COMMITTED) + 1 if _COMMITTED in names else 0


def transaction_writer(
    topic: str,
    begin: bytes,
    end: bytes,
    read: Callable[[bytes], Event],
    selects_server: Callable[[int], bool] | None,
    *,
    new_block: "Callable[[], RecordBlock] | None" = None,
) -> "TransactionWriter | None":
    """Return the kernel's writer of whole transactions; None where there is no kernel.

    ``begin`` and ``end`` stand in front of the records of ``topic``, ``read`` reads the event of a record.
    ``selects_server`` tells of a server_id whether its rows are published; None where all are.
    With ``new_block`` the records of ``topic`` are in blocks.
    """
    if not kernel.has("transactions"):
        return None
    from millrace.kernel.transactions import TransactionWriter  # noqa: PLC0415 - only where it is built

    return TransactionWriter(use_plans(), read, topic, begin, end, selects_server, new_block)


def table_writer(
    encoder: RowEncoder,
    name: tuple[str, str],
    schema_source: str,
    *,
    topic: str,
    partitions: int,
    images: Images,
) -> "TableWriter":
    """Return what the kernel needs to know of a table that is bound."""
    from millrace.kernel.transactions import TableWriter  # noqa: PLC0415 - only where it is built

    return TableWriter(
        name,
        string(".".join(name)),
        encoder.origin,
        not_of_snapshot() + encoder.place,
        string(schema_source),
        topic,
        partitions,
        encoder.key_prefix_size,
        images,
        encoder.block_prefix,
    )
