"""Giving a table back: its letters are mapped in their order, once, wherever it is cut short."""

import contextlib
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.avro.events import EventDeserializer
from millrace.avro.records import DeadLetter, deserialize
from millrace.avro.state import RowMapperState, RowsContext
from millrace.deadletter.letters import Letter, Unreadable
from millrace.kafka.chunks import ChunkJoiner
from millrace.runtime.errors import UserError
from services.rowmapper.give_back import Drain, GivenBack, waiting_letters

from .test_mapper import definition, log, notes, world

TOPIC = "t.deadletter"
WRONG = definition("a", "id", "note", "more")
RIGHT = definition("a", "id", "note", position=1_000_000)


def letters(made_world, start=0):
    """The letters that are committed; a record's place in the list is its offset."""
    joiner = ChunkJoiner()
    for offset, (key, value, headers) in enumerate(made_world.producer.topics[TOPIC]):
        at = offset if joiner.first_offset is None else joiner.first_offset
        whole = value if headers is None else joiner.feed(key, dict(headers)["chunk"], value, offset)
        if whole is not None and at >= start:
            yield Letter(at, 1, DeadLetter(**deserialize(made_world.registry, whole)))


def drain(made_world, found=None):
    """Start a row mapper that gives the first table set aside back."""
    mapper, records = made_world.start()
    while not mapper.settled:
        mapper.process(records[:1])
        records = records[1:]
    mapper.commit()
    tables = made_world.tables_of_last
    tables.trust_later = True
    (entry,) = tables.quarantined
    outcome = GivenBack("shop.a")
    waiting = waiting_letters(
        letters(made_world, entry.letter or 0) if found is None else found, entry, EventDeserializer(), TOPIC
    )
    Drain(
        entry,
        outcome,
        mapper=mapper,
        tables=tables,
        publisher=mapper._publisher,
        producer=made_world.producer,
    ).run(waiting)
    return outcome


def state(made_world):
    return RowMapperState.from_bytes(made_world.producer.state)


def some(made):
    """Rows of a table that is set aside, and of another; some are undone."""
    made.begin().insert("a", (1, "x"), (2, "y")).insert("b", (2, "")).insert("a", (3, "w" * 700)).commit()
    made.begin().insert("a", (4, "")).query("SAVEPOINT s").insert("a", (5, "")).query("ROLLBACK TO s")
    made.commit().begin().insert("a", (6, "")).query("ROLLBACK")
    made.begin().update("a", ((1, "x"), (1, "z"))).delete("a", (2, "y")).commit()
    made.xa_start("one").insert("a", (7, "")).xa_prepare("one")
    made.begin().insert("b", (3, "")).commit()
    return made.xa("COMMIT", "one")


EXPECTED = [("c", 1), ("c", 2), ("c", 3), ("c", 4), ("u", 1), ("d", 2), ("c", 7)]


def set_aside(**options):
    made = some(log(named=False))
    return made, world(made, catalog=[WRONG], **options)


def test_letters_are_mapped_in_order_and_live_rows_follow():
    made, result = set_aside()
    assert "t.shop.a" not in result.tables
    result.catalog = [WRONG, RIGHT]
    outcome = drain(result)
    assert (outcome.letters, outcome.rows, outcome.failed) == (6, 7, None)
    assert state(result).quarantined == ()
    made.begin().insert("a", (8, "")).commit()
    result.catalog = [RIGHT]
    result.run()
    assert notes(result) == [*EXPECTED, ("c", 8)]
    sources = [value["source"] for _, value in result.read("t.shop.a")]
    assert {source["schema_source"] for source in sources} == {"catalog_later"}
    assert sources[0]["gtid"].endswith(":1")
    assert sources[0]["thread"] == 9
    places = [(source["pos"], source["row"]) for source in sources]
    assert len(set(places)) == len(places)


def test_counts_of_the_transactions_cover_all_rows():
    _, result = set_aside()
    before = result.read("t.transactions")
    result.catalog = [RIGHT]
    drain(result)
    after = result.read("t.transactions")[len(before) :]
    assert [record["status"] for _, record in after] == ["BEGIN", "END"] * 4
    assert [record["event_count"] for _, record in after if record["status"] == "END"] == [3, 1, 2, 1]
    orders = [value["transaction"]["total_order"] for _, value in result.read("t.shop.a")]
    assert orders == [1, 2, 3, 1, 1, 2, 1]


def test_a_letter_that_still_fails_keeps_its_place():
    made, result = set_aside()
    number = len(list(letters(result)))
    outcome = drain(result)
    assert outcome.letters == 0
    key, reason = outcome.failed
    assert key.startswith("1:0:bin.000001:")
    assert "3 columns in the catalog, but 2 in the table map" in reason
    made.begin().insert("a", (8, "")).commit()
    result.run()
    assert len(list(letters(result))) == number + 1
    result.catalog = [RIGHT]
    drain(result)
    assert notes(result) == [*EXPECTED, ("c", 8)]


