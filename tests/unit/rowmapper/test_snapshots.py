"""Chunks of a snapshot: published once the stream has come to their place, without what it has changed."""

from functools import partial

import pytest

from millrace.avro.records import deserialize
from millrace.avro.registry import WIRE_PREFIX_SIZE, without_prefix
from millrace.avro.service_state import RowMapperState
from millrace.avro.snapshots import MERGED_KEY, SnapshotChunk, SnapshotMerged
from millrace.binlog.columns import Column, ColumnType
from millrace.binlog.columns.column import NoMetadata
from millrace.binlog.events import FormatDescriptionEvent, UpdateRowsEvent
from millrace.binlog.row_images import RowImages
from millrace.binlog.statement import classify
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import EventKey, SourcePosition
from millrace.kafka.chunks import split
from millrace.rowmapper.partition import partition_of
from millrace.rowmapper.snapshot_topic import merger_of
from millrace.rowmapper.snapshots import Changes, SnapshotMerger, Statements
from millrace.snapshot.images import SelectedTable
from millrace.stage import Record

from .harness import EventsTopic, World
from .logs import COLUMNS, Log

LOG = "bin.000003"


def place(position, epoch=0):
    return SourcePosition(epoch, LOG, position)


class Port:
    """The snapshot topic in a list."""

    topic_id = "one"

    def __init__(self, *chunks, limit=1 << 20):
        self.all = []
        self.place_of_quiet = None
        self.before = None
        for chunk in chunks:
            self.add(chunk, limit)

    def add(self, chunk, limit=1 << 20):
        for header, piece in split(chunk.to_bytes(), limit):
            self.all.append(Record(len(self.all), 7, chunk.key, piece, None if header is None else [header]))

    def read(self, offset, *, wait):
        return self.all[offset : offset + 2]

    def records(self, start):
        yield from self.all[start:]

    def first_event(self, place):
        return 40, None

    def end_before(self, offset):
        return self.before

    def quiet_end(self, offset):
        return self.place_of_quiet


def table(*, keyed=True):
    columns = (
        ColumnDefinition(0, "id", "int(11)", nullable=False, key_position=0 if keyed else None),
        ColumnDefinition(1, "v", "varchar(20)", charset="utf8mb4"),
    )
    return SelectedTable(TableDefinition("shop", "t", columns, "InnoDB"), mariadb=False)


def chunk(ids, high=500, low=400, *, keyed=True, part=0, last=False, epoch=0):
    selected = table(keyed=keyed)
    rows = [selected.image((str(number).encode(), b"v%d" % number)) for number in ids]
    where = (epoch, LOG, low, LOG, high, 1234)
    table_map = selected.table_map.encode_fields(8)
    return SnapshotChunk(
        99,
        "shop",
        "t",
        keyed,
        part,
        last,
        *where,
        selected.server_version,
        table_map,
        len(rows),
        b"".join(rows),
    )


class Made:
    """A merger whose stream has changed the rows of some ids."""

    def __init__(self, port, merged=None, *, changed=(), emptied=(), keyless=(), **options):
        self.world = World(EventsTopic(), **options)
        self.stage = self.world.start()
        self.asked = []

        def find_changes(state, start, wanted, rows):
            self.asked.append((start, state.input_offset))
            ids = {self.key_of(number) for number in changed}
            for topic, keys in wanted.items():
                keys.changed |= {key for key in keys.keys if without_prefix(key) in ids}
                keys.has_keyless = topic in keyless
            return Changes(set(emptied))

        self.merger = SnapshotMerger(
            self.world.sink(self.stage),
            self.world.binder,
            port,
            merged or SnapshotMerged("one", 0),
            quarantine=self.stage.quarantine,
            known=self.stage.known,
            find_changes=find_changes,
            deserialize=partial(deserialize, self.world.registry),
        )

    @staticmethod
    def key_of(number):
        return bytes([number << 1])

    def merge(self, end, stand=100, *, idle=False):
        """Let it publish what is due; give ids and envelopes of the rows, and what is noted."""
        for _ in self.merger.merge(lambda: RowMapperState(stand), lambda: end, idle=idle):
            pass
        groups = self.stage.output.groups
        records = groups.get(("t.shop.t", 0), [])
        noted = [value for key, value, *_ in groups.get(("t.state", 0), []) if key == MERGED_KEY]
        self.stage.output.clear()
        assert all(key is None or len(key) > WIRE_PREFIX_SIZE for key, *_ in records)
        rows = [deserialize(self.world.registry, value) for _, value, *_ in records]
        return (
            [row["after"]["id"] for row in rows],
            rows,
            [SnapshotMerged.from_bytes(value) for value in noted],
        )


