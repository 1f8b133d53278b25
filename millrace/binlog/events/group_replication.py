"""Events of group replication: TRANSACTION_CONTEXT_EVENT (36), VIEW_CHANGE_EVENT (37).

Both live in the group's own channels; VIEW_CHANGE is logged as well. Format: MySQL's
``libs/mysql/binlog/event/control_events.h``.
"""

from typing import Annotated, ClassVar

from millrace.binlog.declaration import Event, body, event, item, post_header, structure
from millrace.binlog.fields import (
    U8,
    U32,
    U64,
    Bytes32,
    Counted,
    PaddedText40,
    RestBytes,
    RestText,
    SizedBytes16,
)
from millrace.binlog.grammar import Role

__all__ = [
    "CertificationItem",
    "TransactionContextEvent",
    "ViewChangeEvent",
    "WriteSetItem",
]


@structure
class WriteSetItem:
    """A hash of a row that the transaction wrote or read, as bytes after their length (uint16)."""

    value: SizedBytes16 = item()


@event(36, role=Role.BETWEEN)
class TransactionContextEvent(Event):
    """What a member must know to certify a transaction."""

    server_uuid_length: ClassVar[U8] = post_header(length_of="server_uuid")
    thread_id: U32 = post_header()
    gtid_specified: U8 = post_header()
    snapshot_version_length: ClassVar[U32] = post_header(length_of="snapshot_version")
    write_set_count: ClassVar[U32] = post_header(length_of="write_set")
    read_set_count: ClassVar[U32] = post_header(length_of="read_set")
    server_uuid: RestText = body()
    snapshot_version: RestBytes = body()
    write_set: tuple[WriteSetItem, ...] = body()
    read_set: tuple[WriteSetItem, ...] = body()


@structure
class CertificationItem:
    """One entry of the certification database: key after a uint16, value after a uint32."""

    key: SizedBytes16 = item()
    value: Bytes32 = item()


@event(37, role=Role.PART, post_header_lengths=(52,))
class ViewChangeEvent(Event):
    """The membership of the group changed; ``view_id`` takes 40 bytes, filled up with zeros."""

    view_id: PaddedText40 = post_header()
    seq_number: U64 = post_header()
    certification_info: Annotated[tuple[CertificationItem, ...], Counted(U32)] = body()
