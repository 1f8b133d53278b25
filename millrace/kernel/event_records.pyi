from collections.abc import Callable, Mapping
from typing import Any

from millrace.binlog.transaction import TransactionEnd

class RecordReader:
    def __init__(
        self,
        declared: type,
        kinds: list[int],
        readers: list[Callable[[bytes, int], tuple[Any, int]] | None],
        read_text: Callable[[bytes], str],
    ) -> None: ...

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
