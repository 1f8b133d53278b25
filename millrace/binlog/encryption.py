"""Encrypted logs, and how they become plain again where the key is given.

Both servers encrypt a log in its file alone: what they send on a connection is plain.

*MySQL* (``binlog_encryption``, since 8.0.14) encrypts the whole file after a header of 512 bytes: magic
``fd 62 69 6e``, version 1, then fields of one byte type and value: 1 the keyring's key id (after its
length), 2 the file's password (32 bytes, AES-256-CBC under the keyring's key), 3 the IV of that. SHA-512 of
the password gives the file's key (32 bytes) and the first 8 bytes of the counter of AES-256-CTR. What comes
out is a plain file, magic included. Format: ``sql/rpl_log_encryption.h`` and ``sql/stream_cipher.cc`` of
MySQL.

*MariaDB* (``encrypt_binlog``) leaves the format description plain and encrypts each event after
START_ENCRYPTION on its own. The event's size stays where it is and plain; everything else is encrypted as one
run that goes from type code to server id, then has the timestamp, then what follows the size; the four bytes
that come out for the timestamp are written to the front. The IV is the nonce of START_ENCRYPTION and the
event's position in its file. The cipher is that of the server's key management plugin: AES-CBC, its default,
with no padding, where the last bytes, less than a block, are XORed with the encrypted IV; or AES-CTR. The log
does not say which; the first event that is decrypted shows it. Format:
``sql/log_event.cc`` (``write_header``) and ``mysys_ssl/my_crypt.cc`` of MariaDB. On a connection it sends
START_ENCRYPTION too, with IGNORABLE_F set.

The ciphers come from the package ``cryptography``, which the extra ``encryption`` brings.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from millrace.binlog.checksum import checksum_matches
from millrace.binlog.errors import InvalidValueError, MissingStateError, TruncatedError, UnsupportedError
from millrace.binlog.events.mariadb import StartEncryptionEvent
from millrace.binlog.header import HEADER_LENGTH
from millrace.binlog.types import EventType

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher

__all__ = [
    "MYSQL_ENCRYPTED_MAGIC",
    "MYSQL_ENCRYPTION_HEADER_LENGTH",
    "KeyId",
    "LogKeys",
    "MariadbCipher",
    "MariadbDecryptor",
    "MysqlDecryptor",
]

MYSQL_ENCRYPTED_MAGIC = b"\xfdbin"
"""The first four bytes of a log that MySQL has encrypted."""

MYSQL_ENCRYPTION_HEADER_LENGTH = 512
"""Bytes in front of what is encrypted in MySQL's files."""

KeyId = int | str
"""What a key is found by: MySQL's key id in the keyring, or MariaDB's key version."""

_BLOCK = 16
_KNOWN_TYPES = frozenset(map(int, EventType))
_KEY_SIZES = (16, 24, 32)
_PASSWORD_SIZE = 32
_KEY_ID, _PASSWORD, _PASSWORD_IV = 1, 2, 3


MariadbCipher = Literal["AES_CBC", "AES_CTR"]
_MARIADB_CIPHERS: tuple[MariadbCipher, ...] = ("AES_CBC", "AES_CTR")


@dataclass(frozen=True, slots=True)
class LogKeys:
    """The keys of encrypted logs.

    ``keys`` is a mapping, or a function that gives None for what it does not have. A text asks for the key
    of that id in MySQL's keyring (``MySQLReplicationKey_<uuid>_<number>``), a number for that version of
    MariaDB's key 1 (with ``file_key_management`` always 1). ``mariadb_cipher`` is what
    ``file_key_management_encryption_algorithm`` says on the server; with None both are tried.
    """

    keys: Mapping[Any, bytes] | Callable[[KeyId], bytes | None]
    mariadb_cipher: MariadbCipher | None = None

    def find(self, key_id: KeyId) -> bytes:
        """Return a key; raise MissingStateError where it is not there, InvalidValueError for a wrong size."""
        key = self.keys.get(key_id) if isinstance(self.keys, Mapping) else self.keys(key_id)
        what = f"key {key_id!r}" if isinstance(key_id, str) else f"key version {key_id}"
        if key is None:
            raise MissingStateError(f"the log is encrypted with {what}, which was not given")
        if len(key) not in _KEY_SIZES:
            raise InvalidValueError(f"{what} has {len(key)} bytes; keys of AES have 16, 24 or 32")
        return key


def _cipher(key: bytes, mode: Literal["CTR", "CBC", "ECB"], iv: bytes = b"") -> "Cipher[Any]":
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UnsupportedError(
            "reading an encrypted log needs the package cryptography, which the extra 'encryption' brings"
        ) from error
    # The mode is the server's choice, and ECB encrypts a single block.
    made = {"CTR": modes.CTR, "CBC": modes.CBC}[mode](iv) if iv else modes.ECB()  # noqa: S305 - see above
    return Cipher(algorithms.AES(key), made)


