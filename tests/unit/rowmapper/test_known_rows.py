"""Minimal images completed from known rows: never wrong, the same whatever is killed and lost meanwhile."""

import sqlite3
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.avro.catalog import CatalogEntry
from millrace.avro.records import deserialize
from millrace.avro.service_state import RowMapperState
from millrace.avro.snapshots import SnapshotChunk, SnapshotMerged
from millrace.binlog.columns import ABSENT
from millrace.binlog.columns.column import Column, LengthMetadata, NoMetadata
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.events import (
    AnnotateRowsEvent,
    DeleteRowsEvent,
    FormatDescriptionEvent,
    IncidentEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)
from millrace.binlog.row_images import RowImages
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import SourcePosition
from millrace.rowmapper.row_store import SqliteRowStore, open_row_store
from millrace.rowmapper.settings import RowsSettings
from millrace.rowmapper.snapshots import Changes, SnapshotMerger
from millrace.runtime.errors import UserError
from millrace.snapshot.images import SelectedTable
from tests.stages import CrashError

from .harness import EventsTopic, World
from .logs import Log
from .test_snapshots import Port, merge_after_all

TOPIC = "t.shop.m"
NAMES = ("id", "note", "more")
COLUMNS = (
    Column(0, ColumnType.LONG, NoMetadata(), name="id", key_position=0),
    Column(1, ColumnType.VARCHAR, LengthMetadata(400), name="note", charset="utf8mb4"),
    Column(2, ColumnType.LONG, NoMetadata(), name="more"),
)
ID, NOTE, MORE = 1, 2, 4
WHOLE = ID | NOTE | MORE


def definition(*, generated=None, key=True, position=0):
    columns = (
        ColumnDefinition(0, "id", "int(11)", nullable=False, key_position=0 if key else None),
        ColumnDefinition(1, "note", "varchar(100)", charset="utf8mb4"),
        ColumnDefinition(2, "more", "int(11)", generated=generated),
    )
    return CatalogEntry(0, "bin.000001", position, TableDefinition("shop", "m", columns, "InnoDB"), 1)


class MinimalLog(Log):
    """A server that logs what it likes of the columns of its table m."""

    def __init__(self, version="8.0.34"):
        super().__init__(EventsTopic())
        self.described(version)

    def described(self, version):
        """Write the format description of a server."""
        return self.event(FormatDescriptionEvent(4, version, 0, 19, bytes(40), 0))

    def image(self, bits, row):
        return tuple(value if bits >> at & 1 else ABSENT for at, value in enumerate(row))

    def change(self, operation, before, after, *rows):
        """Log rows, pairs of whole images, with the columns of two bitmaps."""
        self.table_map("m", 3)
        one, two = (None if bits is None else bytes((bits,)) for bits in (before, after))
        images = RowImages(COLUMNS, one, two).encode(
            tuple(
                None if bits is None else self.image(bits, row)
                for bits, row in zip((before, after), pair, strict=True)
            )
            for pair in rows
        )
        return self.event(operation(self.ids["m"], 1, b"", 3, one or b"", two or b"", images))

    def insert_m(self, *rows, bits=WHOLE):
        return self.change(WriteRowsEvent, None, bits, *((None, row) for row in rows))

    def update_m(self, *pairs, before=ID, after=NOTE):
        return self.change(UpdateRowsEvent, before, after, *pairs)

    def delete_m(self, *rows, bits=ID):
        return self.change(DeleteRowsEvent, bits, None, *((row, None) for row in rows))


def world(log, tmp_path, *, entry=None, **options):
    catalog = [definition() if entry is None else entry]
    return World(log.topic, catalog=catalog, store=tmp_path / "t.rows", **options)


def mapped(log, tmp_path, **options):
    """Return the world after a row mapper has read the log to its end."""
    made = world(log, tmp_path, **options)
    made.run()
    return made


def changes(made, topic=TOPIC):
    """Return op, images and what they lack of all rows."""
    return [
        (
            row["op"],
            row["before"] and tuple(row["before"][name] for name in NAMES),
            row["after"] and tuple(row["after"][name] for name in NAMES),
            row["before_missing"],
            row["after_missing"],
        )
        for _, row in made.read(topic)
    ]


def whole(op, before, after):
    return op, before, after, None, None


