"""The lines that ``millrace status`` prints, word for word."""

import time

import click

from millrace.avro.service_state import QuarantinedTable
from millrace.cli.status import _text
from millrace.contract import SourcePosition
from millrace.kafka.state import Owner, StoredState
from millrace.status.collect import Hop, ServerStatus, Service, SourceStatus
from millrace.status.lag import Lag
from millrace.status.missing import Shortfall
from millrace.status.report import as_lines


def lines(status: SourceStatus) -> list[str]:
    return [click.unstyle(line) for line in as_lines(status)]


def test_all_that_may_be_wrong() -> None:
    written = int(time.time() * 1000) + 60_000  # a little ahead: that is 0 s ago
    aside = QuarantinedTable(
        "shop", "t", "1:0:bin.000001:4:0", 6, 7, "5 columns in the catalog, but 4 in the table map"
    )
    status = SourceStatus(
        "shop",
        "shop",
        ServerStatus("db:3306", error="db:3306: cannot connect"),
        [
            Service("reader", "process 7 on here", written, SourcePosition(1, "bin.000007", 4)),
            Service("decoder", "process 8 on here", written, None, error="DecoderState: 6e6f is not c3 01"),
        ],
        [Hop("raw", "events", Lag(None, None, None, 20_000, exact=False))],
        quarantined=(aside,),
        pending_xa=2,
        dead_letters=1_000,
        dead_letters_exact=False,
        dead_letters_waiting=12,
        dead_letters_redriven=30,
        dead_letters_discarded=3,
        missing=[Shortfall("gaps", "2 gaps: changes are missing in the row topics", "")],
        problems=["events cannot be counted"],
    )
    assert lines(status) == [
        "shop",
        "  server     db:3306: cannot connect",
        "  reader     bin.000007:4 (epoch 1)  process 7 on here, last wrote 0 s ago",
        "  decoder    DecoderState: 6e6f is not c3 01  process 8 on here, last wrote 0 s ago",
        "",
        "  not through                 bytes        seconds   transactions        records",
        "  raw → events                    ?              ?              ?       ≥ 20,000",
        "",
        "  quarantined: shop.t since 1:0:bin.000001:4:0: 5 columns in the catalog, but 4 in the table map",
        "  dead letters: at least 1,000, of which at least 12 wait; 30 were redriven, 3 discarded",
        "  XA transactions prepared and not decided: 2",
        "  gaps: 2 gaps: changes are missing in the row topics",
        "  events cannot be counted",
    ]


def test_nothing_that_comes_from_elsewhere_acts_on_the_terminal() -> None:
    evil = "x\x1b[2J\x9b\u202e\udcff\n"
    aside = QuarantinedTable(evil, evil, evil, 6, 7, evil)
    status = SourceStatus(
        "shop",
        "shop",
        ServerStatus(evil, error=evil),
        [
            Service("reader", evil, 0, SourcePosition(1, evil, 4)),
            Service("decoder", evil, 0, None, error=evil),
        ],
        quarantined=(aside,),
        problems=[evil],
    )
    assert all(line.isascii() and line.isprintable() for line in lines(status))


def test_who_is_at_work() -> None:
    now = int(time.time() * 1000) + 60_000
    by = Owner("pause", "process 9 on here")
    status = SourceStatus(
        "shop",
        "shop",
        services=[
            Service("reader", "process 7 on here", now, None),
            Service("decoder", "process 8 on here", now, None, work="paused"),
            Service("rowmapper", "process 9 on here", now, None, work="not running"),
        ],
        pause=StoredState(b"paused", by, 1, 0),
    )
    since = "paused since 1970-01-01T00:00:00.000+00:00, by millrace pause, process 9 on here"
    assert lines(status)[1:5] == [
        f"  {since}: 'millrace resume' resumes it",
        "  reader     ?  process 7 on here, last wrote 0 s ago",
        "  decoder    ?  paused; last: process 8 on here, last wrote 0 s ago",
        "  rowmapper  ?  not running; last: process 9 on here, last wrote 0 s ago",
    ]


def test_nothing_has_run() -> None:
    assert lines(SourceStatus("shop", "shop", problems=["no service of shop has run"])) == [
        "shop",
        "  dead letters: 0",
        "  no service of shop has run",
    ]


def test_no_service_has_run() -> None:
    assert list(_text([])) == ["Kafka knows no source: no service has run"]
