"""Every event of every real log decodes, and its public fields alone make the bytes that it was."""

import dataclasses
import lzma
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millrace.binlog.errors import BinlogError, ChecksumError, TruncatedError
from millrace.binlog.event_codec import BinlogEvent, decode_event, encode_event
from millrace.binlog.events import TransactionPayloadEvent, UnknownEvent
from millrace.binlog.file import iter_events
from millrace.binlog.state import StreamState
from tests.corpus.conftest import CorpusFile

# What is wrong with the damaged files, and the position where it is met.
ENDS_IN_MID_EVENT = {
    "rust_mysql_common/binlog_truncated_event.000001": 4,
    "rust_mysql_common/binlog_truncated_prev_gtid_event.000001": 120,
}
BROKEN_EVENT = {
    # Its QUERY says that its status variables take 16949 bytes; the event has 171.
    "rust_mysql_common/corrupt-relay-bin.000624": 91204,
}
FOREIGN_TYPE = {
    # Amazon Aurora's padding.
    "osheroff_mysql-binlog-connector-java/mysql-bin.aurora-padding": 100,
}


@dataclass
class Outcome:
    """What came of reading one file."""

    events: int = 0
    inner_events: int = 0
    bad_checksums: int = 0
    types: Counter[int] = field(default_factory=Counter)
    unknown_types: set[int] = field(default_factory=set)
    unknown_variables: int = 0
    error: BinlogError | None = None
    mismatches: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


def read(path: Path, name: str) -> Outcome:
    """Decode and encode all events of a log."""
    outcome = Outcome()
    state = StreamState()
    with path.open("rb") as stream:
        try:
            for position, data in iter_events(stream, name):
                outcome.positions.append(position)
                outcome.types[data[4]] += 1
                decoded = decode(data, state, outcome)
                check(decoded, data, state, position, outcome)
        except BinlogError as error:
            outcome.error = error.at(name, outcome.positions[-1] if outcome.positions else None)
    return outcome


def decode(data: bytes, state: StreamState, outcome: Outcome) -> BinlogEvent:
    try:
        return decode_event(data, state)
    except ChecksumError:
        outcome.bad_checksums += 1
        return decode_event(data, state, verify=False)


def rebuilt(decoded: BinlogEvent) -> BinlogEvent:
    """The same event, made of nothing but the fields of header and event; the size results again."""
    header = dataclasses.replace(decoded.header, event_size=0)
    event = type(decoded.event)(
        **{each.name: getattr(decoded.event, each.name) for each in dataclasses.fields(decoded.event)}
    )  # type: ignore[arg-type]  # all events are dataclasses
    return BinlogEvent(header, event, decoded.checksum, decoded.post_header_extra)


def check(decoded: BinlogEvent, data: bytes, state: StreamState, position: int, outcome: Outcome) -> None:
    outcome.events += 1
    if isinstance(decoded.event, UnknownEvent):
        outcome.unknown_types.add(decoded.header.type_code)
    variables = getattr(decoded.event, "status_variables", None)
    if variables is not None and variables.unknown:
        outcome.unknown_variables += 1
    if encode_event(rebuilt(decoded), state) != data:
        outcome.mismatches.append(position)
    if isinstance(decoded.event, TransactionPayloadEvent):
        inner_state = state.for_payload()
        for inner in decoded.event.events():
            outcome.inner_events += 1
            if encode_event(rebuilt(decode_event(inner, inner_state)), inner_state) != inner:
                outcome.mismatches.append(position)


def test_corpus(corpus: list[CorpusFile], capsys: pytest.CaptureFixture[str]) -> None:
    events = inner_events = 0
    damaged = []
    for file in corpus:
        outcome = read(file.path, file.name)
        events += outcome.events
        inner_events += outcome.inner_events
        assert not outcome.mismatches, file.name
        foreign = {FOREIGN_TYPE[file.name]} if file.name in FOREIGN_TYPE else set()
        assert (outcome.unknown_types, outcome.unknown_variables) == (foreign, 0), file.name
        said = re.search(r"(\d+) bad CRC", file.remark)
        assert outcome.bad_checksums == (int(said[1]) if said else 0), file.name
        if file.name in ENDS_IN_MID_EVENT:
            assert isinstance(outcome.error, TruncatedError)
            assert outcome.error.position == ENDS_IN_MID_EVENT[file.name]
            assert f"trailing {file.path.stat().st_size - outcome.error.position} bytes" in file.remark
            damaged.append(str(outcome.error))
        elif file.name in BROKEN_EVENT:
            assert isinstance(outcome.error, TruncatedError)
            assert outcome.error.position == BROKEN_EVENT[file.name]
            damaged.append(str(outcome.error))
        else:
            assert outcome.error is None, file.name
            assert outcome.types == file.event_types, file.name
    with capsys.disabled():
        print(
            f"\ncorpus: {len(corpus)} files, {events} events and {inner_events} within payloads decoded and "
            f"rebuilt from their fields; {len(FOREIGN_TYPE)} event type of another product kept as bytes; "
            f"{len(damaged)} damaged files refused:"
        )
        print("".join(f"  {line}\n" for line in damaged), end="")
    assert len(corpus) == 193


