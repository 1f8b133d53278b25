"""Redriving a table: its dead letters are mapped in their order, once, wherever it is cut short."""

import contextlib
import dataclasses
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.avro.events import EventDeserializer
from millrace.avro.records import DeadLetter, deserialize
from millrace.avro.service_state import QuarantinedTable, RowsContext
from millrace.dead_letters import DeadLetterRecord, Unreadable
from millrace.kafka.chunks import ChunkJoiner
from millrace.rowmapper.redrive import Redrive, Redriven, _chosen, waiting_dead_letters
from millrace.rowmapper.snapshot_topic import end_of
from millrace.runtime.errors import UserError
from tests.stages import CrashError, Ledger

from .test_stage import definition, log, notes, settle_often, world

__all__ = ["settle_often"]

TOPIC = "t.deadletter"
WRONG = definition("a", "id", "note", "more")
RIGHT = definition("a", "id", "note", position=1_000_000)


def dead_letters(made_world, start=0):
    """The dead letters that are committed; a record's place in the list is its offset."""
    joiner = ChunkJoiner()
    for offset, (key, value, headers) in enumerate(made_world.records(TOPIC)):
        at = offset if joiner.first_offset is None else joiner.first_offset
        chunk = dict(headers).get("chunk")
        whole = value if chunk is None else joiner.feed(key, chunk, value, offset)
        if whole is not None and at >= start:
            yield DeadLetterRecord(at, 1, DeadLetter(**deserialize(made_world.registry, whole)))


def reached(records):
    """Where the last of some events ends, as a row mapper that redrives finds it."""

    def first_of(key, offset):
        before = (each for each in reversed(records) if each.key == key and each.offset < offset)
        return next(each for each in before if dict(each.headers or ()).get("chunk", b"0/").startswith(b"0/"))

    return end_of(EventDeserializer(), records[-1], first_of)


def redriven(made_world, found=None):
    """Start a row mapper that redrives the first table that is quarantined."""
    stage, ledger = made_world.start(), made_world.ledger
    ledger.drop()
    records = made_world.events.since(stage.next_offset)
    while not stage.settled:
        for _ in stage.take(records[:1]):
            ledger.settle(stage)
        records = records[1:]
    ledger.commit(stage)
    read = [record for record in made_world.events.records if record.offset < stage.next_offset]
    made_world.binder.trust_later(reached(read))
    (entry,) = stage.quarantine.tables
    outcome = Redriven("shop.a")
    waiting = waiting_dead_letters(
        dead_letters(made_world, entry.dead_letter or 0) if found is None else found,
        entry,
        EventDeserializer(),
        TOPIC,
    )
    work = Redrive(entry, outcome, stage)
    work.output = stage.output
    for _ in work.run(waiting):
        ledger.settle(work)
    ledger.settle(work)
    ledger.commit(work)
    return outcome


def some(made):
    """Rows of a table that is quarantined, and of another; some are undone."""
    made.begin().insert("a", (1, "x"), (2, "y")).insert("b", (2, "")).insert("a", (3, "w" * 700)).commit()
    made.begin().insert("a", (4, "")).query("SAVEPOINT s").insert("a", (5, "")).query("ROLLBACK TO s")
    made.commit().begin().insert("a", (6, "")).query("ROLLBACK")
    made.begin().update("a", ((1, "x"), (1, "z"))).delete("a", (2, "y")).commit()
    made.xa_start("one").insert("a", (7, "")).xa_prepare("one")
    made.begin().insert("b", (3, "")).commit()
    return made.xa("COMMIT", "one")


EXPECTED = [("c", 1), ("c", 2), ("c", 3), ("c", 4), ("u", 1), ("d", 2), ("c", 7)]


def quarantined(**options):
    made = some(log(named=False))
    return made, world(made, catalog=[WRONG], **options)


