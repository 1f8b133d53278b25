"""Events of group replication: TRANSACTION_CONTEXT_EVENT (36), VIEW_CHANGE_EVENT (37).

Both live in the group's own channels; VIEW_CHANGE is logged as well. Format: MySQL's
``libs/mysql/binlog/event/control_events.h``.
"""

from typing import Annotated, Self

from millrace.binlog.declaration import (
    Event,
    body,
    event,
    item,
    post_header,
    read_structures,
    structure,
    write_structures,
)
from millrace.binlog.errors import TrailingBytesError
from millrace.binlog.fields import (
    U8,
    U32,
    U64,
    Bytes32,
    Counted,
    PaddedText40,
    RestText,
    SizedBytes16,
    decode_text,
    encode_text,
    truncated,
)
from millrace.binlog.grammar import Role
from millrace.binlog.types import EventType

__all__ = ["CertificationItem", "TransactionContextEvent", "ViewChangeEvent", "WriteSetItem"]


@structure
class WriteSetItem:
    """A hash of a row that the transaction wrote or read, as bytes after their length (uint16)."""

    value: SizedBytes16 = item()


@event(EventType.TRANSACTION_CONTEXT_EVENT, role=Role.BETWEEN, post_header_lengths=(18,))
class TransactionContextEvent(Event):
    """What a member must know to certify a transaction.

    The lengths of ``server_uuid`` and ``snapshot_version`` and the counts of both sets stand in the
    post-header.
    """

    thread_id: U32 = post_header()
    gtid_specified: U8 = post_header()
    server_uuid: RestText = body()
    snapshot_version: Bytes32 = body()
    write_set: tuple[WriteSetItem, ...] = body()
    read_set: tuple[WriteSetItem, ...] = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        uuid_at = offset + 18
        if uuid_at > end:
            raise truncated("post-header", 18, offset, end)
        version_size, written, read = (
            int.from_bytes(data[at : at + 4], "little") for at in range(offset + 6, uuid_at, 4)
        )
        version_at = uuid_at + data[offset]
        at = version_at + version_size
        if at > end:
            raise truncated("server_uuid, snapshot_version", at - uuid_at, uuid_at, end)
        write_set, at_read = read_structures(WriteSetItem, written, data, at, end)
        read_set, after = read_structures(WriteSetItem, read, data, at_read, end)
        if after != end:
            raise TrailingBytesError(f"{end - after} bytes are left over after the read set")
        return cls(
            int.from_bytes(data[offset + 1 : offset + 5], "little"),
            data[offset + 5],
            decode_text(data[uuid_at:version_at]),
            data[version_at:at],
            write_set,
            read_set,
        )

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        server_uuid = encode_text(self.server_uuid)
        return b"".join(
            (
                len(server_uuid).to_bytes(1, "little"),
                self.thread_id.to_bytes(4, "little"),
                self.gtid_specified.to_bytes(1, "little"),
                len(self.snapshot_version).to_bytes(4, "little"),
                len(self.write_set).to_bytes(4, "little"),
                len(self.read_set).to_bytes(4, "little"),
                server_uuid,
                self.snapshot_version,
                write_structures(self.write_set),
                write_structures(self.read_set),
            )
        )


@structure
class CertificationItem:
    """One entry of the certification database: key after a uint16, value after a uint32."""

    key: SizedBytes16 = item()
    value: Bytes32 = item()


@event(EventType.VIEW_CHANGE_EVENT, role=Role.PART, post_header_lengths=(52,))
class ViewChangeEvent(Event):
    """The membership of the group changed; ``view_id`` takes 40 bytes, filled up with zeros."""

    view_id: PaddedText40 = post_header()
    seq_number: U64 = post_header()
    certification_info: Annotated[tuple[CertificationItem, ...], Counted(U32)] = body()
