"""LIKE in conditions on rows selects what it selects on a server, for patterns that are made at random."""

import random

from millrace.local import MariaDB, MySQL
from millrace.selection.rows import ColumnKind, Condition

SIGNS = ("a", "b", "%", "_", "\\%", "\\_", "\\\\", "\\\\\\\\", "\\a", "''", "\\n", "é", "😀")
TEXTS = ("a", "b", "%", "_", "\\", "'", "\n", "é", "😀")


def test_like(database: MySQL | MariaDB) -> None:
    chosen = random.Random(43)
    cases = []
    for length in range(7):
        for _ in range(150):
            signs = chosen.choices(SIGNS, k=length)
            fitting = ["".join(chosen.choices(TEXTS, k=2)) if sign == "%" else sign[-1] for sign in signs]
            cases.append(("".join(signs), "".join(fitting)))
            cases.append(("".join(signs), "".join(chosen.choices(TEXTS, k=chosen.randrange(7)))))
    different = []
    counts = {True: 0, False: 0}
    with database.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        for pattern, text in cases:
            condition = f"v LIKE '{pattern}'"
            cursor.execute(
                f"SELECT {condition} FROM (SELECT CONVERT(0x{text.encode().hex() or '00'} USING utf8mb4) "
                "COLLATE utf8mb4_bin AS v) AS t"
                if text
                else f"SELECT '' LIKE '{pattern}'"
            )
            ((selected,),) = cursor.fetchall()
            counts[bool(selected)] += 1
            if Condition.parse(condition).bind({"v": ColumnKind.TEXT})({"v": text}) is not bool(selected):
                different.append((condition, text))
    assert different == []
    assert min(counts.values()) > 100
