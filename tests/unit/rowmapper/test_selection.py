"""What is selected goes into row topics, and nothing else of it: kernel and reference alike."""

import hmac

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from millrace import kernel
from millrace.binlog.events import UpdateRowsEvent
from millrace.contract import Topics
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import SettingsError
from millrace.runtime.settings import TopicsSettings, load_settings
from tests.unit.kernel.both_stages import run

from .harness import EventsTopic, World
from .logs import Log


def log(**options):
    return Log(EventsTopic(), **options)


def selected(made, rows=None, **selection):
    """A world after a row mapper with these rules."""
    result = World(made.topic, selection=selection, **(rows or {}))
    result.run()
    return result


def both(made, **selection):
    """What lies in the topics by the kernel and by the reference, which is the same."""
    worlds = [World(made.topic, selection=selection) for _ in range(2)]
    compiled, plain = (run(world, compiled=way) for world, way in zip(worlds, (True, False), strict=True))
    assert compiled.groups == plain.groups
    assert compiled.certain == plain.certain
    return compiled


def orders():
    made = log().begin().insert("orders", (1, "a")).insert("people", (2, "b")).commit()
    return (
        made.begin()
        .insert("people", (3, "c"))
        .commit()
        .begin()
        .update("orders", ((1, "a"), (1, "d")))
        .commit()
    )


@pytest.mark.parametrize("rules", [{"ignore_table": "shop.people"}, {"wild_do_table": "shop.ord%"}])
def test_a_table_that_is_left_out(rules):
    result = selected(orders(), replicate=rules)
    assert result.tables == ["t.shop.orders"]
    assert list(result.topics) == ["t.shop.orders"]
    assert not any("people" in subject for subject in result.registry.subjects)
    ends = [value for _, value in result.read("t.transactions") if value["status"] == "END"]
    assert [end["data_collections"] for end in ends] == [
        [{"data_collection": "shop.orders", "event_count": 1}],
        [{"data_collection": "shop.orders", "event_count": 1}],
    ]


def test_the_kernel_passes_over_what_is_left_out():
    made = log()
    for number in range(50):
        made.begin().insert("orders", (number, "a")).insert("people", (number, "b")).commit()
    committed = both(made, replicate={"ignore_table": "shop.people"})
    assert committed.compiled >= 31 * kernel.built("transactions")
    assert {topic for topic, _ in committed.groups} == {"t.shop.orders", "t.transactions", "t.state"}


def test_a_database_with_another_name():
    made = log().begin().insert("orders", (1, "a")).insert("orders", (2, "b"), database="other").commit()
    result = selected(made, replicate={"rewrite_db": "shop->eu, other->eu", "do_db": "eu"})
    assert [value["source"]["db"] for _, value in result.read("t.eu.orders")] == ["eu", "eu"]
    (end,) = [value for _, value in result.read("t.transactions") if value["status"] == "END"]
    assert end["data_collections"] == [{"data_collection": "eu.orders", "event_count": 2}]
    both(made, replicate={"rewrite_db": "shop->eu, other->eu", "do_db": "eu"})


SALT = "a salt that is long enough"


def people():
    made = log().begin().insert("people", (1, "Ada Lovelace"), (2, None)).commit()
    made.begin().update("people", ((1, "Ada Lovelace"), (1, "Ada King"))).delete("people", (2, None))
    return made.commit()


def hashed(text):
    return hmac.new(SALT.encode(), text.encode(), "sha256").hexdigest()


def test_a_column_that_is_dropped():
    result = selected(people(), columns={"drop": "shop.people.NOTE"})
    values = [value for _, value in result.read("t.shop.people")]
    assert [(value["before"], value["after"]) for value in values] == [
        (None, {"id": 1}),
        (None, {"id": 2}),
        ({"id": 1}, {"id": 1}),
        ({"id": 2}, None),
    ]
    assert b"Ada" not in b"".join(value for _, value, _ in result.records("t.shop.people"))


@pytest.mark.parametrize(
    ("rules", "notes"),
    [
        ({"mask": "shop.people.note=***"}, ["***"] * 4),
        (
            {"hash": "%.%.note", "hash_salt": SALT},
            [hashed("Ada Lovelace"), None, hashed("Ada King"), None],
        ),
        ({"truncate": "Shop.PEOPLE.Note=5"}, ["Ada L", None, "Ada K", None]),
        ({"truncate": "shop.people.note=5", "mask": "shop.peopl_.no%="}, [""] * 4),
        ({"mask": "shop.orders.note=***"}, ["Ada Lovelace", None, "Ada King", None]),
    ],
)
def test_columns_with_rules(rules, notes):
    result = selected(people(), columns=rules)
    values = [value for _, value in result.read("t.shop.people")]
    assert [(value["after"] or value["before"])["note"] for value in values] == notes
    both(people(), columns=rules)


