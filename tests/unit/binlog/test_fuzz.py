"""Whatever the bytes, the codec raises BinlogError or gives an event that is written back as it was.

``make fuzz`` looks for hours; what it has found is read here from then on.
"""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import EVENTS
from millrace.binlog.file import MAGIC
from millrace.binlog.statement import classify
from millrace.binlog.transaction import TransactionTracker
from tests.fuzz.__main__ import FINDINGS, Input, Mutator, run, seeds
from tests.fuzz.targets import check_event, check_log
from tests.unit.binlog.cases import CASES, Case, make_event, state_of
from tests.unit.binlog.vectors import FORMATS

SERVERS = sorted(FORMATS)
SERIALIZE, DESERIALIZE = EventSerializer(), EventDeserializer()
STEP = TransactionTracker().feed(
    decode_event(CASES[0].data, state_of(CASES[0].server)).header, CASES[0].event, "log", 4
)


def check(server: str, data: bytes) -> None:
    check_event(server, data)
    state = state_of(server)
    try:
        decoded = decode_event(data, state, verify=False)
    except BinlogError:
        return
    value = SERIALIZE(decoded, 0, "log", 4, 0, STEP, None)
    assert DESERIALIZE(value).event == decoded.event


@given(st.sampled_from(SERVERS), st.sampled_from(sorted(EVENTS)), st.binary(max_size=200))
def test_any_body(server: str, type_code: int, body: bytes) -> None:
    check(server, make_event(type_code, body))
    check(server, make_event(type_code, body, checksum=False))


@given(st.sampled_from(SERVERS), st.binary(max_size=80))
def test_any_bytes(server: str, data: bytes) -> None:
    check(server, data)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, bytes]:
    """An event of a real server with some bytes changed, taken out or put in, its length corrected."""
    case: Case = draw(st.sampled_from(CASES))
    data = bytearray(case.data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(13, len(data) - 1))
        match draw(st.integers(0, 2)):
            case 0:
                data[at] = draw(st.sampled_from([0, 1, 127, 128, 250, 251, 252, 253, 254, 255, data[at] ^ 1]))
            case 1:
                del data[at : at + draw(st.integers(1, 8))]
            case _:
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
        if len(data) <= 14:
            break
    data[9:13] = len(data).to_bytes(4, "little")
    return case.server, bytes(data)


@given(mutated())
def test_mutated_events(case: tuple[str, bytes]) -> None:
    check(*case)


@given(st.binary(max_size=200), st.integers(0, 100))
def test_damaged_records_of_the_events_topic(noise: bytes, at: int) -> None:
    case = CASES[at % len(CASES)]
    value = bytearray(SERIALIZE(decode_event(case.data, state_of(case.server)), 0, "log", 4, 0, STEP, None))
    value[at : at + len(noise)] = noise
    with contextlib.suppress(BinlogError):
        _ = DESERIALIZE(bytes(value)).event


WORDS = """
BEGIN COMMIT ROLLBACK TO XA START CREATE TABLE ALTER RENAME DROP IF EXISTS LIKE INDEX ON SET STATEMENT FOR
WITH
( ) , . `a` 'b' "c" /* */ /*!40000 -- # x 'x `y 0x61 X'61' X'6 ONE PHASE ;
"""
SQL = st.lists(st.sampled_from([*WORDS.split(), "\n", "\\"]), max_size=12).map(" ".join)


@given(st.one_of(SQL, st.text(max_size=60), st.binary(max_size=60)))
def test_any_statement(sql: str | bytes) -> None:
    classify(sql)


@pytest.mark.parametrize("path", sorted(FINDINGS.glob("*.json")), ids=lambda path: path.stem)
def test_findings(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    run(Input(found["server"], bytes.fromhex(found["data"])), measured=True)


def test_mutated_logs() -> None:
    """A moment of ``make fuzz``, with the vectors alone and always the same inputs."""
    vectors = seeds(real_logs=False)
    mutator = Mutator(vectors, 1)
    for log in vectors.logs:
        check_log(MAGIC + b"".join(log))
    for _ in range(500):
        mutator.next().run()
