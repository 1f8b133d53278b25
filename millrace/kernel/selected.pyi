from collections.abc import Callable, Sequence
from typing import TypeAlias

Field: TypeAlias = tuple[int, int, int, int]

class SelectedImages:
    def __init__(self, fields: Sequence[Field], writers: Sequence[Callable[[bytes], bytes]]) -> None: ...
    def take(self, data: bytes | bytearray, sequence: int, most: int) -> tuple[bytes, int, int, int]: ...