class MysqlDecryptor:
    """Decrypts one file of MySQL, from its first byte on, piece by piece.

    Made of the file's first 512 bytes. Raises TruncatedError and InvalidValueError where they are not such
    a header, UnsupportedError for another version, and MissingStateError where the key is not there.
    """

    __slots__ = ("_context", "key_id")

    def __init__(self, header: bytes, keys: LogKeys) -> None:
        if len(header) < MYSQL_ENCRYPTION_HEADER_LENGTH:
            raise TruncatedError(
                f"an encrypted file begins with {MYSQL_ENCRYPTION_HEADER_LENGTH} bytes, "
                f"{len(header)} are there"
            )
        if header[:4] != MYSQL_ENCRYPTED_MAGIC:
            raise InvalidValueError("an encrypted file of MySQL begins with fd 62 69 6e")
        if header[4] != 1:
            raise UnsupportedError(f"encryption version {header[4]} of a MySQL file; 1 is known")
        fields = _header_fields(header)
        try:
            self.key_id = fields[_KEY_ID].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidValueError("the key id of an encrypted file is not UTF-8") from error
        key = keys.find(self.key_id)
        unwrap = _cipher(key, "CBC", fields[_PASSWORD_IV]).decryptor()
        password = unwrap.update(fields[_PASSWORD]) + unwrap.finalize()
        digest = hashlib.sha512(password).digest()
        self._context = _cipher(digest[:32], "CTR", digest[32:40] + bytes(8)).decryptor()

    def update(self, data: bytes) -> bytes:
        """Decrypt what follows in the file."""
        return self._context.update(data)


def _header_fields(header: bytes) -> dict[int, bytes]:
    """Read the fields of MySQL's header up to the zero that ends them."""
    fields: dict[int, bytes] = {}
    at = 5
    while header[at]:
        kind = header[at]
        if kind not in (_KEY_ID, _PASSWORD, _PASSWORD_IV):
            raise InvalidValueError(f"field {kind} at offset {at} in the header of an encrypted file")
        size = {_PASSWORD: _PASSWORD_SIZE, _PASSWORD_IV: _BLOCK}.get(kind)
        at += 1
        if size is None:
            size, at = header[at], at + 1
        if at + size >= MYSQL_ENCRYPTION_HEADER_LENGTH:
            raise TruncatedError(f"field {kind} reaches past the header of an encrypted file")
        fields[kind] = header[at : at + size]
        at += size
    if len(fields) != 3:
        raise InvalidValueError("the header of an encrypted file lacks its key id, its password or the IV")
    return fields


class MariadbDecryptor:
    """Decrypts the events of one MariaDB file after its START_ENCRYPTION, in their order."""

    __slots__ = ("_cipher", "_given", "_key", "_key_version", "_nonce")

    def __init__(self, start: StartEncryptionEvent, keys: LogKeys) -> None:
        """Raise UnsupportedError for another scheme, MissingStateError where the key is not there."""
        if start.crypto_scheme != 1:
            raise UnsupportedError(f"encryption scheme {start.crypto_scheme} of a MariaDB log; 1 is known")
        self._key = keys.find(start.key_version)
        self._key_version = start.key_version
        self._nonce = start.nonce
        self._given = keys.mariadb_cipher
        self._cipher: MariadbCipher | None = None

    def decrypt(self, data: bytes, position: int) -> bytes:
        """Decrypt one event, which stands at ``position`` of its file; give it as it was before.

        Raises TruncatedError for less than its header, and InvalidValueError where the first event shows that
        the key or the cipher is another.
        """
        if len(data) < HEADER_LENGTH:
            raise TruncatedError(f"an encrypted event of {len(data)} bytes has no room for its header")
        if self._cipher is not None:
            return self._plain(data, position, self._cipher)
        ciphers = _MARIADB_CIPHERS if self._given is None else (self._given,)
        for cipher in ciphers:
            plain = self._plain(data, position, cipher)
            if _is_event(plain, position):
                self._cipher = cipher
                return plain
        tried = " and ".join(ciphers)
        other = "" if self._given is None else ", or the cipher another one"
        raise InvalidValueError(
            f"what key version {self._key_version} decrypts with {tried} is not an event: the log was "
            f"written with another key{other}"
        )

    def _plain(self, data: bytes, position: int, cipher: MariadbCipher) -> bytes:
        iv = self._nonce + (position & 0xFFFFFFFF).to_bytes(4, "little")
        plain = self._decrypt(data[4:9] + data[:4] + data[13:], iv, cipher)
        return plain[5:9] + plain[:5] + data[9:13] + plain[9:]

    def _decrypt(self, data: bytes, iv: bytes, cipher: MariadbCipher) -> bytes:
        if cipher == "AES_CTR":
            return _cipher(self._key, "CTR", iv).decryptor().update(data)
        whole = len(data) - len(data) % _BLOCK
        plain = _cipher(self._key, "CBC", iv).decryptor().update(data[:whole])
        mask = _cipher(self._key, "ECB").encryptor().update(iv)
        return plain + bytes(a ^ b for a, b in zip(data[whole:], mask, strict=False))


def _is_event(data: bytes, position: int) -> bool:
    """Return whether this is an event: its checksum matches, or its type is known and its end is plausible.

    The header may have 0 as the end, and in relay logs the source's position.
    """
    next_position = int.from_bytes(data[13:17], "little")
    says_its_end = next_position in (0, position + len(data) & 0xFFFFFFFF)
    return checksum_matches(data) or (says_its_end and data[4] in _KNOWN_TYPES)
