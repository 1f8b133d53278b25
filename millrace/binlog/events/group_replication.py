"""Events of group replication: TRANSACTION_CONTEXT_EVENT (36), VIEW_CHANGE_EVENT (37).

Both live in the group's own channels; VIEW_CHANGE is logged as well. Format: MySQL's
``libs/mysql/binlog/event/control_events.h``.
"""

from collections.abc import Callable
from typing import Any, Self

from millrace.binlog.declaration import Event, body, event, item, post_header, structure
from millrace.binlog.errors import EncodeError, TrailingBytesError
from millrace.binlog.fields import (
    U8,
    U32,
    U64,
    Bytes32,
    RestBytes,
    RestText,
    decode_text,
    encode_text,
    truncated,
)
from millrace.binlog.grammar import Role
from millrace.binlog.types import EventType

__all__ = ["CertificationItem", "TransactionContextEvent", "ViewChangeEvent", "WriteSetItem"]


def _read_sized(data: bytes, offset: int, end: int, prefix_size: int) -> tuple[bytes, int]:
    """Read bytes after their length of ``prefix_size`` bytes."""
    start = offset + prefix_size
    after = start + int.from_bytes(data[offset:start], "little")
    if start > end or after > end:
        raise truncated("item", after - offset, offset, end)
    return data[start:after], after


def _read_many(
    count: int, read: Callable[[bytes, int, int], tuple[Any, int]], data: bytes, offset: int, end: int
) -> tuple[tuple[Any, ...], int]:
    values = []
    for _ in range(count):
        value, offset = read(data, offset, end)
        values.append(value)
    return tuple(values), offset


@structure
class WriteSetItem:
    """A hash of a row that the transaction wrote or read, as bytes after their length (uint16)."""

    value: RestBytes = item()

    @staticmethod
    def read(data: bytes, offset: int, end: int) -> "tuple[WriteSetItem, int]":
        """Read one item."""
        value, offset = _read_sized(data, offset, end, 2)
        return WriteSetItem(value), offset

    def write(self) -> bytes:
        """Write the item after its length."""
        return len(self.value).to_bytes(2, "little") + self.value


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
        write_set, at_read = _read_many(written, WriteSetItem.read, data, at, end)
        read_set, after = _read_many(read, WriteSetItem.read, data, at_read, end)
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
                *(entry.write() for entry in self.write_set),
                *(entry.write() for entry in self.read_set),
            )
        )


@structure
class CertificationItem:
    """One entry of the certification database: key after a uint16, value after a uint32."""

    key: RestBytes = item()
    value: RestBytes = item()

    @staticmethod
    def read(data: bytes, offset: int, end: int) -> "tuple[CertificationItem, int]":
        """Read key and value."""
        key, offset = _read_sized(data, offset, end, 2)
        value, offset = _read_sized(data, offset, end, 4)
        return CertificationItem(key, value), offset

    def write(self) -> bytes:
        """Write key and value, each after its length."""
        sizes = len(self.key).to_bytes(2, "little"), len(self.value).to_bytes(4, "little")
        return sizes[0] + self.key + sizes[1] + self.value


@event(EventType.VIEW_CHANGE_EVENT, role=Role.PART, post_header_lengths=(52,))
class ViewChangeEvent(Event):
    """The membership of the group changed; ``view_id`` takes 40 bytes, filled up with zeros."""

    view_id: RestText = post_header()
    seq_number: U64 = post_header()
    certification_info: tuple[CertificationItem, ...] = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        at = offset + 52
        if at > end:
            raise truncated("post-header", 52, offset, end)
        count = int.from_bytes(data[offset + 48 : at], "little")
        entries, after = _read_many(count, CertificationItem.read, data, at, end)
        if after != end:
            raise TrailingBytesError(f"{end - after} bytes are left over after the certification info")
        view_id = decode_text(data[offset : offset + 40].rstrip(b"\0"))
        return cls(view_id, int.from_bytes(data[offset + 40 : offset + 48], "little"), entries)

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        view_id = encode_text(self.view_id)
        if len(view_id) > 40:
            raise EncodeError(f"a view id has at most 40 bytes, not {len(view_id)}")
        return b"".join(
            (
                view_id.ljust(40, b"\0"),
                self.seq_number.to_bytes(8, "little"),
                len(self.certification_info).to_bytes(4, "little"),
                *(entry.write() for entry in self.certification_info),
            )
        )
