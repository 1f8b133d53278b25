"""Encrypted logs: those of a real MariaDB equal what it sent; MySQL's are built by the format's description.

The files in ``encrypted/`` were written by MariaDB 10.11.19 with ``file_key_management`` and
``encrypt_binlog``: one with AES-CTR and a key of 256 bits, one with AES-CBC and 128 bits, one with AES-CBC
and 256 bits in a log without checksums. The ``.dump`` beside each is what the server sent of it to a replica.

No MySQL at hand can encrypt its log. Its files are built here, by the description in MySQL's
``sql/rpl_log_encryption.h`` and by the steps that MySQL's developers published for doing it with openssl.
"""

import hashlib
import io
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from millrace.binlog.encryption import KeyId, LogKeys, MariadbDecryptor, MysqlDecryptor
from millrace.binlog.errors import (
    BinlogError,
    InvalidValueError,
    MissingStateError,
    TruncatedError,
    UnsupportedError,
)
from millrace.binlog.event_codec import decode_event, encode_event
from millrace.binlog.events import AnnotateRowsEvent, StartEncryptionEvent, XidEvent
from millrace.binlog.file import MAGIC, decode_file, iter_events
from millrace.binlog.state import StreamState
from tests.unit.binlog.cases import MYSQL_97, make_event, state_of
from tests.unit.binlog.streams import Trickle
from tests.unit.binlog.vectors import FORMATS

FOLDER = Path(__file__).with_name("encrypted")
KEY = bytes(range(32))
MARIADB = {
    "ctr256": LogKeys({1: KEY}, mariadb_cipher="AES_CTR"),
    "cbc128": LogKeys({1: KEY[:16]}, mariadb_cipher="AES_CBC"),
    "cbcnone": LogKeys({1: KEY}, mariadb_cipher="AES_CBC"),
}


def log_of(name: str) -> bytes:
    return (FOLDER / f"mariadb-{name}.000001").read_bytes()


@pytest.mark.parametrize("name", MARIADB)
def test_mariadb_file_equals_what_the_server_sends(name: str) -> None:
    events = list(iter_events(io.BytesIO(log_of(name)), keys=MARIADB[name]))
    assert b"".join(data for _, data in events) == (FOLDER / f"mariadb-{name}.dump").read_bytes()
    assert [at for at, _ in events] == [at for at, _ in iter_events(io.BytesIO(log_of(name)))]


@pytest.mark.parametrize("name", MARIADB)
def test_mariadb_file_decodes(name: str) -> None:
    """Positions are those of the file, and each event's checksum is right."""
    events = list(decode_file(io.BytesIO(log_of(name)), name, keys=MARIADB[name]))
    assert len(events) == 22
    for (position, decoded), (following, _) in pairwise(events):
        assert decoded.header.next_position == following == position + decoded.header.event_size
    statements = [
        decoded.event.query for _, decoded in events if isinstance(decoded.event, AnnotateRowsEvent)
    ]
    assert statements == [b"UPDATE v.t SET name='second' WHERE id=2", b"DELETE FROM v.t WHERE id=1"]


@pytest.mark.parametrize("name", MARIADB)
def test_what_the_server_sends_needs_no_key(name: str) -> None:
    """It keeps START_ENCRYPTION, with IGNORABLE_F, and sends plain events after it."""
    log = MAGIC + (FOLDER / f"mariadb-{name}.dump").read_bytes()
    assert len(list(decode_file(io.BytesIO(log)))) == 22
    assert len(list(decode_file(io.BytesIO(log), keys=MARIADB[name]))) == 22


