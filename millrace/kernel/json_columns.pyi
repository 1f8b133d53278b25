from typing import Any

def json_objects(
    columns: list[tuple[int, int, bytes, Any, Any, Any, int]], rows: int, valid: Any, first: int
) -> tuple[bytes, bytes] | None: ...