def test_what_is_known_completes_an_image(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 10), (2, "b", 20)).update_m(((1, "a", 10), (1, "c", 10))).commit()
    log.begin().update_m(((2, "b", 20), (2, "b", 21)), after=MORE).delete_m((1, "c", 10)).commit()
    assert changes(mapped(log, tmp_path)) == [
        whole("c", None, (1, "a", 10)),
        whole("c", None, (2, "b", 20)),
        whole("u", (1, "a", 10), (1, "c", 10)),
        whole("u", (2, "b", 20), (2, "b", 21)),
        whole("d", (1, "c", 10), None),
    ]


def updated(log):
    """Update with an image that has the key, or not, after what says which statement it was."""
    log.begin().insert_m((1, "a", 1), (2, "b", 2)).commit()
    log.begin().event(AnnotateRowsEvent(b"UPDATE m SET note = 'c'"))
    log.update_m(((1, "a", 1), (1, "c", 1))).commit()
    log.begin().event(AnnotateRowsEvent(b"REPLACE INTO m (id, note) VALUES (2, 'd')"))
    log.update_m(((2, "b", 2), (2, "d", None)), after=ID | NOTE).commit()
    log.begin().event(AnnotateRowsEvent(b"UPDATE m SET id = 3, note = 'e'"))
    log.update_m(((1, "c", 1), (3, "e", 1)), after=ID | NOTE).commit()
    return log.begin().update_m(((2, "d", None), (2, "f", None)), ((3, "e", 1), (3, "g", 1))).commit()


def test_updates_of_servers_that_do_not_tell_of_defaults(tmp_path):
    log = updated(MinimalLog("11.4.5-MariaDB"))
    assert changes(mapped(log, tmp_path))[2:] == [
        whole("u", (1, "a", 1), (1, "c", 1)),
        ("u", (2, "b", 2), (2, "d", None), None, ["more"]),
        whole("d", (1, "c", 1), None),
        ("c", None, (3, "e", None), None, ["more"]),
        ("u", (2, "d", None), (None, "f", None), ["more"], ["id", "more"]),
        ("u", (3, "e", None), (None, "g", None), ["more"], ["id", "more"]),
    ]


def test_what_is_not_known_stays_missing(tmp_path):
    log = MinimalLog()
    log.begin().update_m(((1, "a", 10), (1, "c", 10)), ((2, "b", 20), (2, "d", 20))).commit()
    log.begin().insert_m((3, None, 7), bits=ID | MORE).update_m(((3, None, 7), (3, "x", 7))).commit()
    log.begin().update_m(((1, "c", 10), (1, "e", 10)), ((3, "x", 7), (3, "y", 7))).commit()
    made = mapped(log, tmp_path)
    assert changes(made) == [
        ("u", (1, None, None), (1, "c", None), ["note", "more"], ["more"]),
        ("u", (2, None, None), (2, "d", None), ["note", "more"], ["more"]),
        ("c", None, (3, None, 7), None, ["note"]),
        ("u", (3, None, 7), (3, "x", 7), ["note"], None),
        ("u", (1, "c", None), (1, "e", None), ["more"], ["more"]),
        whole("u", (3, "x", 7), (3, "y", 7)),
    ]
    assert [row["source"]["row"] for _, row in made.read(TOPIC)] == [0, 1, 0, 0, 0, 1]


def test_keys_that_move_take_their_rows_with_them(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1), (2, "b", 2)).commit()
    log.begin().update_m(((2, "b", 2), (3, "b", 2)), ((1, "a", 1), (2, "a", 1)), after=ID).commit()
    log.begin().update_m(((2, "a", 1), (2, "z", 1)), ((3, "b", 2), (3, "z", 2))).commit()
    assert changes(mapped(log, tmp_path))[2:] == [
        whole("d", (2, "b", 2), None),
        whole("c", None, (3, "b", 2)),
        whole("d", (1, "a", 1), None),
        whole("c", None, (2, "a", 1)),
        whole("u", (2, "a", 1), (2, "z", 1)),
        whole("u", (3, "b", 2), (3, "z", 2)),
    ]


FORGETTING = [
    "TRUNCATE TABLE M",
    "ALTER TABLE m COMMENT 'x'",
    "RENAME TABLE n TO o, o TO m",
    "DROP DATABASE shop",
    "UPDATE other, m SET m.more = 0",
    "CALL p()",
    "REPAIR TABLE m",
]
"""Statements; and what loses events."""


