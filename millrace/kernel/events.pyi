from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from millrace.binlog.declaration import Event
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.header import EventHeader
from millrace.binlog.state import LogFormat, StreamState
from millrace.binlog.transaction import Standing, TransactionEnd

OutputRecord: TypeAlias = tuple[bytes | None, bytes | None, int, Sequence[tuple[str, bytes]] | None]
"""As millrace.stage has it."""

class EventRecordWriter:
    taken_bytes: int
    written_bytes: int
    def __init__(
        self,
        prefix: bytes,
        plans: Callable[[LogFormat], Sequence[Any]],
        variables: list[tuple[int, list[tuple[int, int, int, int, int]]]],
        write_text: Callable[[str], bytes],
        write_table_map: Callable[[Any], bytes],
        write_variables: Callable[[bytes], bytes],
    ) -> None: ...
    def standing(self) -> Standing: ...
    def take(
        self,
        records: list[Any],
        index: int,
        head: bytes,
        scope: tuple[int, str],
        stream: StreamState,
        standing: Standing,
        limit: int,
        most: int,
        out: list[OutputRecord],
    ) -> int: ...

class RawTaker:
    position: int
    last_ms: int
    size: int
    mode: int
    open_gtid: Any
    ended: bool
    finished: list[Any]
    def __init__(self, roles: bytes, left: AbstractSet[int]) -> None: ...
    def take(
        self,
        pieces: list[Any],
        index: int,
        position: int,
        zero_allowed: bool,
        last_ms: int,
        now_ms: int,
        limit: int,
        checksums: bool,
        prefix: bytes,
        mode: int,
        open_gtid: Any,
        stop_at_end: bool,
        out: list[OutputRecord],
    ) -> int: ...

class RecordReader:
    def __init__(
        self,
        declared: type,
        kinds: list[int],
        readers: list[Callable[[bytes, int], tuple[Any, int]] | None],
        read_text: Callable[[bytes], str],
    ) -> None: ...

class EventHead:
    log_file: str
    position: int
    sub_index: int
    timestamp: int
    type_code: int
    server_id: int
    checksum: bytes | None
    artificial: bool
    post_header_extra: bytes
    epoch: int
    transaction: str | None
    ordinal: int
    begins: bool
    ends: TransactionEnd | None
    xid: str | None
    database: str | None
    table: str | None
    @property
    def header(self) -> EventHeader: ...
    @property
    def event(self) -> Event: ...
    @property
    def decoded(self) -> BinlogEvent: ...

class HeadReader:
    def __init__(
        self,
        reference: Callable[[bytes, int], Any],
        readers: list[RecordReader],
        read_text: Callable[[bytes], str],
        ends: Mapping[str, TransactionEnd],
        repeated: frozenset[int],
        header_class: type,
        decoded_class: type,
    ) -> None: ...
    def __call__(self, value: bytes, offset: int) -> Any: ...