def test_samples(
    samples: dict[str, Path], sample_logs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    events = inner_events = 0
    types: Counter[int] = Counter()
    for path in sample_logs:
        outcome = read(path, f"{path.parent.name}/{path.name}")
        events += outcome.events
        inner_events += outcome.inner_events
        types += outcome.types
        assert outcome.error is None
        assert (outcome.mismatches, outcome.unknown_types, outcome.bad_checksums) == ([], set(), 0), path
        assert outcome.unknown_variables == 0, path
    with capsys.disabled():
        print(
            f"\nsamples: {len(samples)} archives, {len(sample_logs)} logs, {events} events of {len(types)} "
            f"types and {inner_events} within payloads decoded and rebuilt from their fields"
        )
    assert len(samples) == 13


# What next_position holds where it is not what the log's version says: the primary's position in relay logs
# and in logs made of events of several, nothing in MariaDB 11's transactions.
NEXT_POSITION_OF_ANOTHER_LOG = {
    "mysql-testsuite-8.0_8.0.46/ddl_in_transaction.000001": 7,
    "mysql-testsuite-8.0_8.0.46/duplicate_xid_xa_commit.000001": 2,
    "mysql-testsuite-8.0_8.0.46/duplicate_xid_xa_rollback.000001": 2,
    "mysql-testsuite-8.0_8.0.46/orphan_begin_start.000001": 6,
    "mysql-testsuite-8.0_8.0.46/orphan_rollback.000001": 1,
    "mysql-testsuite-8.0_8.0.46/rpl_no_gipk_high_column_number.000001": 6,
    "rust_mysql_common/binlog_savepoint.000001": 10,
    "rust_mysql_common/bug33029-slave-relay-bin.000001": 40,
    "rust_mysql_common/corrupt-relay-bin.000624": 869,
    "rust_mysql_common/rpl_unfiltered_hidden_gcol.000001": 10,
    "rust_mysql_common/ver_5_1-wl2325_s.001": 2,
    "webscalesql-5.6/master-bin.000001": 1,
    "webscalesql-5.6/trunc_binlog.000001": 1,
}


def test_next_position_has_the_meaning_of_the_version(
    corpus: list[CorpusFile], capsys: pytest.CaptureFixture[str]
) -> None:
    """The start of the event in v3 logs, its end since v4; 0 where the server did not say it."""
    counted: Counter[str] = Counter()
    for file in corpus:
        state = StreamState()
        elsewhere = 0
        with file.path.open("rb") as stream:
            try:
                for position, data in iter_events(stream):
                    decoded = decode_event(data, state, verify=False)
                    assert state.format is not None
                    end = state.format.end_of(decoded.header)
                    if end is None:
                        counted["not said"] += 1
                    elif end == position + len(data):
                        counted[f"v{state.format.binlog_version}"] += 1
                    else:
                        elsewhere += 1
            except BinlogError:
                assert file.name in ENDS_IN_MID_EVENT | BROKEN_EVENT
        assert elsewhere == NEXT_POSITION_OF_ANOTHER_LOG.get(file.name, 0), file.name
    with capsys.disabled():
        print(f"\nnext_position is as the version says: {dict(counted)}")
    assert counted["v3"] > 5


def texts(path: Path) -> Iterator[str]:
    with lzma.open(path, "rt", encoding="utf-8", errors="replace") as text:
        yield from text


_AT = re.compile(r"# at (\d+)$")
_SERVER_ID = re.compile(r"#\d{6} +\d+:\d{2}:\d{2} server id (\d+) ")


def test_positions_and_server_ids_are_those_of_mysqlbinlog(
    corpus: list[CorpusFile], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each ``# at`` of mysqlbinlog's text is a position of ours, with the same server id."""
    files = events = 0
    for file in corpus:
        text_path = file.path.with_name(file.path.name + ".mysqlbinlog.txt.xz")
        if not text_path.exists():
            continue
        files += 1
        server_ids = {}
        with file.path.open("rb") as stream:
            try:
                for position, data in iter_events(stream):
                    server_ids[position] = int.from_bytes(data[5:9], "little")
            except TruncatedError:
                assert file.name in ENDS_IN_MID_EVENT
        position = None
        for line in texts(text_path):
            at = _AT.match(line)
            if at is not None:
                position = int(at[1])
            server_id = _SERVER_ID.match(line)
            if server_id is not None and position is not None:
                assert server_ids[position] == int(server_id[1]), (file.name, position)
                events += 1
                position = None
    with capsys.disabled():
        print(f"\npositions and server ids equal mysqlbinlog's text in {files} files, {events} events")
    assert files > 150