@pytest.mark.parametrize("what", [*FORGETTING, b"gap", IncidentEvent(1, b"lost")])
def test_what_makes_it_forget(tmp_path, what):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1)).commit()
    if isinstance(what, bytes):
        log.topic.add_marker(what)
    elif isinstance(what, str):
        log.gtid().query(what)
    else:
        log.gtid().event(what)
    log.begin().update_m(((1, "a", 1), (1, "b", 1))).commit()
    made = mapped(log, tmp_path)
    assert [row[3] for row in changes(made) if row[0] == "u"] == [["note", "more"]]


@pytest.mark.parametrize(
    "statement", ["ANALYZE TABLE m", "GRANT SELECT ON shop.m TO u", "CREATE INDEX i ON m (more)"]
)
def test_others_do_not(tmp_path, statement):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1)).commit().gtid().query(statement)
    log.begin().update_m(((1, "a", 1), (1, "b", 1))).commit()
    assert changes(mapped(log, tmp_path))[-1] == whole("u", (1, "a", 1), (1, "b", 1))


def test_tables_of_a_transaction_that_was_cut_are_forgotten(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1)).commit().begin().update_m(((1, "a", 1), (1, "lost", 1)))
    log.begin().update_m(((1, "lost", 1), (1, "lost", 2)), after=MORE).commit()
    made = mapped(log, tmp_path)
    assert changes(made)[-1] == ("u", (1, None, None), (1, None, 2), ["note", "more"], ["note"])


def chunk_of(selected, *rows, low=0):
    images = [
        selected.image(tuple(None if value is None else str(value).encode() for value in row)) for row in rows
    ]
    where = (0, "bin.000001", low, "bin.000001", low + 10, 1234)
    table_map = selected.table_map.encode_fields(8)
    version = selected.server_version
    return SnapshotChunk(
        99, "shop", "m", True, 0, False, *where, version, table_map, len(rows), b"".join(images)
    )


@pytest.mark.parametrize("statement", [None, "shop.m", ""])
def test_a_snapshot_teaches_rows(tmp_path, statement):
    log = MinimalLog()
    log.begin().commit()
    made = world(log, tmp_path)
    stage = made.run()
    chunk = chunk_of(SelectedTable(definition().definition, mariadb=False), (1, "a", 1), (2, "b", 2))

    def find_changes(state, start, wanted, rows):
        (keys,) = wanted.values()
        keys.changed.add(sorted(keys.keys)[1])
        return Changes(touched=set() if statement is None else {statement})

    merger = SnapshotMerger(
        made.sink(stage),
        made.binder,
        Port(chunk),
        SnapshotMerged("one", 0),
        quarantine=stage.quarantine,
        known=stage.known,
        find_changes=find_changes,
        deserialize=partial(deserialize, made.registry),
    )
    far = RowMapperState(10**6), SourcePosition(0, "bin.000001", 10**6)
    for _ in merger.merge(lambda: far[0], lambda: far[1], idle=False):
        made.ledger.settle(stage)
    made.ledger.commit(stage)
    log.begin().update_m(((1, "a", 1), (1, "c", 1)), ((2, "b", 2), (2, "d", 2))).commit()
    made.run()
    one, two = changes(made)[-2:]
    assert one[3:] == ((None, None) if statement is None else (["note", "more"], ["more"]))
    assert two[3:] == (["note", "more"], ["more"])


def merge(made, chunk):
    """Publish a chunk after all events; give what is published."""
    stage = made.run()
    count = len(changes(made))
    merge_after_all(made, stage, chunk)
    return changes(made)[count:]


def selected():
    return SelectedTable(definition().definition, mariadb=False)


def test_rows_that_change_while_a_snapshot_reads_them_are_completed(tmp_path):
    """Before and after they are read; not where the row of the chunk may be another's."""
    log = MinimalLog()
    log.begin().update_m(((9, "z", 9), (9, "y", 9))).commit()
    low = log.position
    log.begin().update_m(((1, "a", 1), (1, "b", 1))).update_m(((2, "a", 2), (2, "a", 3)), after=MORE).commit()
    log.begin().update_m(((3, "c", 3), (4, "c", 3)), after=ID).insert_m((3, "new", 30)).commit()
    chunk = chunk_of(
        selected(), (1, "b", 1), (2, "a", 3), (3, "new", 30), (4, "c", 3), (5, "e", 5), (6, "f", 6), low=low
    )
    log.begin().update_m(((1, "b", 1), (1, "b", 7)), after=MORE).delete_m((5, "e", 5)).commit()
    made = world(log, tmp_path)
    assert sorted(row[2] for row in merge(made, chunk)) == [(2, "a", 3), (6, "f", 6)]
    log.begin().update_m(((2, "a", 3), (2, "x", 3)), ((4, "c", 3), (4, "x", 3))).commit()
    made.run()
    assert changes(made)[-2:] == [
        whole("u", (2, "a", 3), (2, "x", 3)),
        ("u", (4, None, None), (4, "x", None), ["note", "more"], ["more"]),
    ]