def test_a_chunk_waits_for_its_place():
    made = Made(Port(chunk([1, 2, 3])), changed=[2])
    assert made.merge(place(499)) == ([], [], [])
    assert made.merge(None) == ([], [], [])
    ids, rows, (noted,) = made.merge(place(500))
    assert ids == [1, 3]
    assert noted == SnapshotMerged("one", 1, rows=2, dropped=1)
    assert {row["op"] for row in rows} == {"r"}
    assert [row["before"] for row in rows] == [None, None]
    assert rows[0]["source"]["pos"] == 500
    assert rows[0]["source"]["sub_index"] == -1
    assert rows[0]["transaction"]["id"] == "snapshot-99"
    assert made.asked == [(40, 100)]
    assert made.merge(place(900)) == ([], [], [])


def test_events_are_read_again_from_where_the_stream_stood_last():
    port = Port(chunk([1]))
    made = Made(port)
    made.merge(place(450), 70)
    assert made.merge(place(500), 80)[0] == [1]
    assert made.asked == [(40, 80)]
    port.add(chunk([2], high=600, low=470))
    assert made.merge(place(600), 90)[0] == [2]
    assert made.asked[1] == (70, 90)
    port.add(chunk([3], high=600, low=600))
    assert made.merge(place(600), 90)[0] == [3]
    assert len(made.asked) == 2  # no event lies between


def test_a_chunk_is_due_where_the_log_is_quiet():
    port = Port(chunk([1]))
    made = Made(port)
    port.place_of_quiet = place(500)
    assert made.merge(None)[0] == []
    assert made.merge(None, idle=True)[0] == [1]
    port.place_of_quiet = None  # it is not asked again at once
    port.add(chunk([2]))
    port.add(chunk([3], high=501))
    assert made.merge(None)[0] == [2]
    assert made.merge(place(450), idle=True)[0] == []
    assert made.merge(place(501))[0] == [3]


def test_merging_resumes_where_it_was():
    port = Port(chunk([1]), chunk([2]))
    _, _, (noted,) = Made(Port(chunk([1]))).merge(place(500))
    made = Made(port, noted)
    ids, _, (last,) = made.merge(place(500))
    assert ids == [2]
    assert (last.offset, last.rows) == (2, 2)


def test_another_topic_is_merged_from_its_beginning():
    made = Made(Port(chunk([1])), SnapshotMerged("another", 0, rows=5))
    ids, _, (noted,) = made.merge(place(500))
    assert ids == [1]
    assert noted == SnapshotMerged("one", 1, rows=1)


def test_a_record_that_comes_in_pieces():
    made = Made(Port(chunk(range(1, 60)), limit=100))
    ids, _, (noted,) = made.merge(place(500))
    assert ids == list(range(1, 60))
    assert noted.offset > 5


@pytest.mark.parametrize("emptied", ["shop.t", "shop"])
def test_rows_that_truncate_removed_do_not_come_back(emptied):
    ids, _, (noted,) = Made(Port(chunk([1, 2])), emptied=[emptied]).merge(place(500))
    assert (ids, noted.dropped) == ([], 2)


@pytest.mark.parametrize(
    ("statement", "emptied"),
    [
        ("TRUNCATE t", True),
        ("DROP TABLE u, t", True),
        ("create or  replace table t (id INT)", True),
        ("ALTER TABLE t COMMENT = 'CREATE OR REPLACE TABLE t'", False),
        ("CREATE TABLE IF NOT EXISTS t (id INT)", False),
    ],
)
def test_statements_that_remove_all_rows(statement, emptied):
    changes, found = Changes(), classify(statement)
    Statements(changes)(
        {
            "kind": "DDL",
            "name": f"{found.verb} {found.object_type}",
            "statement": statement,
            "objects": [f"shop.{name.table}" for name in found.tables],
        }
    )
    assert ("shop.t" in changes.emptied) is emptied