def test_what_was_given_back_before_a_failure_stays_so():
    made = log(named=False).begin().insert("a", (1, "x")).insert("a", (2, "y")).commit()
    made.begin().insert("a", (3, "z")).commit()
    result = world(made, catalog=[WRONG])
    result.catalog = [RIGHT]
    found = list(letters(result))
    outcome = drain(result, iter([found[0], with_wider_table(found[1]), found[2]]))
    assert (outcome.letters, outcome.rows) == (1, 1)
    assert "2 columns in the catalog, but 3 in the table map" in outcome.failed[1]
    assert notes(result) == [("c", 1)]
    outcome = drain(result)
    assert (outcome.letters, outcome.failed) == (2, None)
    assert notes(result) == [("c", 1), ("c", 2), ("c", 3)]
    assert [record["status"] for _, record in result.read("t.transactions")] == ["BEGIN", "END"] * 3


def with_wider_table(letter):
    context = RowsContext.from_bytes(letter.content.context)
    wider = log(named=False).table_map("a", columns=3).topic.records[-1].value()
    changed = dataclasses.replace(context, before=(wider,)).to_bytes()
    return dataclasses.replace(letter, content=dataclasses.replace(letter.content, context=changed))


class KilledError(Exception):
    """The process ends here."""


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_killed_anywhere_it_goes_on(data):
    """Kill both the row mapper and the giving back after any commit, with transactions of any size."""
    made, result = set_aside(cut_every=data.draw(st.integers(1, 5)))
    result.catalog = [RIGHT]
    producer = result.producer

    def committed():
        if data.draw(st.booleans()):
            raise KilledError

    producer.committed = committed
    while state(result).quarantined:
        try:
            drain(result)
        except KilledError:
            producer.abort()
    producer.committed = lambda: None
    made.begin().insert("a", (8, "")).commit()
    result.run()
    assert notes(result) == [*EXPECTED, ("c", 8)]


@pytest.mark.parametrize("kills", range(12))
def test_a_transaction_published_in_part_is_completed_first(kills):
    """The last row mapper ended in the middle of a transaction of which a part waits."""
    made = log(named=False).begin().insert("b", (1, ""))
    for number in range(5):
        made.insert("a", (number, "")).insert("b", (10 + number, ""))
    made.commit()
    done = 0

    def committed():
        nonlocal done
        done += 1
        if done > kills:
            raise KilledError

    result = world(log(named=False), catalog=[WRONG], cut_every=1)
    result.events = made.topic
    result.producer.state = None
    result.producer.committed = committed
    with contextlib.suppress(KilledError):
        result.run()
    result.producer.committed = lambda: None
    if not state(result).quarantined:
        return
    result.catalog = [RIGHT]
    drain(result)
    result.run()
    assert notes(result) == [("c", number) for number in range(5)]
    assert [value["after"]["column_1"] for _, value in result.read("t.shop.b")] == [1, 10, 11, 12, 13, 14]
    assert len(list(letters(result))) == 5


def test_rows_in_fragments():
    made = log(named=False).begin().fragments("a", *((i, "x" * 50) for i in range(6))).commit()
    result = world(made, catalog=[WRONG])
    result.catalog = [RIGHT]
    outcome = drain(result)
    assert (outcome.letters, outcome.rows) == (1, 6)
    assert notes(result) == [("c", i) for i in range(6)]


def test_an_earlier_time_aside_is_over():
    """Letters of a table that was given back before are not given back again."""
    made, result = set_aside()
    result.catalog = [RIGHT]
    drain(result)
    made.begin().insert("a", (8, "")).commit()
    result.catalog = [WRONG]
    result.run()
    assert len(state(result).quarantined) == 1
    result.catalog = [RIGHT]
    assert drain(result).letters == 1
    assert notes(result) == [*EXPECTED, ("c", 8)]


def refused(found):
    _, result = set_aside()
    result.catalog = [RIGHT]
    with pytest.raises(UserError) as caught:
        drain(result, iter(found(list(letters(result)))))
    assert state(result).quarantined
    return caught.value.message


def test_a_letter_that_is_gone():
    message = refused(lambda found: found[1:])
    assert "the first letter of shop.a that waits, 1:0:bin.000001:" in message
    assert "is no longer in t.deadletter" in message


def test_a_letter_that_cannot_be_read():
    message = refused(lambda found: [found[0], Unreadable(7, 0, b"k", "it is cut"), *found[2:]])
    assert "the record at offset 7 of t.deadletter cannot be read: it is cut" in message
    assert "It may hold rows of shop.a" in message


@pytest.mark.parametrize("part", ["value", "context"])
def test_a_letter_whose_bytes_are_damaged(part):
    def damaged(found):
        content = dataclasses.replace(found[0].content, **{part: getattr(found[0].content, part)[:-30]})
        return [Letter(0, 1, content)]

    assert "the record at offset 0 of t.deadletter cannot be read" in refused(damaged)


def test_a_letter_without_context():
    def old(found):
        return [Letter(0, 1, dataclasses.replace(found[0].content, context=None))]

    assert "has no table map with it" in refused(old)