def test_generated_columns_are_never_taken_from_before(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1)).update_m(((1, "a", 1), (1, "b", 2))).delete_m((1, "b", 2)).commit()
    assert changes(mapped(log, tmp_path, entry=definition(generated="VIRTUAL")))[1:] == [
        ("u", (1, "a", 1), (1, "b", None), None, ["more"]),
        ("d", (1, "b", None), None, ["more"], None),
    ]


def test_an_image_that_contradicts_what_is_known_wins(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1)).commit()
    log.begin().update_m(((1, "other", 2), (1, "b", 2)), before=ID | NOTE).commit()
    made = world(log, tmp_path)
    made.run()
    assert changes(made)[-1] == ("u", (1, "other", None), (1, "b", None), ["more"], ["more"])


@pytest.mark.parametrize(
    "options", [{"entry": definition(key=False)}, {"entry": definition(position=10**6)}, {"complete": "o.%"}]
)
def test_tables_that_are_left_alone(tmp_path, options):
    log = MinimalLog()
    log.named = options.get("complete") is not None
    log.begin().insert_m((1, "a", 1)).update_m(((1, "a", 1), (1, "b", 1)), before=WHOLE).commit()
    made = mapped(log, tmp_path, **options)
    assert changes(made)[-1] == ("u", (1, "a", 1), (None, "b", None), None, ["id", "more"])
    assert list(SqliteRowStore(made.store).names()) == []


def test_a_table_that_is_not_followed_for_a_while_is_forgotten(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1)).commit()
    made = mapped(log, tmp_path)
    log.begin().update_m(((1, "a", 1), (1, "a", 2)), after=MORE).commit()
    every, others = made.settings, made.settings.rows.model_copy(update={"complete": "shop.other"})
    made.settings = every.model_copy(update={"rows": others})
    made.run()
    made.settings = every
    log.begin().update_m(((1, "a", 2), (1, "b", 2))).commit()
    made.run()
    assert changes(made)[-1][3:] == (["note", "more"], ["more"])


def test_rows_that_are_not_published_are_known(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1), (2, "b", 2)).commit()
    log.begin().update_m(((1, "a", 1), (1, "c", 1))).delete_m((2, "b", 2)).commit()
    made = mapped(log, tmp_path, selection={"replicate": {"ignore_operations": "shop.m=cd"}})
    assert changes(made) == [whole("u", (1, "a", 1), (1, "c", 1))]
    assert SqliteRowStore(made.store).get(("shop", "m"), b"\x02\x00\x00\x00") is None


def test_conditions_see_completed_rows(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1), (2, "b", 2)).commit()
    log.begin().update_m(((1, "a", 1), (1, "c", 1)), ((2, "b", 2), (2, "d", 2))).commit()
    assert changes(mapped(log, tmp_path, filter="shop.m: more = 2")) == [
        whole("c", None, (2, "b", 2)),
        whole("u", (2, "b", 2), (2, "d", 2)),
    ]


def test_a_completed_row_that_is_too_large_is_published_as_it_is(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a" * 300, 1), (2, "b", 2)).commit()
    log.begin().update_m(((1, "a" * 300, 1), (1, "a" * 300, 3)), after=MORE).commit()
    made = mapped(log, tmp_path, limit=560)
    assert changes(made)[-1] == ("u", (1, None, None), (None, None, 3), ["note", "more"], ["id", "note"])


def test_a_quarantined_table_is_forgotten(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1)).commit()
    log.begin().change(UpdateRowsEvent, NOTE, NOTE, ((1, "a", 1), (1, "b", 1))).commit()
    made = mapped(log, tmp_path)
    assert [table.name for table in made.state.quarantined] == ["shop.m"]
    assert list(SqliteRowStore(made.store).names()) == []


