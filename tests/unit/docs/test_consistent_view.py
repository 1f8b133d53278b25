"""The view of docs/examples shows the states of a database, however its topics are read."""

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from tests.shared import load_script

TABLES = ("shop.a", "shop.b", "shop.c")


@dataclass
class Record:
    """What the view asks of a message of confluent_kafka, and its value."""

    place: tuple[str, int]
    record_key: bytes
    value: dict[str, Any] | None
    record_headers: list[tuple[str, bytes]] | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def key(self) -> bytes:
        return bytes(5) + self.record_key

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.record_headers


class Database:
    """Makes transactions at random: their records by partition, and the tables after each."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows: dict[str, dict[bytes, Any]] = {table: {} for table in TABLES}
        self.partitions: dict[tuple[str, int], list[Record]] = {}
        self.states: dict[str, Any] = {}
        self.position = 0

    def state(self, tables: tuple[str, ...]) -> dict[str, Any]:
        return {table: dict(self.rows[table]) for table in tables}

    def commit(self, selected: tuple[str, ...], *, redriven: bool = False) -> None:
        name, counts = f"uuid:{len(self.states) + 1}", Counter[str]()
        self.position += 100
        place = {"epoch": 0, "file": "bin.000001", "pos": self.position}
        headers = [("redriven", b"1")] if redriven else None
        begin = {"status": "BEGIN", "id": name, "event_count": None, "data_collections": None, **place}
        self.put("transactions", 0, b"", begin, headers)
        for order in range(1, self.rng.randrange(1, 8)):
            table = self.rng.choice(TABLES)
            key = self.rng.choice([b"1", b"2", b"3", b"4"])
            after = self.rng.choice([None, {"v": self.rng.random()}])
            counts[table] += 1
            database, name_of_table = table.split(".")
            value = {
                "op": "d" if after is None else "u",
                "after": after,
                "source": {"db": database, "table": name_of_table, **place},
                "transaction": {"id": name, "total_order": order},
            }
            self.put(table, int(key) % (1 + TABLES.index(table)), key, value, headers)
            if after is None:
                self.rows[table].pop(key, None)
                self.put(table, int(key) % (1 + TABLES.index(table)), key, None, headers)
            else:
                self.rows[table][key] = after
        collections = [{"data_collection": table, "event_count": count} for table, count in counts.items()]
        end = {"status": "END", "id": name, "data_collections": collections or None, **place}
        self.put("transactions", 0, b"", end, headers)
        self.states[name] = self.state(selected)

    def put(self, topic: str, partition: int, key: bytes, value: Any, headers: Any) -> None:
        records = self.partitions.setdefault((topic, partition), [])
        records.append(Record((topic, partition), key, value, headers))


@pytest.mark.parametrize("seed", range(40))
def test_every_state_is_one_of_the_database(seed: int) -> None:
    rng = random.Random(seed)
    database = Database(rng)
    selected = TABLES[: 1 + seed % 3]
    for _ in range(30):
        database.commit(selected, redriven=rng.random() < 0.1)
    partitions = [
        list(records)
        for (topic, _), records in database.partitions.items()
        if topic in {*selected, "transactions"}
    ]
    view, shown = load_script("docs/examples/view.py").View(selected), {}
    while any(partitions):
        partition = rng.choice([one for one in partitions if one])
        for record in [partition.pop(0) for _ in range(min(len(partition), rng.randrange(1, 9)))]:
            view.add(record, record.value)
        for transaction in view.transactions():
            shown[transaction] = {table: dict(rows) for table, rows in view.rows.items()}
    assert shown == database.states
    assert list(shown) == list(database.states)
    assert not any(view.waiting.values())
