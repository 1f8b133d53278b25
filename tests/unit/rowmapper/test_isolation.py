"""Whatever is wrong with one table, event or statement concerns only that one: the stream continues."""

import zlib

import pytest

from millrace import kernel
from millrace.avro.registry import RegistryError
from millrace.avro.row_records import RowsEventWriter
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import QueryCompressedEvent, StatusVariables, WriteRowsCompressedEventV1
from millrace.binlog.row_images import RowImages
from millrace.rowmapper.binding import TableIncompatibleError, TableRefusedError
from millrace.runtime.errors import UserError

from .harness import World
from .logs import COLUMNS
from .test_stage import log, notes, notes_by_position, whole_dead_letters


def made():
    """Transactions on three tables, of which one is in trouble."""
    return (
        log()
        .begin()
        .insert("a", (1, "x"))
        .insert("b", (1, "x"))
        .commit()
        .begin()
        .insert("b", (2, "x"))
        .insert("a", (2, "x"), (3, "y"))
        .insert("c", (1, "x"))
        .commit()
    )


def assert_only_a_waits(result, error):
    assert result.tables == ["t.shop.b", "t.shop.c"]
    assert notes(result, "b") == [("c", 1), ("c", 2)]
    (table,) = result.state.quarantined
    assert table.name == "shop.a"
    assert error in table.error
    dead_letters = [value for _, value in whole_dead_letters(result)]
    assert [value["table"] for value in dead_letters] == ["shop.a"] * 2
    assert error in dead_letters[0]["error"]
    ends = [value for _, value in result.read("t.transactions") if value["status"] == "END"]
    assert [end["event_count"] for end in ends] == [1, 2]


def test_kafka_refuses_a_topic():
    result = World(made().topic)
    result.topics["t.shop.a"] = TableRefusedError("topic t.shop.a cannot be created: policy")
    result.run()
    assert_only_a_waits(result, "topic t.shop.a cannot be created: policy")


@pytest.mark.parametrize("subject", ["t.shop.a-key", "t.shop.a-value"])
def test_the_registry_refuses_a_schema(subject):
    result = World(made().topic)
    result.refused[subject] = TableRefusedError(f"the registry refuses the schema of {subject}")
    result.run()
    assert_only_a_waits(result, "the registry refuses the schema of t.shop.a-")


@pytest.mark.parametrize("raised", [KeyError("id"), UnicodeEncodeError("utf-8", "\udc80", 0, 1, "why")])
def test_a_value_raises_what_nobody_foresaw(raised, monkeypatch):
    write = RowsEventWriter.write_bytes

    def fail(self, operation, rows, images, native):
        if self._place.transaction.endswith(":1") and len(self._encoder.names) == 2 and self._is_of("a"):
            raise raised
        write(self, operation, rows, images, native)

    monkeypatch.setattr(
        RowsEventWriter, "_is_of", lambda self, table: f"\x02{table}".encode() in self._start, False
    )
    monkeypatch.setattr(RowsEventWriter, "write_bytes", fail)
    result = World(made().topic)
    result.run()
    assert_only_a_waits(result, str(raised))
    assert result.state.quarantined[0].error_class == type(raised).__name__


def test_trouble_of_the_service_is_no_tables():
    """The registry does not answer, or the broker: nobody is quarantined."""

    def silent(_schemas):
        raise RegistryError("the schema registry does not answer")

    result = World(made().topic)
    result.register = silent
    with pytest.raises(UserError, match="does not answer"):
        result.run()
    assert result.state is None


def test_two_topics_that_kafka_takes_for_the_same():
    """Its metrics have the same name for both: the second table waits, and a rule gives it another topic."""
    log_ = log().begin().insert("b_c", (1, "x"), database="a").insert("c", (2, "y"), database="a_b").commit()
    result = World(log_.topic)
    result.run()
    assert result.tables == ["t.a.b_c"]
    (table,) = result.state.quarantined
    assert table.name == "a_b.c"
    assert table.error == (
        "the topics t.a_b.c and t.a.b_c cannot both exist: Kafka's metrics take '.' and '_' for the same; "
        "give a_b.c another one with MILLRACE_TOPICS_NAMES, such as a_b.c=a_b.c_2"
    )
    ruled = World(log_.topic)
    topics = ruled.settings.topics.model_copy(update={"names": "a_b.c=a_b.c_2"})
    ruled.settings = ruled.settings.model_copy(update={"topics": topics})
    ruled.run()
    assert ruled.tables == ["t.a.b_c", "t.a_b.c_2"]
    assert ruled.state.quarantined == ()