def test_mariadb_without_key() -> None:
    events = decode_file(io.BytesIO(log_of("ctr256")), "log")
    assert isinstance([next(events), next(events)][1][1].event, StartEncryptionEvent)
    with pytest.raises(UnsupportedError, match=r"^log at 296: the log is encrypted from the START_"):
        next(events)


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        (LogKeys({}), MissingStateError, "encrypted with key version 1, which was not given"),
        (LogKeys(lambda _: None), MissingStateError, "encrypted with key version 1, which was not given"),
        (LogKeys({1: b"short"}), InvalidValueError, "key version 1 has 5 bytes"),
    ],
)
def test_mariadb_with_other_keys(keys: LogKeys, error: type[BinlogError], words: str) -> None:
    events = iter_events(io.BytesIO(log_of("ctr256")), "log", keys=keys)
    next(events)
    next(events)
    with pytest.raises(error, match=rf"^log at 256: .*{words}"):
        next(events)


@pytest.mark.parametrize("name", ["ctr256", "cbc128"])
def test_mariadb_with_a_wrong_key(name: str) -> None:
    """Noise comes out, which the first event shows."""
    keys = LogKeys(lambda _: bytes(32), MARIADB[name].mariadb_cipher)
    words = "^log at 296: what key version 1 decrypts with AES_C.. is not an event: the log was written with"
    with pytest.raises(InvalidValueError, match=f"{words} another key, or the cipher another one$"):
        list(decode_file(io.BytesIO(log_of(name)), "log", keys=keys))
    both = LogKeys(lambda _: bytes(32))
    with pytest.raises(
        InvalidValueError, match=r"decrypts with AES_CBC and AES_CTR is not an event: .* key$"
    ):
        list(decode_file(io.BytesIO(log_of(name)), "log", keys=both))


@pytest.mark.parametrize("name", MARIADB)
def test_mariadb_with_a_wrong_cipher(name: str) -> None:
    cipher = "AES_CBC" if name == "ctr256" else "AES_CTR"
    with pytest.raises(
        InvalidValueError, match=rf"^log at \d+: .*{cipher}.*another key, or the cipher another"
    ):
        list(decode_file(io.BytesIO(log_of(name)), "log", keys=LogKeys(MARIADB[name].keys, cipher)))


@pytest.mark.parametrize("name", MARIADB)
def test_the_cipher_of_mariadb_is_found_out(name: str) -> None:
    found = list(iter_events(io.BytesIO(log_of(name)), keys=LogKeys(MARIADB[name].keys)))
    assert found == list(iter_events(io.BytesIO(log_of(name)), keys=MARIADB[name]))


def test_mariadb_scheme_and_size() -> None:
    with pytest.raises(UnsupportedError, match="encryption scheme 2"):
        MariadbDecryptor(StartEncryptionEvent(2, 1, bytes(12)), LogKeys({1: KEY}))
    events = list(iter_events(io.BytesIO(log_of("ctr256"))))
    start = decode_event(
        events[1][1], StreamState(state_of("11.8.6-MariaDB-0+deb13u1 from Debian-log").format)
    )
    decryptor = MariadbDecryptor(start.event, LogKeys({1: KEY}))
    with pytest.raises(TruncatedError, match="18 bytes has no room for its header"):
        decryptor.decrypt(bytes(18), 4)
    position, data = events[2]
    assert decryptor.decrypt(data, position) == decryptor.decrypt(data, (1 << 32) + position)


def test_start_encryption_is_written_back() -> None:
    state = state_of("11.8.6-MariaDB-0+deb13u1 from Debian-log")
    events = decode_file(io.BytesIO(log_of("ctr256")), keys=MARIADB["ctr256"])
    plain = [data for _, data in iter_events(io.BytesIO(log_of("ctr256")), keys=MARIADB["ctr256"])]
    assert [encode_event(decoded, state) for _, decoded in events] == plain


KEY_ID = "MySQLReplicationKey_cc0e7efd-e585-11f1-8865-02fc00000001_1"
PLAIN = (
    MAGIC
    + bytes.fromhex(FORMATS[MYSQL_97])
    + b"".join(make_event(16, number.to_bytes(8, "little")) for number in range(300))
)


def mysql_header(fields: bytes) -> bytes:
    return (b"\xfdbin\x01" + fields).ljust(512, b"\0")


def key_field(key_id: str = KEY_ID) -> bytes:
    return b"\x01" + bytes([len(key_id)]) + key_id.encode()