def test_dead_letters_are_mapped_in_order_and_live_rows_follow():
    made, result = quarantined()
    assert "t.shop.a" not in result.tables
    result.catalog = [WRONG, definition("a", "id", "note", position=made.position)]
    outcome = redriven(result)
    assert (outcome.dead_letters, outcome.rows, outcome.failed) == (6, 7, None)
    assert result.state.quarantined == ()
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


def not_understood():
    """A row after a statement that is not understood."""
    made = log(named=False).query("CREATE TABLE a (id INT, note VARCHAR(100) CHARACTER SET utf8mb4)")
    made.query("ALTER TABLE a FROBNICATE").begin().insert("a", (1, "x")).commit()
    return made, world(made)


@pytest.fixture(params=["said", "not said"])
def read_again(request):
    """What is read once a statement has touched the table; nobody looks for others up to there.

    Earlier versions of the reader did not say so.
    """

    def read(made, *names):
        found = definition("a", *names, position=made.position)
        if request.param == "said":
            found = dataclasses.replace(found, altered_log_file="bin.000001", altered_position=made.position)
        return found

    return read


def test_what_was_read_before_another_statement_is_used(read_again):
    made, result = not_understood()
    result.catalog = [read_again(made, "id", "note")]
    assert redriven(result).failed is None
    assert [value["after"] for _, value in result.read("t.shop.a")] == [{"id": 1, "note": "x"}]


def in_payload(limit):
    """A row after a statement that is not understood, in a transaction that MySQL compressed."""
    made = log(named=False, limit=limit)
    made.query("CREATE TABLE a (id INT, note VARCHAR(100) CHARACTER SET utf8mb4)")
    made.query("ALTER TABLE a FROBNICATE").gtid()
    start = made.position
    with made.payload(bytes(5000)):
        made.query("BEGIN").insert("a", (1, "x")).commit()
    return made, start


@pytest.mark.parametrize("limit", [1 << 20, 2000])
def test_what_was_read_directly_after_a_compressed_transaction_is_used(limit, read_again):
    """Also where the payload is so large that its record is in chunks."""
    made, _ = in_payload(limit)
    result = world(made, catalog=[])
    result.catalog = [read_again(made, "id", "note")]
    assert redriven(result).failed is None
    assert [value["after"] for _, value in result.read("t.shop.a")] == [{"id": 1, "note": "x"}]


@pytest.mark.parametrize("limit", [1 << 20, 2000])
def test_inside_a_payload_only_its_last_event_shows_where_it_ends(limit):
    made, start = in_payload(limit)
    records = made.topic.records
    assert reached(records[:-1]).position == start
    assert reached(records).position == made.position == start + 300


def test_an_event_in_chunks_shows_where_it_ends_with_the_last_of_them():
    made = log(limit=300).query("CREATE TABLE a (id INT)").query("-- " + "x" * 700)
    records = made.topic.records
    assert [dict(record.headers or ()).get("chunk") for record in records[-3:]] == [b"0/3", b"1/3", b"2/3"]
    assert [reached(records[: len(records) - left]).position for left in (3, 2, 1, 0)] == [104, 104, 104, 204]


@pytest.mark.parametrize("statement", ["RENAME COLUMN note TO text", "FROBNICATE"])
@pytest.mark.parametrize("taken", [True, False])
def test_what_was_read_after_another_statement_is_not_used(statement, taken, read_again):
    """Whether the row mapper has taken that statement, or has not come so far."""
    made, result = not_understood()
    made.query(f"ALTER TABLE a {statement}")
    if taken:
        result.run()
    result.catalog = [read_again(made, "id", "text")]
    _, reason = redriven(result).failed
    assert "a statement is not understood" in reason
    assert "t.shop.a" not in result.tables
    assert len(result.state.quarantined) == 1
    # One that is known to have been read before the other statement is used.
    before = definition("a", "id", "note", position=650)
    result.catalog = [dataclasses.replace(before, altered_log_file="bin.000001", altered_position=104)]
    assert redriven(result).failed is None
    assert [value["after"] for _, value in result.read("t.shop.a")] == [{"id": 1, "note": "x"}]


