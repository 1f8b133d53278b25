"""Row images of servers in all forms of ``binlog_row_image``: absent is not NULL, and the tables come out."""

from typing import Any

import pytest

from millrace.binlog import ABSENT, RowImages, RowsEvent, StreamState, decode_file, resolve_columns
from millrace.local import MariaDB, MySQL

STATEMENTS = (
    "INSERT INTO images.t (id, a, b, c) VALUES (1, 10, 'text', 'x'), (2, 20, NULL, 'y'), (3, NULL, 'z', '')",
    "INSERT INTO images.t (id, a) VALUES (4, 40)",
    "UPDATE images.t SET a = NULL WHERE id = 1",
    "UPDATE images.t SET b = NULL, c = 'z' WHERE id = 1",
    "UPDATE images.t SET b = 'new' WHERE id = 2",
    "UPDATE images.t SET id = 5, a = 50 WHERE id = 3",
    "UPDATE images.t SET a = 41 WHERE id = 4",
    "DELETE FROM images.t WHERE id = 2",
)
NULL_BY_DEFAULT = (None, None, None, None)


def fold(
    table: dict[int, tuple[Any, ...]], before: tuple[Any, ...] | None, after: tuple[Any, ...] | None
) -> None:
    """Apply a row to what is known of its table; a column that is absent in an image stays as it was."""
    old = NULL_BY_DEFAULT
    if before is not None:
        old = table.pop(before[0])
        assert all(seen is ABSENT or seen == known for seen, known in zip(before, old, strict=True))
    if after is not None:
        new = tuple(known if seen is ABSENT else seen for seen, known in zip(after, old, strict=True))
        table[new[0]] = new


@pytest.mark.parametrize("image", ["FULL", "MINIMAL", "NOBLOB", "FULL_NODUP"])
def test_row_images(database: MySQL | MariaDB, image: str) -> None:
    if image == "FULL_NODUP" and isinstance(database, MySQL):
        pytest.skip("MySQL has no FULL_NODUP")
    database.execute("DROP DATABASE IF EXISTS images", "CREATE DATABASE images")
    database.execute(
        "CREATE TABLE images.t (id INT PRIMARY KEY, a INT, b TEXT, c VARCHAR(20))", "FLUSH BINARY LOGS"
    )
    log = database.binlog_files[-1]
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION binlog_row_image = {image}")
        for statement in STATEMENTS:
            cursor.execute(statement)
        cursor.execute("SELECT id, a, b, c FROM images.t ORDER BY id")
        expected = list(cursor.fetchall())
        cursor.execute("FLUSH BINARY LOGS")
    table: dict[int, tuple[Any, ...]] = {}
    absent = rows = 0
    state = StreamState()
    with log.open("rb") as stream:
        for _, decoded in decode_file(stream, log.name, state=state):
            event = decoded.event
            if not isinstance(event, RowsEvent) or decoded.table_map is None:
                continue
            assert state.format is not None
            resolved = resolve_columns(decoded.table_map, server_version=state.format.origin.server_version)
            images = RowImages.of_event(resolved.columns, event)
            for before, after in images.decode(event.rows):
                fold(table, before, after)
                absent += sum(
                    value is ABSENT for side in (before, after) if side is not None for value in side
                )
                rows += 1
            filled = images.null_fill(event.rows)
            assert images.encode(images.decode(event.rows), null_fill=filled) == event.rows
    assert rows == 10
    assert [table[key] for key in sorted(table)] == expected
    assert (absent == 0) == (image == "FULL")