def test_settings_need_a_store(tmp_path):
    with pytest.raises(ValueError, match=r"MILLRACE_ROWS_STORE is missing: MILLRACE_ROWS_COMPLETE needs it"):
        RowsSettings(complete="shop.%")
    with pytest.raises(ValueError, match=r"'orders' is not DATABASE.TABLE"):
        RowsSettings(complete="shop.%, orders", store=tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    made = World(EventsTopic(), store=tmp_path / "file" / "rows")
    with pytest.raises(UserError, match=r"MILLRACE_ROWS_STORE is wrong: .*file cannot be made: File exists"):
        open_row_store(made.settings)


def test_a_store_cannot_be_shared(tmp_path):
    path = tmp_path / "rows"
    one, two = SqliteRowStore(path), SqliteRowStore(path)
    one.apply((), {("d", "t"): {b"k": b"v"}}, b"1")
    with pytest.raises(UserError, match=r"another process writes to .*rows: only one row mapper at a time"):
        two.apply((), {}, b"2")
    assert SqliteRowStore(path).state == b"1"


def test_forgotten_rows_are_deleted_little_by_little(tmp_path):
    path = tmp_path / "rows"
    store = SqliteRowStore(path)
    store.apply((), {("d", "t"): {b"%d" % number: b"v" for number in range(5000)}}, b"1")
    store.apply([("d", "t")], {("d", "t"): {b"1": b"w"}}, b"2")
    assert (store.get(("d", "t"), b"1"), store.get(("d", "t"), b"2")) == (b"w", None)
    count = sqlite3.connect(path).execute("SELECT count(*) FROM rows").fetchone
    assert count() == (3001,)
    for state in (b"3", b"4", b"5"):
        store.apply((), {}, state)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM rows").fetchone() == (1,)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM tables").fetchone() == (1,)


@pytest.mark.parametrize("damage", [b"no database", b"SQLite format 3\0" + bytes(200)])
def test_a_damaged_store_is_told_of(tmp_path, damage):
    path = tmp_path / "rows"
    path.write_bytes(damage)
    with pytest.raises(UserError, match=r"the store of rows .*rows cannot be used: .* delete a damaged one"):
        SqliteRowStore(path)


def test_events_that_are_gone_leave_nothing_known(tmp_path):
    log = MinimalLog()
    log.begin().insert_m((1, "a", 1)).commit()
    made = mapped(log, tmp_path)
    log.begin().insert_m((2, "b", 2)).commit()
    made.ledger.run(World.start(made), made.events.since(made.state.input_offset))
    made.oldest = made.state.input_offset
    made.store.unlink()
    log.begin().update_m(((1, "a", 1), (1, "c", 1)), ((2, "b", 2), (2, "d", 2))).commit()
    made.run()
    assert [row[4] for row in changes(made)[-2:]] == [["more"], ["more"]]


# -- a model ------------------------------------------------------------------------------------------------