@pytest.mark.parametrize(
    ("keyless", "published", "refused"), [((), [1, 2], 0), (("t.shop.t",), [], 1), (("t.shop.u",), [1, 2], 0)]
)
def test_rows_that_no_key_tells_apart_are_not_counted_twice(keyless, published, refused):
    """Where a rule takes the key away, nothing says which rows of a chunk the stream has changed."""
    made = Made(Port(chunk([1, 2])), keyless=keyless, keys="shop.t=")
    ids, _, (noted,) = made.merge(place(500))
    assert (ids, noted.refused) == (published, refused)


def test_rows_of_a_log_that_ended_before_are_left_out():
    port = Port(chunk([1]))
    port.before = place(450)
    ids, _, (noted,) = Made(port).merge(place(4, epoch=1))
    assert (ids, noted.refused, noted.offset) == ([], 1, 1)
    port.before = place(500)
    assert Made(port).merge(place(4, epoch=1))[0] == [1]


def test_a_table_without_a_key_is_published_whole():
    port = Port(chunk([1, 1], keyed=False))
    made = Made(port, changed=[1])
    assert made.merge(place(500))[0] == []
    port.add(chunk([2], keyed=False, part=1))
    assert made.merge(place(500))[0] == []
    # It was killed, and began again.
    port.add(chunk([1, 1], keyed=False))
    port.add(chunk([2, 3], keyed=False, part=1))
    port.add(chunk([], keyed=False, part=2, last=True))
    ids, rows, noted = made.merge(place(500))
    assert ids == [1, 1, 2, 3]
    assert {row["source"]["table"] for row in rows} == {"t"}
    assert noted[-1].offset == 5
    assert made.asked == []


def test_a_record_that_is_none_is_left_out():
    port = Port()
    port.all.append(Record(0, 7, b"shop.t", b"nothing", None))
    port.add(chunk([1]))
    assert Made(port).merge(place(500))[0] == [1]


def test_rows_go_to_the_partitions_of_their_keys():
    made = Made(Port(chunk(range(60))))
    made.world.partitions = 4
    for _ in made.merger.merge(lambda: RowMapperState(100), lambda: place(500), idle=False):
        pass
    output = made.stage.output
    groups = {target[1]: records for target, records in output.groups.items() if target[0] == "t.shop.t"}
    assert set(groups) == {0, 1, 2, 3}
    assert all(partition_of(key, 4) == number for number, records in groups.items() for key, *_ in records)
    assert sum(map(len, groups.values())) == 60
    assert output.count == sum(map(len, output.groups.values()))


class SnapshotPort(Port):
    """Chunks whose low place is that of an event."""

    def __init__(self, topic, *chunks):
        super().__init__(*chunks)
        self.merged = SnapshotMerged("one", 0)
        self.topic = topic

    def first_event(self, place):
        found = (
            record for record in self.topic.records if EventKey.parse(record.key).position >= place.position
        )
        return next(found).offset, place


def merge_after_all(made, stage, *chunks):
    """Publish chunks after all events; give the merger."""
    merger = merger_of(
        made.sink(stage),
        made.ports.output_format(),
        made.binder,
        SnapshotPort(made.events, *chunks),
        quarantine=stage.quarantine,
        known=stage.known,
        reader=made.event_reader,
        replay=made.replay,
        records=lambda start, stop: (one for one in made.events.since(start) if one.offset < stop),
        first_offset=lambda: 0,
        deserialize=partial(deserialize, made.registry),
        buffer_bytes=1 << 20,
    )
    for _ in merger.merge(stage.state, lambda: SourcePosition(0, "bin.000001", 10**6), idle=False):
        made.ledger.settle(stage)
    made.ledger.commit(stage)
    return merger