def test_two_tables_of_one_topic():
    """So a rule may have it; after a restart too, the topic belongs to the table that was first."""
    log_ = log().begin().insert("a", (1, "x")).commit().begin().insert("b", (2, "y")).commit()
    result = World(log_.topic)
    topics = result.settings.topics.model_copy(update={"names": "shop.b=shop.a"})
    result.settings = result.settings.model_copy(update={"topics": topics})
    result.run()
    (table,) = result.state.quarantined
    assert table.error.startswith("the topic t.shop.a has the rows of shop.a: give shop.b another one")


def partitions_of_keys(result):
    """Run a row mapper over all that is there; give the partitions that took the rows, by key."""
    stage, found = result.start(), {}
    written_as = result.ledger.written_as

    def note(output):
        for (topic, partition), records in output.groups.items():
            if topic == "t.shop.a":
                found.update((key, partition) for key, *_ in records)
        return written_as(output)

    result.ledger.written_as = note
    result.ledger.run(stage, result.events.since(stage.next_offset))
    return found


def test_a_row_stays_in_its_partition_where_some_were_added():
    """Those of a topic that was created again are taken."""
    rows = [(number, "x") for number in range(20)]
    made_log = log().begin().insert("a", *rows).commit()
    result = World(made_log.topic)
    result.partitions = 2
    before = partitions_of_keys(result)
    assert set(before.values()) == {0, 1}
    made_log.begin().update("a", *((row, (row[0], "y")) for row in rows)).commit()
    result.partitions = 5
    assert partitions_of_keys(result) == before


def test_too_many_tables():
    result = World(made().topic)
    topics = result.settings.topics.model_copy(update={"max_tables": 2})
    result.settings = result.settings.model_copy(update={"topics": topics})
    result.run()
    (table,) = result.state.quarantined
    assert table.error == (
        "there are 2 table topics and MILLRACE_TOPICS_MAX_TABLES is 2, so that t.shop.c is not created"
    )


@pytest.mark.parametrize("change", ["gone", "another"])
def test_a_table_topic_that_is_another_one(change):
    """It was deleted, and perhaps created again: its table waits until somebody looks."""
    log_ = log().begin().insert("a", (1, "x")).insert("b", (1, "x")).commit()
    result = World(log_.topic)
    result.run()
    result.topics["t.shop.a"] = BinlogError(f"the topic is {change}")
    log_.begin().insert("a", (2, "x")).insert("b", (2, "x")).commit()
    result.run()
    (table,) = result.state.quarantined
    assert (table.name, table.error) == ("shop.a", f"the topic is {change}")
    assert notes(result, "b") == [("c", 1), ("c", 2)]


@pytest.mark.parametrize("headers", [None, [("chunk", b"3/7")], [("chunk", b"nonsense")]])
@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("buffer", ["held", "replayed"])
def test_a_record_that_is_no_event(headers, within, buffer, monkeypatch):
    """It is a dead letter; the transaction around it is published as if it were not there."""
    if buffer == "replayed":
        monkeypatch.setattr("millrace.rowmapper.assembly._OVERHEAD", 1 << 21)
    log_ = log().begin().insert("a", (1, "x")).commit().begin().insert("a", (2, "x"))
    if within:
        log_.topic.put(b"1:0:x:99:0", b"garbage", headers=headers)
    log_.insert("a", (3, "x")).commit()
    if not within:
        log_.topic.put(b"1:0:x:99:0", b"garbage", headers=headers)
    log_.begin().insert("b", (1, "x")).commit()
    result = World(log_.topic, buffer_mib=1)
    result.run()
    assert notes(result) == [("c", 1), ("c", 2), ("c", 3)]
    assert notes(result, "b") == [("c", 1)]
    ((key, value),) = whole_dead_letters(result)
    assert (key, value["value"], value["log_file"], value["position"]) == (b"1:0:x:99:0", b"garbage", "x", 99)
    assert result.state.counters["dead_letters"] == 1
    assert result.state.quarantined == ()


def test_bindings_of_a_batch_are_made_together():
    """However many tables come for the first time: the registry and Kafka are asked once."""
    log_ = log()
    for number in range(30):
        log_.begin().insert(f"t{number}", (1, "x")).commit()
    result = World(log_.topic)
    asked = []
    ensure = result.ensure_topics
    result.ensure_topics = lambda ids: asked.append(len(ids)) or ensure(ids)
    result.run(batch=1000)
    assert asked == [30]
    assert len(result.tables) == 30
    for number in range(31):
        log_.begin().insert(f"t{number}", (2, "x")).commit()
    result.run(batch=1000)
    assert asked[1:] == [30, 1], "those that are known, and the new one"