def test_counts_of_the_transactions_cover_all_rows():
    _, result = quarantined()
    before = result.read("t.transactions")
    result.catalog = [RIGHT]
    redriven(result)
    after = result.read("t.transactions")[len(before) :]
    assert [record["status"] for _, record in after] == ["BEGIN", "END"] * 4
    assert [record["event_count"] for _, record in after if record["status"] == "END"] == [3, 1, 2, 1]
    orders = [value["transaction"]["total_order"] for _, value in result.read("t.shop.a")]
    assert orders == [1, 2, 3, 1, 1, 2, 1]


def test_a_dead_letter_that_still_fails_keeps_its_place():
    made, result = quarantined()
    number = len(list(dead_letters(result)))
    outcome = redriven(result)
    assert outcome.dead_letters == 0
    key, reason = outcome.failed
    assert key.startswith("1:0:bin.000001:")
    assert "3 columns in the catalog, but 2 in the table map" in reason
    made.begin().insert("a", (8, "")).commit()
    result.run()
    assert len(list(dead_letters(result))) == number + 1
    result.catalog = [RIGHT]
    redriven(result)
    assert notes(result) == [*EXPECTED, ("c", 8)]


def test_what_was_redriven_before_a_failure_stays_so():
    made = log(named=False).begin().insert("a", (1, "x")).insert("a", (2, "y")).commit()
    made.begin().insert("a", (3, "z")).commit()
    result = world(made, catalog=[WRONG])
    result.catalog = [RIGHT]
    found = list(dead_letters(result))
    outcome = redriven(result, iter([found[0], with_wider_table(found[1]), found[2]]))
    assert (outcome.dead_letters, outcome.rows) == (1, 1)
    assert "2 columns in the catalog, but 3 in the table map" in outcome.failed[1]
    assert notes(result) == [("c", 1)]
    outcome = redriven(result)
    assert (outcome.dead_letters, outcome.failed) == (2, None)
    assert notes(result) == [("c", 1), ("c", 2), ("c", 3)]
    assert [record["status"] for _, record in result.read("t.transactions")] == ["BEGIN", "END"] * 3


def with_wider_table(dead_letter):
    context = RowsContext.from_bytes(dead_letter.content.context)
    wider = log(named=False).table_map("a", columns=3).topic.records[-1].value
    changed = dataclasses.replace(context, before=(wider,)).to_bytes()
    return dataclasses.replace(dead_letter, content=dataclasses.replace(dead_letter.content, context=changed))


@pytest.mark.usefixtures("settle_often")
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_a_crash_anywhere_changes_nothing(seed):
    """Crash both the row mapper and the redriving after any commit, with transactions of any size."""
    chance = random.Random(seed)
    made, result = quarantined(cut_every=chance.randint(1, 5))
    result.catalog = [RIGHT]
    ledger = result.ledger
    while result.state.quarantined:
        ledger.crash_after = ledger.commits + chance.randint(1, 6)
        with contextlib.suppress(CrashError):
            redriven(result)
    ledger.crash_after = None
    made.begin().insert("a", (8, "")).commit()
    result.run()
    assert notes(result) == [*EXPECTED, ("c", 8)]


@pytest.mark.usefixtures("settle_often")
@pytest.mark.parametrize("commits", range(1, 12))
def test_a_transaction_published_in_part_is_completed_first(commits):
    """The last row mapper ended in the middle of a transaction of which a part waits."""
    made = log(named=False).begin().insert("b", (1, ""))
    for number in range(5):
        made.insert("a", (number, "")).insert("b", (10 + number, ""))
    made.commit()
    result = world(log(named=False), catalog=[WRONG], run=False)
    result.events = made.topic
    result.ledger = Ledger(1, crash_after=commits)
    with contextlib.suppress(CrashError):
        result.run()
    result.ledger.crash_after = None
    if not result.state.quarantined:
        return
    result.catalog = [RIGHT]
    redriven(result)
    result.run()
    assert notes(result) == [("c", number) for number in range(5)]
    assert [value["after"]["column_1"] for _, value in result.read("t.shop.b")] == [1, 10, 11, 12, 13, 14]
    assert len(list(dead_letters(result))) == 5