class Server(MinimalLog):
    """Changes rows at random, and keeps what they truly are: ``truth`` has both images of each record."""

    def __init__(self, random):
        super().__init__()
        self.random = random
        self.named = random.random() < 0.5
        self.table = {}
        self.truth = []

    def work(self):
        for _ in range(self.random.randrange(1, 25)):
            self.random.choice([self.transaction] * 8 + [self.empty, self.alter, self.by_statement])()

    def work_on_rows(self):
        for _ in range(self.random.randrange(12)):
            self.random.choice([self.transaction] * 12 + [self.empty])()

    def transaction(self):
        before, count = dict(self.table), len(self.truth)
        self.begin()
        for _ in range(self.random.randrange(1, 4)):
            self.random.choice([self.new, self.change_some, self.change_some, self.shift, self.remove])()
        if self.random.random() < 0.15:
            self.query("ROLLBACK")
            self.table = before
            del self.truth[count:]
        else:
            self.commit()

    def subset(self, most=WHOLE):
        return self.random.randrange(WHOLE + 1) & most

    def new(self):
        bits = ID | self.subset()
        row = (
            self.random.randrange(12),
            self.text(bits & NOTE),
            self.random.randrange(9) if bits & MORE else 7,
        )
        if row[0] not in self.table:
            self.table[row[0]] = row
            self.truth.append((None, row))
            self.insert_m(row, bits=bits)

    def text(self, bits):
        return self.random.choice(["x", "long " * 20, "ä", None]) if bits else None

    def some(self):
        return self.random.sample(sorted(self.table), min(len(self.table), self.random.randrange(1, 4)))

    def change_some(self):
        bits = self.subset(NOTE | MORE)
        pairs = []
        for key in self.some():
            old = self.table[key]
            new = (
                key,
                self.text(True) if bits & NOTE else old[1],
                self.random.randrange(9) if bits & MORE else old[2],
            )
            pairs.append((old, new))
            self.table[key] = new
        self.log_updates(pairs, bits)

    def shift(self):
        """Add one to the keys from some key on, the highest first."""
        pairs = [(self.table.pop(key), key) for key in sorted(self.table, reverse=True)[:3]]
        pairs = [(old, (key + 1, *old[1:])) for old, key in pairs]
        self.table.update((new[0], new) for _, new in pairs)
        self.log_updates(pairs, ID)

    def log_updates(self, pairs, bits):
        if not pairs:
            return
        for old, new in pairs:
            self.truth += [(old, new)] if old[0] == new[0] else [(old, None), (None, new)]
        self.update_m(*pairs, before=ID | self.subset(), after=bits | self.subset() or NOTE)

    def remove(self):
        rows = [self.table.pop(key) for key in self.some()]
        if rows:
            self.truth += [(row, None) for row in rows]
            self.delete_m(*rows, bits=ID | self.subset())

    def empty(self):
        self.table.clear()
        self.gtid().query("TRUNCATE TABLE m")

    def alter(self):
        self.table = {key: (key, row[1], 5) for key, row in self.table.items()}
        self.gtid().query("ALTER TABLE m COMMENT = 'rows may change'")

    def by_statement(self):
        self.table = {key: (key, "statement", row[2]) for key, row in self.table.items()}
        self.begin().query("UPDATE m SET note = 'statement'").commit()


def restarts(made, random, stores):
    """Run a row mapper that is killed again and again, some time without the store that it had."""
    for _ in range(random.randrange(1, 8)):
        made.store = random.choice(stores)
        if random.random() < 0.15:
            made.store.unlink(missing_ok=True)
        made.ledger.commits, made.ledger.crash_after = 0, random.randrange(1, 6)
        made.ledger.commit_every = random.randrange(1, 6)
        stage = made.start()
        stage.output.settle_bytes = 0
        try:
            made.ledger.run(stage, made.events.since(stage.next_offset), random.randrange(1, 40))
        except CrashError:
            continue
        return
    made.ledger.crash_after = None
    made.run()


@settings(max_examples=40)
@given(random=st.randoms(use_true_random=False))
def test_model(random, tmp_path_factory):
    """Every value is what the row truly has, and killing, moving and losing the store changes no byte."""
    folder = tmp_path_factory.mktemp("rows")
    server = Server(random)
    server.work()
    calm = World(server.topic, catalog=[definition()], store=folder / "calm")
    calm.run()
    killed = World(server.topic, catalog=[definition()], store=folder / "one")
    restarts(killed, random, [folder / "one", folder / "two"])
    assert killed.records(TOPIC) == calm.records(TOPIC)
    check(changes(calm), server.truth)


def check(found, truth):
    """Compare the values of changes with those that rows truly had."""
    assert len(found) == len(truth)
    for (_, *images, no_before, no_after), true in zip(found, truth, strict=True):
        for image, row, missing in zip(images, true, (no_before, no_after), strict=True):
            assert (image is None) is (row is None)
            if image is not None:
                told = {
                    name: value
                    for name, value in zip(NAMES, image, strict=True)
                    if name not in (missing or ())
                }
                assert told == {name: value for name, value in zip(NAMES, row, strict=True) if name in told}


@settings(max_examples=40)
@given(random=st.randoms(use_true_random=False))
def test_model_of_a_snapshot(random, tmp_path_factory):
    """What is published for a chunk is the row where the stream stands, and what is learnt is never wrong."""
    server = Server(random)
    server.begin().commit().work()
    low = server.position
    server.begin().commit().work_on_rows()
    chunk = chunk_of(selected(), *server.table.values(), low=low)
    server.work_on_rows()
    made = World(server.topic, catalog=[definition()], store=tmp_path_factory.mktemp("rows") / "t.rows")
    published = merge(made, chunk)
    assert sorted(published) == sorted(
        whole("r", None, server.table[key]) for key in {row[2][0] for row in published}
    )
    server.work_on_rows()
    made.run()
    check([row for row in changes(made) if row[0] != "r"], server.truth)
