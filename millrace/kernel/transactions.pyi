from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from millrace.binlog.events import TableMapEvent
from millrace.kernel.events import OutputRecord
from millrace.kernel.records import RecordBlock
from millrace.kernel.rows import RowsKernel

def murmur2(data: bytes) -> int: ...

class TableWriter:
    def __init__(
        self,
        name: tuple[str, str],
        label: bytes,
        origin: bytes,
        place: bytes,
        schema_source: bytes,
        topic: str,
        partitions: int,
        prefix_size: int,
        images: Callable[[int, bytes, bytes], tuple[RowsKernel, bytes, bytes, bytes] | None],
        block_prefix: bytes | None,
    ) -> None: ...

FindTable: TypeAlias = Callable[[TableMapEvent, int, str, int], tuple[TableWriter | None, bool] | None]

class TransactionWriter:
    groups: dict[tuple[str, int], list[OutputRecord]]
    count: int
    size: int
    rows: int
    transactions: int
    offset: int
    epoch: int
    def __init__(
        self,
        plans: list[tuple[int, int, bytes]],
        read: Callable[[bytes], Any],
        topic: str,
        begin: bytes,
        end: bytes,
        selects_server: Callable[[int], bool] | None,
        new_block: Callable[[], RecordBlock] | None,
    ) -> None: ...
    def take(
        self,
        records: Sequence[Any],
        index: int,
        prefix: bytes,
        now_us: int,
        most_records: int,
        most_bytes: int,
        limit: int,
        find_table: FindTable,
    ) -> int: ...
    def take_rows(
        self,
        records: Sequence[Any],
        index: int,
        prefix: bytes,
        now_us: int,
        most_records: int,
        most_bytes: int,
        limit: int,
        find_table: FindTable,
        transaction: tuple[bytes, bool, int, int | None],
        table_maps: dict[int, tuple[TableMapEvent, bytes]],
        counts: dict[tuple[str, str], int],
    ) -> int: ...
