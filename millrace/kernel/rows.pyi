from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

Plan: TypeAlias = tuple[int, int, int, int, int, tuple[bytes, ...]]
Frame: TypeAlias = tuple[bytes, bytes, bytes]

def pack(form: str, *values: bytes | int | str | None) -> bytes: ...

class RowBlock:
    prefix: bytes
    size: int
    def __init__(self, prefix: bytes, timestamp: int = 0) -> None: ...
    def timestamps(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def append(self, record: tuple[bytes | None, bytes]) -> None: ...
    def clear(self) -> None: ...

class RowsKernel:
    def __init__(
        self,
        plans: Sequence[Plan],
        converters: Sequence[Callable[[bytes], bytes] | None],
        before: Sequence[bool] | None,
        after: Sequence[bool] | None,
        key: Sequence[tuple[int, bool]] | None,
        key_prefix: bytes | None,
        value_prefix: bytes,
        record_limit: int,
    ) -> None: ...
    def write(
        self,
        rows: bytes,
        records: list[tuple[bytes | None, bytes]] | RowBlock,
        frames: tuple[Frame, ...],
        total_order: int,
        collection_order: int,
        slowly: Callable[[int, int, int], None],
    ) -> bool: ...
