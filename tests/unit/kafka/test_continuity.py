"""Which topics are compared, when a service starts and while it runs, and how many of them at a time."""

from typing import Any

import pytest

from millrace.avro.service_state import Continuity, LastWritten
from millrace.avro.snapshots import SnapshotMerged
from millrace.contract import HEADER_CHUNK, Topics
from millrace.kafka.continuity import ContinuityGuard, TopicChangedError, lost_of_snapshot
from millrace.kafka.refusals import TopicsRefusedError
from millrace.runtime.settings import KafkaSettings
from tests.fake_broker import Broker, FakeAdmin, kafka_error

SETTINGS = KafkaSettings(bootstrap_servers="nowhere:1")


class CountingAdmin(FakeAdmin):
    """An administrator's client that notes of which topics it was asked."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.asked: list[list[str]] = []
        self.denied: set[str] = set()

    def describe_topics(self, names: Any, **options: Any) -> Any:
        self.asked.append(list(names.topic_names))
        return super().describe_topics(names, **options)

    def _described(self, name: str) -> Any:
        return kafka_error(29) if name in self.denied else super()._described(name)


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    for name in ("shop.transactions", "shop.events", "shop.catalog", "shop.ddl", "shop.deadletter"):
        made.create(name)
    return made


@pytest.fixture
def admin(broker: Broker) -> CountingAdmin:
    return CountingAdmin(broker)


@pytest.fixture
def guard(admin: CountingAdmin) -> ContinuityGuard:
    made = ContinuityGuard(SETTINGS, admin, Topics("shop"), "rowmapper")  # type: ignore[arg-type]  # all that is asked
    made.begin(None)
    return made


def written(broker: Broker, count: int) -> dict[str, str]:
    """Create topics of tables; give their ids."""
    names = [f"shop.db.t{number}" for number in range(count)]
    for name in names:
        broker.create(name)
    return {name: broker.topics[name].id for name in names}


def test_a_table_topic_that_was_created_again(broker: Broker, guard: ContinuityGuard) -> None:
    guard.wrote(written(broker, 3))
    guard.look(now=True)
    guard.wrote({name: broker.topics[name].id for name in ("shop.db.t0", "shop.db.t1", "shop.db.t2")})
    broker.create("shop.db.t1")
    del broker.topics["shop.db.t2"]
    with pytest.raises(TopicsRefusedError) as caught:
        guard.look(now=True)
    assert caught.value.topics.keys() == {"shop.db.t1", "shop.db.t2"}
    assert "shop.db.t1 was deleted and created again" in caught.value.message
    assert "shop.db.t2 is gone" in caught.value.message


def test_a_look_asks_of_few_topics_and_of_each_once(
    broker: Broker, admin: CountingAdmin, guard: ContinuityGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.kafka.continuity._LOOK_EVERY_S", -1.0)
    ids = written(broker, 250)
    guard.wrote(ids)
    admin.asked.clear()
    for _ in range(4):
        guard.look()
    tables = [[name for name in asked if name in ids] for asked in admin.asked]
    assert max(map(len, tables)) == 100
    assert sorted(name for asked in tables for name in asked) == sorted(ids)


def test_topics_that_cannot_be_seen_are_not_called_others(
    broker: Broker, admin: CountingAdmin, guard: ContinuityGuard
) -> None:
    ids = written(broker, 1)
    guard.wrote(ids)
    admin.denied = set(ids)
    guard.look(now=True)


# -- topics that several services write ------------------------------------------------------------------

DEAD, DDL = "shop.deadletter", "shop.ddl"


def dead_letter(service: str, text: str) -> bytes:
    """Write as much of a dead letter as says whose it is."""
    return b"\0\0\0\0\1" + bytes([2 * len(service)]) + service.encode() + text.encode()


def write(
    broker: Broker, guard: ContinuityGuard | None, topic: str, *records: tuple[bytes, bytes, Any]
) -> None:
    """Write records of key, value and headers in a committed Kafka transaction; ``guard`` notes them."""
    for key, value, headers in records:
        broker.topics[topic].append(key=key, value=value, headers=headers, transaction=1)
        if guard is not None:
            guard.note(None, {topic: (key, value, 0, headers)})
    broker.committed.add(1)


def checked(broker: Broker, admin: CountingAdmin, state: Continuity) -> ContinuityGuard:
    """Start a service with a state."""
    made = ContinuityGuard(SETTINGS, admin, Topics("shop"), "rowmapper")  # type: ignore[arg-type]  # all that is asked
    with broker.installed():
        made.check_records(state)
        made.begin(state)
    return made


def whole(service: str, text: str) -> tuple[bytes, bytes, None]:
    return text.encode(), dead_letter(service, text), None


def test_dead_letters_of_another_service_are_no_fault(
    broker: Broker, admin: CountingAdmin, guard: ContinuityGuard
) -> None:
    write(broker, guard, DEAD, whole("rowmapper", "a"))
    write(broker, None, DEAD, whole("decoder", "b"))
    started = checked(broker, admin, guard.continuity)
    assert started.continuity.others[DEAD] == LastWritten(2)


@pytest.mark.parametrize("topic", [DEAD, DDL])
def test_a_state_of_before_the_last_record(
    broker: Broker, admin: CountingAdmin, guard: ContinuityGuard, topic: str
) -> None:
    write(broker, guard, topic, whole("rowmapper", "a"))
    before = guard.continuity
    write(broker, guard, topic, whole("rowmapper", "b"))
    with pytest.raises(
        TopicChangedError, match=f"{topic} does not end as .* should be a, and is b at offset 1"
    ):
        checked(broker, admin, before)
    checked(broker, admin, guard.continuity)


@pytest.mark.parametrize("kept", [0, 1])
def test_the_last_record_is_lost(
    broker: Broker, admin: CountingAdmin, guard: ContinuityGuard, kept: int
) -> None:
    write(broker, guard, DDL, whole("rowmapper", "a"))
    state = checked(broker, admin, guard.continuity).continuity if kept else guard.continuity
    broker.lose_tail(DDL, 1)
    with pytest.raises(TopicChangedError, match=f"{DDL} does not end as .* and is nothing"):
        checked(broker, admin, state)


def test_records_that_retention_has_deleted(
    broker: Broker, admin: CountingAdmin, guard: ContinuityGuard
) -> None:
    write(broker, guard, DDL, whole("rowmapper", "a"))
    broker.topics[DDL].entries.clear()
    broker.topics[DDL].start = broker.topics[DDL].end
    checked(broker, admin, guard.continuity)


def test_a_dead_letter_of_which_chunks_are_missing_is_not_left_behind(
    broker: Broker, admin: CountingAdmin, guard: ContinuityGuard
) -> None:
    letter = dead_letter("rowmapper", "in three pieces")
    first, second, third = (
        (b"a", letter[20 * n : 20 * n + 20], [(HEADER_CHUNK, b"%d/3" % n)]) for n in range(3)
    )
    write(broker, guard, DEAD, first, second)
    write(broker, None, DEAD, whole("decoder", "b"))
    started = checked(broker, admin, guard.continuity)
    write(broker, started, DEAD, third)
    started = checked(broker, admin, started.continuity)
    assert started.continuity.others[DEAD] == LastWritten(4)


def test_the_offset_moves_on_while_a_service_runs(
    broker: Broker, guard: ContinuityGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.kafka.continuity._LOOK_EVERY_S", -1.0)
    write(broker, guard, DEAD, whole("rowmapper", "a"))
    guard.look()
    assert guard.continuity.others[DEAD] == LastWritten(1)
    write(broker, guard, DEAD, (b"b", dead_letter("rowmapper", "b"), [(HEADER_CHUNK, b"0/2")]))
    guard.look()
    assert guard.continuity.others[DEAD].offset == 1


OLD = SnapshotMerged("one", 10)
NEVER = SnapshotMerged("", 0)


@pytest.mark.parametrize(
    ("found", "held", "merged", "has_rows", "words"),
    [
        (None, range(0), NEVER, False, None),
        ("one", range(0), NEVER, False, None),
        ("one", range(20), NEVER, True, None),
        ("one", range(5, 20), OLD, True, None),
        ("one", range(11, 11), OLD, True, None),  # only the end of the transaction was left
        ("one", range(11, 20), OLD, True, "records 10 to 10 of shop.snapshot were deleted"),
        ("one", range(12, 12), OLD, True, "records 10 to 11 of shop.snapshot were deleted"),
        ("one", range(3, 20), NEVER, True, "records 0 to 2 of shop.snapshot were deleted"),
        (None, range(0), OLD, False, "shop.snapshot is gone"),
        (None, range(0), NEVER, True, "shop.snapshot is gone"),
        ("two", range(20), OLD, False, "shop.snapshot was deleted and created again"),
        ("two", range(0), NEVER, True, "shop.snapshot was deleted and created again"),
    ],
)
def test_what_is_lost_of_a_snapshot(
    found: str | None, held: range, merged: SnapshotMerged, has_rows: bool, words: str | None
) -> None:
    said = lost_of_snapshot("shop.snapshot", found, held, merged, has_rows=has_rows)
    assert (said or "").startswith(words or "")
    assert (said is None) == (words is None)