class KeyedLog(Log):
    """A server on which the key of a table with the columns id, note and more is altered."""

    def __init__(self):
        super().__init__(EventsTopic())
        self.event(FormatDescriptionEvent(4, "8.0.34", 0, 19, bytes(40), 0))

    def update_keyed(self, key, before, after):
        """Log a transaction that updates a row; ``key`` is the ordinals of the key's columns then."""
        self.begin().table_map("m", 3, key=key)
        images = RowImages(KEYED, b"\x07", b"\x07").encode([(before, after)])
        return self.event(UpdateRowsEvent(self.ids["m"], 1, b"", 3, b"\x07", b"\x07", images)).commit()


KEYED = (*COLUMNS, Column(2, ColumnType.LONG, NoMetadata(), name="more"))


def chunk_of_m(key, low, high, *rows):
    columns = (
        ColumnDefinition(0, "id", "int(11)", nullable=False, key_position=0 if key == 0 else None),
        ColumnDefinition(1, "note", "varchar(100)", charset="utf8mb4"),
        ColumnDefinition(2, "more", "int(11)", nullable=False, key_position=0 if key == 2 else None),
    )
    made = SelectedTable(TableDefinition("shop", "m", columns, "InnoDB"), mariadb=False)
    images = [made.image(tuple(str(value).encode() for value in row)) for row in rows]
    where = 0, "bin.000001", low, "bin.000001", high, 1234
    table_map, version = made.table_map.encode_fields(8), made.server_version
    return SnapshotChunk(
        99, "shop", "m", True, 0, False, *where, version, table_map, len(rows), b"".join(images)
    )


ROWS = (1, "a", 3), (2, "b", 2), (3, "c", 1)


@pytest.mark.parametrize(
    ("old", "new", "published", "refused"),
    [
        # The row that has changed by its new key; not the one whose old key has the same bytes.
        ((0,), (2,), [2, 3], 0),
        ((0,), (2, 0), [2, 3], 0),
        # What the new key is of a row of the chunk is not known.
        ((0,), (), [], 1),
        ((0,), (0,), [2, 3], 0),
    ],
)
def test_a_key_that_is_altered_after_its_rows_were_read(old, new, published, refused):
    log = KeyedLog().update_keyed(old, (9, "z", 9), (9, "y", 9))
    low = high = log.position
    log.query("ALTER TABLE m DROP PRIMARY KEY, ADD PRIMARY KEY (…)")
    log.update_keyed(new, (1, "a", 3), (1, "new", 3))
    made = World(log.topic)
    made.accepting.add("t.shop.m-key")
    stage = made.run()
    merger = merge_after_all(made, stage, chunk_of_m(old[0], low, high, *ROWS))
    rows = [row for _, row in made.read("t.shop.m") if row["op"] == "r"]
    assert [row["after"]["id"] for row in rows] == published
    assert merger.merged.refused == refused


def test_a_key_that_is_altered_before_its_rows_are_read():
    """What the stream has changed under the old key is older than the chunk, whatever its low place is."""
    log = KeyedLog().update_keyed((0,), (9, "z", 9), (9, "y", 9))
    low = log.position
    log.update_keyed((0,), (1, "a", 3), (1, "b", 3))
    log.query("ALTER TABLE m DROP PRIMARY KEY, ADD PRIMARY KEY (more)")
    high = log.position
    log.update_keyed((2,), (2, "b", 2), (2, "new", 2))
    made = World(log.topic)
    made.accepting.add("t.shop.m-key")
    stage = made.run()
    merge_after_all(made, stage, chunk_of_m(2, low, high, (1, "b", 3), *ROWS[1:]))
    assert [row["after"]["id"] for _, row in made.read("t.shop.m") if row["op"] == "r"] == [1, 3]


def test_chunks_of_both_keys_are_merged_together():
    log = KeyedLog().update_keyed((0,), (9, "z", 9), (9, "y", 9))
    low = log.position
    log.query("ALTER TABLE m DROP PRIMARY KEY, ADD PRIMARY KEY (more)")
    high = log.position
    log.update_keyed((2,), (1, "a", 3), (1, "new", 3))
    made = World(log.topic)
    made.accepting.add("t.shop.m-key")
    stage = made.run()
    chunks = chunk_of_m(0, low, low, *ROWS), chunk_of_m(2, high, high, *ROWS)
    merge_after_all(made, stage, *chunks)
    assert [row["after"]["id"] for _, row in made.read("t.shop.m") if row["op"] == "r"] == [2, 3, 2, 3]
