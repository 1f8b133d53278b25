from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from millrace.binlog.state import LogFormat, StreamState
from millrace.binlog.transaction import Standing
from millrace.kernel.records import RecordBlock

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
        records: Sequence[Any],
        index: int,
        head: bytes,
        scope: tuple[int, str],
        stream: StreamState,
        standing: Standing,
        limit: int,
        most: int,
        made: list[OutputRecord] | RecordBlock,
    ) -> int: ...

class LogRecordMaker:
    gtid: str | None
    def __init__(
        self, record: type[tuple[Any, ...]], plans: Callable[[LogFormat], Sequence[Any]]
    ) -> None: ...
    def standing(self) -> Standing: ...
    def take(
        self,
        events: list[Any],
        index: int,
        most: int,
        path: str,
        file: str,
        stream: StreamState,
        standing: Standing,
        gtid: str | None,
    ) -> list[Any]: ...

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