def test_a_key_that_is_hashed():
    rules = {"hash": "shop.people.id", "hash_salt": SALT}
    result = selected(people(), columns=rules)
    keys = [key for key, _ in result.read("t.shop.people")]
    assert keys == [{"id": hashed(number)} for number in ("1", "2", "1", "2")]
    both(people(), columns=rules)


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"mask": "shop.people.id=0"}, "shop.people.id is part of the key"),
        ({"drop": "%.people.%"}, "shop.people.id is part of the key"),
        ({"truncate": "%.people.id=1"}, "shop.people.id is part of the key"),
    ],
)
def test_a_key_without_which_rows_are_one(rules, reason):
    result = selected(people().begin().insert("orders", (1, "a")).commit(), columns=rules)
    assert result.tables == ["t.shop.orders"]
    (table,) = result.state.quarantined
    assert reason in table.error


def test_names_that_are_not_known_quarantine_a_table_with_rules():
    """A rule goes by the column's name: without names nothing is published that it may be about."""
    made = log(named=False).begin().insert("people", (1, "x")).insert("orders", (1, "y")).commit()
    result = selected(made, columns={"drop": "shop.people.note"})
    assert result.tables == ["t.shop.orders"]
    (table,) = result.state.quarantined
    assert "names of the columns of shop.people are not known" in table.error


def test_conditions_need_names():
    """What is in the place of a column is not known to be that column."""
    made = log(named=False).begin().insert("people", (1, "x")).insert("orders", (1, "y")).commit()
    result = selected(made, rows={"filter": "shop.people: column_1 > 0"})
    assert result.tables == ["t.shop.orders"]
    (table,) = result.state.quarantined
    assert "not known, and MILLRACE_ROWS_FILTER has rules" in table.error


def test_a_rule_for_a_column_that_is_not_there_is_logged():
    with capture_logs() as logs:
        selected(people(), columns={"mask": "shop.people.mail=x,%.%.other=y"})
    assert [line["rule"] for line in logs if "does not have" in line["event"]] == ["shop.people.mail"]


def test_statements_and_hidden_columns_exclude_each_other(monkeypatch):
    for name, text in {
        "SOURCE": "shop",
        "KAFKA_BOOTSTRAP_SERVERS": "localhost:1",
        "REGISTRY_URL": "http://localhost:1",
        "ROWS_INCLUDE_QUERY": "true",
        "COLUMNS_DROP": "a.b.c",
    }.items():
        monkeypatch.setenv(f"MILLRACE_{name}", text)
    with pytest.raises(SettingsError, match="MILLRACE_ROWS_INCLUDE_QUERY is wrong: statements hold"):
        load_settings(RowMapperSettings)


def ops(result, table="orders"):
    return [
        (value["op"], (value["after"] or value["before"])["id"], value["source"]["row"])
        for _, value in result.read(f"t.shop.{table}")
    ]


def moving():
    """Rows that are in, come in, leave and stay out of what has a note of x."""
    made = log().begin().insert("orders", (1, "x"), (2, "y"), (3, None), (4, "x")).commit().begin()
    made.update(
        "orders",
        ((1, "x"), (1, "x")),
        ((2, "y"), (2, "x")),
        ((4, "x"), (4, "y")),
        ((3, None), (3, "y")),
        ((1, "x"), (5, "x")),
    )
    return made.delete("orders", (2, "x"), (4, "y")).insert("people", (9, "y")).commit()


def test_rows_that_fulfil_a_condition():
    """An update that takes a row out of them is a delete, one that takes it in an insert."""
    rows = {"filter": "shop.orders: note = 'x'"}
    result = selected(moving(), rows)
    assert ops(result) == [
        *[("c", 1, 0), ("c", 4, 1)],
        *[("u", 1, 0), ("c", 2, 1), ("d", 4, 2), ("d", 1, 3), ("c", 5, 4)],
        *[("d", 2, 0)],
    ]
    assert ops(result, "people") == [("c", 9, 0)]
    ends = [value for _, value in result.read("t.transactions") if value["status"] == "END"]
    assert [end["event_count"] for end in ends] == [2, 7]


