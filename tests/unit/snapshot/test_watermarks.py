"""The low watermark: no transaction before it is missing in what SELECT gives, even if a COMMIT waits."""

import pytest

from millrace.avro.service_state import ReaderState
from millrace.mysql.connection import Flavour, Row
from millrace.mysql.errors import RefusedError
from millrace.snapshot.watermarks import LogPosition, Method, Watermarks, choose_method

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


class Connection:
    """A server that answers what it was told to, the last answer forever."""

    address = "server:3306"

    def __init__(self, flavour=Flavour.MYSQL, **answers):
        self.flavour = flavour
        self.answers = {name: list(values) for name, values in answers.items()}
        self.statements = []

    def _next(self, name):
        values = self.answers[name]
        return values.pop(0) if len(values) > 1 else values[0]

    def variable(self, name):
        return self._next(name)

    def row(self, sql, values=(), *, doing=""):
        if "gtid_executed" in sql:
            return Row({"executed": self._next("executed")})
        return Row({"found": self._next("log_status")})

    def query(self, sql, values=(), *, doing=""):
        self.statements.append(sql.partition(" ")[0])
        if "binlog_snapshot" in sql:
            file, position = self._next("snapshot")
            return [
                Row({"Variable_name": "binlog_snapshot_file", "Value": file}),
                Row({"Variable_name": "Binlog_snapshot_position", "Value": str(position)}),
            ]
        return [Row({"name": name}) for name in self.answers.get("tables", ())]

    def first_of(self, *statements, doing):
        file, position = self._next("end")
        return [Row({"File": file, "Position": str(position), "Executed_Gtid_Set": ""})]


def state(position, gtids="", *, epoch=0, file="bin.000001", open_gtid=None):
    return ReaderState(epoch, file, position, gtid_set=gtids, open_gtid=open_gtid)


def waits(limit=10):
    """Return what counts waits, and raises where there is no end of them."""
    found = []

    def wait(seconds):
        found.append(seconds)
        assert len(found) < limit, "it waits forever"

    return found, wait


def test_the_newest_place_whose_transactions_are_all_executed():
    # The reader has 7, whose COMMIT waits: SELECT does not see it, and it is no low watermark.
    states = [state(700, f"{UUID}:1-7"), state(600, f"{UUID}:1-6"), state(500, f"{UUID}:1-5")]
    connection = Connection(executed=[f"{UUID}:1-6"], end=[("bin.000001", 700)])
    watermarks = Watermarks(connection, Method.GTID, lambda: states)
    with watermarks.transaction() as (epoch, low, high):
        assert (epoch, low, high) == (0, LogPosition("bin.000001", 600), None)
    assert watermarks.high() == LogPosition("bin.000001", 700)
    assert connection.statements == ["START", "COMMIT"]


def test_no_place_within_a_transaction():
    states = [state(650, f"{UUID}:1-6", open_gtid=f"{UUID}:7"), state(600, f"{UUID}:1-6")]
    with Watermarks(Connection(executed=[f"{UUID}:1-9"]), Method.GTID, lambda: states).transaction() as found:
        assert found[1].position == 600


def test_where_nothing_is_executed_it_is_waited_for():
    count, wait = waits()
    connection = Connection(executed=[f"{UUID}:1-6", f"{UUID}:1-6", f"{UUID}:1-7"])
    watermarks = Watermarks(connection, Method.GTID, lambda: [state(700, f"{UUID}:1-7")], wait)
    with watermarks.transaction() as (_, low, _high):
        assert low.position == 700
    assert len(count) == 2


def test_places_of_another_epoch_are_none():
    count, wait = waits()
    states = [state(4, f"{UUID}:1-9", epoch=1), state(600, f"{UUID}:1-5")]
    connection = Connection(executed=[f"{UUID}:1-8", f"{UUID}:1-9"])
    with Watermarks(connection, Method.GTID, lambda: states, wait).transaction() as found:
        assert found[:2] == (1, LogPosition("bin.000001", 4))
    assert len(count) == 1


@pytest.mark.parametrize("method", [Method.LOG_STATUS, Method.SHARED_LOCK])
def test_what_the_reader_has_not_read_is_waited_for(method):
    count, wait = waits()
    places = [("bin.000001", 500), ("bin.000001", 700)]
    status = [f'{{"binary_log_file": "{file}", "binary_log_position": {at}}}' for file, at in places]
    connection = Connection(log_status=status, end=places)
    with Watermarks(connection, method, lambda: [state(600)], wait).transaction() as (_, low, high):
        assert (low, high) == (LogPosition("bin.000001", 700), None)
    assert len(count) == 1


def test_mariadb_tells_the_place_of_its_snapshot():
    connection = Connection(Flavour.MARIADB, snapshot=[("bin.000002", 350)])
    begins = 0, LogPosition("bin.000001", 4)
    watermarks = Watermarks(
        connection, Method.CONSISTENT_SNAPSHOT, lambda: [state(400, file="bin.000002")], begins=begins
    )
    with watermarks.transaction() as (_, low, high):
        assert low == high == LogPosition("bin.000002", 350)


def test_an_exact_place_lies_between_two_commits():
    executed = [f"{UUID}:1-6", f"{UUID}:1-6", f"{UUID}:1-7", f"{UUID}:1-7"]
    connection = Connection(executed=executed, end=[("bin.000001", 800)])
    watermarks = Watermarks(connection, Method.GTID, lambda: [state(600, f"{UUID}:1-6")])
    with watermarks.exact_transaction() as (_, place, within):
        assert place.position == 800
        assert within(f"{UUID}:7", LogPosition("bin.000001", 900))
        assert not within(f"{UUID}:8", LogPosition("bin.000001", 500))
    assert connection.statements == ["START", "COMMIT", "START", "COMMIT"]


def test_without_a_consistent_place_a_table_without_a_key_is_refused():
    watermarks = Watermarks(Connection(), Method.SHARED_LOCK, list)
    with pytest.raises(RefusedError, match="without a key"), watermarks.exact_transaction():
        pass


@pytest.mark.parametrize(
    ("connection", "gtids", "method"),
    [
        (Connection(Flavour.MARIADB), "0-1-5", Method.CONSISTENT_SNAPSHOT),
        (Connection(gtid_mode=["ON"]), f"{UUID}:1-5", Method.GTID),
        (Connection(gtid_mode=["OFF"], tables=["log_status"]), "", Method.LOG_STATUS),
        (Connection(gtid_mode=["ON_PERMISSIVE"], tables=["log_status"]), f"{UUID}:1", Method.LOG_STATUS),
        (Connection(gtid_mode=["OFF"]), "", Method.SHARED_LOCK),
    ],
)
def test_the_method_follows_from_the_server(connection, gtids, method):
    assert choose_method(connection, state(4, gtids)) is method