def test_rows_of_which_some_were_published():
    """The table was quarantined in the middle of an event: the others follow, numbered after them."""
    made = log(named=False).begin().insert("a", *((n, "x") for n in range(8))).commit()
    result = world(made, catalog=[WRONG])
    (found,) = dead_letters(result)
    context = dataclasses.replace(RowsContext.from_bytes(found.content.context), row=3, records=4)
    content = dataclasses.replace(found.content, context=context.to_bytes())
    result.catalog = [RIGHT]
    assert redriven(result, iter([dataclasses.replace(found, content=content)])).rows == 5
    assert notes(result) == [("c", n) for n in range(3, 8)]
    assert [value["source"]["row"] for _, value in result.read("t.shop.a")] == [4, 5, 6, 7, 8]
    assert [value["transaction"]["total_order"] for _, value in result.read("t.shop.a")] == [1, 2, 3, 4, 5]


def test_rows_in_fragments():
    made = log(named=False).begin().fragments("a", *((i, "x" * 50) for i in range(6))).commit()
    result = world(made, catalog=[WRONG])
    result.catalog = [RIGHT]
    outcome = redriven(result)
    assert (outcome.dead_letters, outcome.rows) == (1, 6)
    assert notes(result) == [("c", i) for i in range(6)]


def test_an_earlier_quarantine_is_over():
    """Dead letters of a table that was redriven before are not redriven again."""
    made, result = quarantined()
    result.catalog = [RIGHT]
    redriven(result)
    made.begin().insert("a", (8, "")).commit()
    result.catalog = [WRONG]
    result.run()
    assert len(result.state.quarantined) == 1
    result.catalog = [RIGHT]
    assert redriven(result).dead_letters == 1
    assert notes(result) == [*EXPECTED, ("c", 8)]


def refused(found):
    _, result = quarantined()
    result.catalog = [RIGHT]
    with pytest.raises(UserError) as caught:
        redriven(result, iter(found(list(dead_letters(result)))))
    assert result.state.quarantined
    return caught.value.message


def test_a_dead_letter_that_is_gone():
    message = refused(lambda found: found[1:])
    assert "the first dead letter of shop.a that waits, 1:0:bin.000001:" in message
    assert "is no longer in t.deadletter" in message


def test_a_dead_letter_that_cannot_be_read():
    message = refused(lambda found: [found[0], Unreadable(7, 0, b"k", "it is cut"), *found[2:]])
    assert "the record at offset 7 of t.deadletter cannot be read: it is cut" in message
    assert "It may hold rows of shop.a" in message


@pytest.mark.parametrize("part", ["value", "context"])
def test_a_dead_letter_whose_bytes_are_damaged(part):
    def damaged(found):
        content = dataclasses.replace(found[0].content, **{part: getattr(found[0].content, part)[:-30]})
        return [DeadLetterRecord(0, 1, content)]

    assert "the record at offset 0 of t.deadletter cannot be read" in refused(damaged)


def test_a_dead_letter_without_context():
    def old(found):
        return [DeadLetterRecord(0, 1, dataclasses.replace(found[0].content, context=None))]

    assert "has no table map: it was" in refused(old)


def paused(made_world):
    """Start a row mapper that pauses a table where the state stands."""
    stage = made_world.start()
    made_world.ledger.drop()
    entry = QuarantinedTable.paused("shop", "a", stage.state().input_offset, len(made_world.records(TOPIC)))
    stage.quarantine.add(entry)
    made_world.ledger.settle(stage)
    made_world.ledger.commit(stage)