@pytest.mark.parametrize("cut_every", [1, 2, 3])
def test_a_condition_and_kafka_transactions_of_few_records(cut_every):
    whole = selected(moving(), {"filter": "shop.orders: note = 'x'"})
    result = selected(moving(), {"filter": "shop.orders: note = 'x'", "cut_every": cut_every})
    assert result.records("t.shop.orders") == whole.records("t.shop.orders")


def test_a_condition_on_a_column_that_is_hidden():
    """It is decided by what the column holds, and shows nothing of it."""
    result = selected(
        moving(), {"filter": "shop.orders: note = 'x'"}, columns={"mask": "shop.orders.note=***"}
    )
    assert len(ops(result)) == 8
    assert {(value["after"] or value["before"])["note"] for _, value in result.read("t.shop.orders")} == {
        "***"
    }


@pytest.mark.parametrize(
    ("condition", "problem"),
    [("missing = 1", "there is no column missing"), ("id = 'x'", "'x' is not a number")],
)
def test_a_condition_that_does_not_fit_quarantines_its_table(condition, problem):
    result = selected(moving(), {"filter": f"shop.orders: {condition}"})
    assert result.tables == ["t.shop.people"]
    (table,) = result.state.quarantined
    assert problem in table.error
    assert "MILLRACE_ROWS_FILTER does not fit shop.orders" in table.error


def test_an_image_without_the_column_that_decides():
    made = log().begin().insert("orders", (1, "x")).table_map("orders")
    made.event(UpdateRowsEvent(made.ids["orders"], 1, b"", 2, b"\x01", b"\x02", b"\xfe\1\0\0\0\xfe\1\0y"))
    result = selected(made.commit(), {"filter": "shop.orders: note = 'x'"})
    (table,) = result.state.quarantined
    assert "lacks the column note, by which MILLRACE_ROWS_FILTER" in table.error
    by_key = selected(made, {"filter": "shop.orders: id < 5"})
    assert [(op, row) for op, _, row in ops(by_key)] == [("c", 0), ("u", 0)]


def test_operations():
    result = selected(moving(), replicate={"ignore_operations": "shop.ord%=ud"})
    assert [op for op, *_ in ops(result)] == ["c"] * 4
    both(moving(), replicate={"ignore_operations": "shop.ord%=ud"})


@pytest.mark.parametrize(
    ("rules", "published"), [({"ignore_server_ids": "1"}, 0), ({"do_server_ids": "2, 1"}, 4)]
)
def test_servers(rules, published):
    made = log().begin().insert("orders", (1, "x"), (2, "y"), (3, ""), (4, "")).commit()
    assert len(selected(made, replicate=rules).records("t.shop.orders")) == published
    for number in range(20):
        made.begin().insert("orders", (number, "x")).commit()
    committed = both(made, replicate=rules)
    assert not published or committed.compiled or not kernel.built("transactions")


def test_keys_by_rule():
    made = log().begin().insert("orders", (1, "x"), (2, "y")).update("orders", ((1, "x"), (1, "z"))).commit()
    result = selected(made, {"keys": "shop.ord%=Note"})
    assert [key for key, _ in result.read("t.shop.orders")] == [{"note": each} for each in "xyxz"]
    assert [op for op, *_ in ops(result)] == ["c", "c", "d", "c"]
    both_keys = selected(made, {"keys": "shop.orders=note+id"})
    assert both_keys.read("t.shop.orders")[0][0] == {"note": "x", "id": 1}
    no_key = selected(made, {"keys": "shop.orders="}, columns={"drop": "shop.orders.id"})
    assert [key for key, _ in no_key.read("t.shop.orders")] == [None] * 3


@pytest.mark.parametrize(
    ("keys", "problem"),
    [("shop.orders=missing", "has no column missing"), ("shop.orders=note", "lacks the key column note")],
)
def test_a_key_that_rows_do_not_have(keys, problem):
    made = log().begin().insert("orders", (1, None)).insert("people", (1, None)).commit()
    result = selected(made, {"keys": keys})
    assert result.tables == ["t.shop.people"]
    (table,) = result.state.quarantined
    assert problem in table.error


def test_partitions_by_rule():
    topics = TopicsSettings(table_partitions=3, partitions="shop.orders=12, shop.odd-name=6")
    names = ("orders", "people", "odd-name")
    assert [topics.partitions_of(Topics("t").table("shop", name)) for name in names] == [12, 3, 6]
    for wrong in ("shop=3", "shop.orders=0", "shop.orders"):
        with pytest.raises(ValidationError):
            TopicsSettings(partitions=wrong)