def test_kafka_is_asked_for_topics_of_later_tables_before_it_has_answered_for_others():
    log_ = log()
    for number in range(120):
        log_.begin().insert(f"t{number}", (1, "x")).commit()
    result = World(log_.topic)
    result.run(batch=1000)
    for number in range(120):
        log_.begin().insert(f"t{number}", (2, "x")).commit()
    said = []

    def ensure(ids):
        said.append(f"asked {len(ids)}")
        return lambda: said.append(f"answered {len(ids)}") or result.ensure_topics(ids)

    result.begin_to_ensure_topics = ensure
    result.run(batch=400)
    assert said == ["asked 50", "asked 30", "answered 50", "answered 30", "asked 40", "answered 40"]
    assert all(notes(result, f"t{number}") == [("c", 1), ("c", 2)] for number in range(120))


def test_what_is_known_of_a_table_is_not_asked_again():
    """After a restart the schemas that were registered before are taken from the state."""
    log_ = log().begin().insert("a", (1, "x")).commit()
    result = World(log_.topic)
    result.run()
    log_.begin().insert("a", (2, "x")).commit()
    registered = []
    result.register = lambda schemas: registered.extend(schemas) or []
    result.run()
    assert registered == []
    assert notes(result) == [("c", 1), ("c", 2)]


def packed(content, claimed=None):
    size = len(content) if claimed is None else claimed
    return b"\x84" + size.to_bytes(4, "big") + zlib.compress(content)


def compressed(log_, table, record):
    log_.table_map(table)
    return log_.event(WriteRowsCompressedEventV1(log_.ids[table], 1, b"", 2, b"", b"\3", record))


def row(number):
    return RowImages(COLUMNS, None, b"\3").encode([(None, (number, "x"))])


def test_compressed_rows_are_rows():
    log_ = compressed(log().begin(), "a", packed(row(1) + row(2))).commit()
    result = World(log_.topic)
    result.run()
    assert notes(result, "a") == [("c", 1), ("c", 2)]


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (packed(bytes(2 << 20)), "the event unpacks to 2097152 bytes, and MILLRACE_ROWS_UNPACKED_MIB allows"),
        (packed(b"", 1 << 31), "the event unpacks to 2147483648 bytes"),
        (packed(row(1))[:5] + b"no zlib", "cannot be unpacked"),
        (b"\0", "a compressed record starts with"),
    ],
)
def test_rows_that_unpack_to_much_or_not_at_all(record, error):
    log_ = compressed(log().begin(), "a", record).commit()
    log_.begin().insert("b", (1, "x")).insert("a", (2, "x")).insert("c", (1, "x")).commit()
    result = World(log_.topic, unpacked_mib=1)
    result.run()
    assert result.tables == ["t.shop.b", "t.shop.c"]
    (table,) = result.state.quarantined
    assert table.name == "shop.a"
    assert error in table.error


@pytest.mark.parametrize("record", [packed(bytes(2 << 20)), packed(b"DO 1")[:5] + b"no zlib", b"\0", b""])
def test_a_statement_that_unpacks_to_much_or_not_at_all(record):
    log_ = log().begin()
    log_.event(QueryCompressedEvent(9, 0, 0, StatusVariables(), "shop", record))
    log_.insert("b", (1, "x")).commit()
    result = World(log_.topic, unpacked_mib=1)
    result.run()
    assert result.tables == ["t.shop.b"]
    assert result.state.quarantined == ()
    assert len(whole_dead_letters(result)) == 1


def test_compressed_rows_of_no_table():
    log_ = log().begin()
    log_.event(WriteRowsCompressedEventV1(99, 1, b"", 2, b"", b"\3", b"\0"))
    log_.insert("b", (1, "x")).commit()
    result = World(log_.topic)
    result.run()
    assert result.tables == ["t.shop.b"]
    assert len(whole_dead_letters(result)) == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_an_incompatible_schema_begins_a_new_version_of_the_topic(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(kernel, "has", lambda _name: False)
    log_ = log().begin().insert("a", (1, "x")).insert("b", (1, "x")).commit()
    result = World(log_.topic, on_incompatible="new-topic")
    result.run()
    result.refused["t.shop.a-value"] = TableIncompatibleError("incompatible")
    log_.named = False  # the columns have other names, and there is no key
    log_.begin().insert("a", (2, "x")).commit()
    result.run()
    log_.begin().insert("a", (3, "x")).commit()
    result.run()  # after a restart it stays there
    assert result.tables == ["t.shop.a", "t.shop.a-v2", "t.shop.b"]
    assert notes(result, "a") == [("c", 1)]
    assert notes_by_position(result, "a-v2") == [2, 3]
    result.refused["t.shop.a-v2-key"] = result.refused["t.shop.a-v2-value"] = result.refused["t.shop.a-value"]
    log_.named = True
    log_.begin().insert("a", (4, "x")).commit().begin().insert("a", (5, "x")).insert("a", (6, "x")).commit()
    result.run()
    assert notes(result, "a-v3") == [("c", 4), ("c", 5), ("c", 6)]
    assert result.state.quarantined == ()
