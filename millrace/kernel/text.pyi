from collections.abc import Callable, Sequence
from typing import TypeAlias

TextColumn: TypeAlias = tuple[int, int, int, int, int, int, bytes, bytes, bytes]
TextImage: TypeAlias = tuple[Sequence[bool], bytes, bytes]

class RowText:
    def __init__(
        self,
        columns: Sequence[TextColumn],
        converters: Sequence[Callable[[bytes], bytes]],
        escapes: Sequence[bytes],
        before: TextImage | None,
        after: TextImage | None,
        between: bytes,
        only_check: bool,
    ) -> None: ...
    def write(self, rows: bytes, position: int, enough: int) -> tuple[bytes, int, int]: ...
