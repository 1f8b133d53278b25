from typing import Any, TypeVar

_P = TypeVar("_P", bound=tuple[Any, ...])

def take_events(
    buffer: bytearray, start: int, end: int, sequence: int, piece: type[_P], pieces: list[_P]
) -> tuple[int, int]: ...
