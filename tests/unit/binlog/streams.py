"""Streams that behave as files seldom do."""

import io

__all__ = ["Trickle"]


class Trickle(io.BytesIO):
    """Gives at most 100 bytes at a time, as a pipe may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(100 if size is None or size < 0 else min(size, 100))