@pytest.mark.parametrize("cut_every", [1, 10**9])
def test_a_table_that_is_paused(cut_every):
    """Its rows queue, also those prepared before, and come in their order when it is resumed."""
    made = log().begin().insert("a", (1, "")).commit().xa_start("one").insert("a", (2, "")).xa_prepare("one")
    result = world(made, cut_every=cut_every)
    paused(result)
    made.xa("COMMIT", "one").begin().insert("a", (3, "")).insert("b", (9, "")).commit()
    result.run()
    result.run()
    assert notes(result) == [("c", 1)]
    assert notes(result, "b") == [("c", 9)]
    assert {dead_letter.content.error_class for dead_letter in dead_letters(result)} == {"Paused"}
    outcome = redriven(result)
    assert (outcome.dead_letters, outcome.failed) == (2, None)
    made.begin().insert("a", (4, "")).commit()
    result.run()
    assert notes(result) == [("c", 1), ("c", 2), ("c", 3), ("c", 4)]
    assert result.state.quarantined == ()


def test_a_paused_table_without_rows_is_resumed():
    made = log().begin().insert("a", (1, "")).commit()
    result = world(made)
    paused(result)
    assert redriven(result).dead_letters == 0
    assert result.state.quarantined == ()


@pytest.mark.parametrize("deleted", [1, 2])
def test_a_paused_table_whose_dead_letters_were_deleted(deleted):
    """Whether all of them are gone or only the first: nothing is redriven, and the table stays paused."""
    made = log().begin().insert("a", (1, "")).commit()
    result = world(made)
    paused(result)
    made.begin().insert("a", (2, "")).commit().begin().insert("a", (3, "")).commit()
    result.run()
    left = iter(list(dead_letters(result))[deleted:])
    with pytest.raises(UserError, match="no longer in"):
        redriven(result, left)
    assert [entry.name for entry in result.state.quarantined] == ["shop.a"]
    assert notes(result) == [("c", 1)]


@pytest.mark.parametrize("commits", [0, 3])
def test_dead_letters_that_are_given_up(commits):
    """Also in the middle of a redrive, of which a transaction is published in part: it gets its END."""
    made, result = quarantined(cut_every=1)
    result.catalog = [WRONG, definition("a", "id", "note", position=made.position)]
    if commits:
        result.ledger.crash_after = result.ledger.commits + commits
        with pytest.raises(CrashError):
            redriven(result)
        result.ledger.crash_after = None
    rows = notes(result) if commits else []
    stage = result.start()
    (entry,) = stage.quarantine.tables
    found = waiting_dead_letters(dead_letters(result), entry, EventDeserializer(), TOPIC)
    Redrive(entry, Redriven("shop.a"), stage).discard(found)
    result.ledger.settle(stage)
    result.ledger.commit(stage)
    assert result.state.quarantined == ()
    made.begin().insert("a", (8, "")).commit()
    result.catalog = [RIGHT]
    result.run()
    assert notes(result) == [*rows, ("c", 8)]
    kinds = [value["status"] for _, value in result.read("t.transactions")]
    assert kinds == ["BEGIN", "END"] * (len(kinds) // 2)


def test_a_dead_letter_names_its_table_in_each_chunk():
    _, result = quarantined()
    found = [dict(headers) for _, _, headers in result.records(TOPIC)]
    assert {headers["table"] for headers in found} == {b"shop.a"}
    assert {headers.get("chunk", b"")[-2:] for headers in found} > {b""}


def test_a_table_that_is_not_quarantined() -> None:
    with pytest.raises(UserError) as caught:
        _chosen("shop", (), ["shop.t"])
    assert caught.value.message == "shop.t is not a quarantined table of shop; quarantined are: none"