def mysql_file() -> bytes:
    password, iv = bytes(range(100, 132)), bytes(range(50, 66))
    wrap = Cipher(algorithms.AES(KEY), modes.CBC(iv)).encryptor()
    digest = hashlib.sha512(password).digest()
    encrypt = Cipher(algorithms.AES(digest[:32]), modes.CTR(digest[32:40] + bytes(8))).encryptor()
    fields = key_field() + b"\x02" + wrap.update(password) + b"\x03" + iv
    return mysql_header(fields) + encrypt.update(PLAIN)


@pytest.mark.parametrize("stream", [io.BytesIO, Trickle])
@pytest.mark.parametrize("as_function", [False, True])
def test_mysql_file(stream: type[io.BytesIO], as_function: bool) -> None:
    mapping: dict[KeyId, bytes] = {KEY_ID: KEY}
    keys = LogKeys(mapping.get if as_function else mapping)
    assert list(iter_events(stream(mysql_file()), keys=keys)) == list(iter_events(io.BytesIO(PLAIN)))
    events = list(decode_file(stream(mysql_file()), keys=keys))
    assert events[-1][1].event == XidEvent(299)


def test_keys_leave_plain_files_alone() -> None:
    keys = LogKeys({})
    assert list(iter_events(io.BytesIO(PLAIN), keys=keys)) == list(iter_events(io.BytesIO(PLAIN)))
    later = 4 + len(bytes.fromhex(FORMATS[MYSQL_97]))
    found = list(iter_events(io.BytesIO(PLAIN[later:]), position=later, keys=keys))
    assert found == list(iter_events(io.BytesIO(PLAIN)))[1:]


PASSWORD, IV = b"\x02" + bytes(32), b"\x03" + bytes(16)


@pytest.mark.parametrize(
    ("header", "keys", "error", "words"),
    [
        (mysql_file(), {}, MissingStateError, f"encrypted with key '{KEY_ID}', which was not given"),
        (mysql_file(), {KEY_ID: bytes(32)}, InvalidValueError, "the key given does not fit"),
        (mysql_file()[:200], {KEY_ID: KEY}, TruncatedError, "begins with 512 bytes, 200 are there"),
        (b"\xfdbin\x02" + bytes(507), {}, UnsupportedError, "encryption version 2"),
        (mysql_header(b""), {}, InvalidValueError, "lacks its key id"),
        (mysql_header(b"\x04"), {}, InvalidValueError, "field 4 at offset 5"),
        (mysql_header(b"\x01\x01\xff" + PASSWORD + IV), {}, InvalidValueError, "is not UTF-8"),
        (mysql_header((key_field() + PASSWORD) * 6), {}, TruncatedError, "reaches past the header"),
    ],
)
def test_mysql_file_that_cannot_be_read(
    header: bytes, keys: dict[KeyId, bytes], error: type[BinlogError], words: str
) -> None:
    with pytest.raises(error, match=rf"^log at 0: .*{words}"):
        list(iter_events(io.BytesIO(header), "log", keys=LogKeys(keys)))


def test_mysql_decryptor_takes_no_other_file() -> None:
    with pytest.raises(InvalidValueError, match="begins with fd 62 69 6e"):
        MysqlDecryptor(PLAIN, LogKeys({}))


def test_start_encryption_too_short_for_a_header() -> None:
    """As an event of a log of MySQL 3.23 may look: nothing is begun by it."""
    log = MAGIC + bytes(4) + b"\xa4" + bytes(4) + b"\x0d\0\0\0"
    assert [data[4] for _, data in iter_events(io.BytesIO(log), keys=LogKeys({}))] == [164]
    short = make_event(164, b"\1\1\0\0\0", checksum=False)
    events = iter_events(io.BytesIO(MAGIC + short + short), "log", keys=LogKeys({1: KEY}))
    next(events)
    with pytest.raises(TruncatedError, match=r"^log at 4: "):
        next(events)
