"""Logging in, over PyMySQL's connection: which authentication methods are used, and over what.

It is the server that names the method, and whoever answers in its place may name one that reveals the
password. So a method is used only where its answer is no use to anybody but the server:

====================================  =====================================================================
``mysql_native_password``,            always: the answer is a scramble of the password and the server's salt
``client_ed25519``
``caching_sha2_password``             the scramble always; where the server then asks for the password itself
                                      as ``sha256_password`` does
``sha256_password``                   the password itself, over TLS with a verified certificate or a Unix
                                      socket. Without TLS encrypted with the server's RSA key, if that is
                                      pinned (``server_public_key_path``) or may be taken on trust
                                      (``get_server_public_key``). Over TLS whose certificate is not verified
                                      the server wants it plain: again only if its key may be taken on trust
``mysql_clear_password``, ``dialog``  the password itself, over TLS with a verified certificate alone
``mysql_old_password``, all others    never
====================================  =====================================================================

PyMySQL 1.2 sends the password itself, or encrypts it with any key that it is sent, to whoever asks; it raises
whatever comes up on answers that are malformed; and it would begin ``sha256_password`` with the password as
soon as TLS of any kind is there. What it does is kept where it is right: packets, scrambles, queries. See
"Connection Phase" in the MySQL source documentation, and MariaDB's "Connection" for ``dialog`` and
``client_ed25519``.
"""

import re
import ssl
from collections.abc import Callable
from typing import Any, Final

from pymysql import _auth, connections
from pymysql.constants import COMMAND
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from millrace.mysql.address import MysqlAddress, SslMode
from millrace.mysql.errors import ProtocolError, RefusedError
from millrace.mysql.wire import Wire
from millrace.text import shortened

TakePackets = Callable[[bytearray, int], tuple[int, int]]
"""Takes packets of rows off the front of what has come, of which the first is to have the number given.

It says how many bytes it took, and the number of the packet after them.
"""

LARGEST_PACKET: Final = 16 << 20
"""Bytes of a packet of an answer; those that carry rows of users' tables may be larger."""

_LARGEST_AT_LOGIN: Final = 64 << 10
_LARGEST_COLUMN: Final = 8 << 10
"""Bytes of the description of a column: five names of up to 256 characters, and numbers."""

_MOST_COLUMNS: Final = 4096
"""Columns of a result: the most that a table can have."""

_NULL: Final = 0xFB
_LENGTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""Bytes of a length-encoded integer, by the byte before it; none has 0xFF."""

_AT_ONCE: Final = {"mysql_native_password", "caching_sha2_password"}
"""Methods that may be begun with, since they begin with a scramble. The server asks for others."""

_TOTAL_S: Final = 600.0
_SILENCE_S: Final = 30.0

_OUTDATED: Final = (
    "an outdated method that gives the password away; give the user another one: "
    "ALTER USER … IDENTIFIED WITH caching_sha2_password BY '…'"
)
VERIFY_TLS: Final = (
    "set MILLRACE_MYSQL_SSL_CA to the file of the CA that signed the server's certificate; for a certificate "
    "that a MySQL made itself, that is ca.pem in its data folder, and MILLRACE_MYSQL_SSL_MODE=VERIFY_CA is "
    "needed too, since it names no host"
)
"""How TLS comes to be used and verified."""


# What a replica, and a login of its own, need of PyMySQL has no types.
_Connection: Any = connections.Connection
_Answer: Any = connections.MySQLResult


class Client(_Connection):  # type: ignore[misc]  # as said above
    """PyMySQL's connection over a :class:`Wire`, with limits and with authentication of our own."""

    _next_seq_id: int

    def __init__(self, address: MysqlAddress, wire: Wire, tls_context: ssl.SSLContext | None) -> None:
        """Log in. Raises a SourceError, an error of PyMySQL, or whatever it makes of a malformed answer."""
        self.address = address
        self.wire = wire
        self._tls_context = tls_context
        self._auth_plugin_name = ""
        self.total_s = self.silence_s = 0.0
        self.largest_packet = _LARGEST_AT_LOGIN
        self.method = "mysql_native_password"
        """The authentication method that was used."""
        tls: dict[str, Any] = {}
        if tls_context is None:
            tls["ssl_disabled"] = True
        elif address.ssl_mode is not SslMode.PREFERRED:
            tls["ssl"] = tls_context
        super().__init__(
            host=address.host,
            port=address.port,
            user=address.user,
            # PyMySQL would encode a text as latin1; servers compare the bytes of UTF-8.
            password=address.password.encode(),
            charset="utf8mb4",
            autocommit=True,
            program_name="millrace",
            defer_connect=True,
            **tls,
        )
        self.connect(wire)
        self.largest_packet = LARGEST_PACKET
        self.total_s, self.silence_s = _TOTAL_S, _SILENCE_S

    @property
    def verified(self) -> bool:
        """Whether it is certain who reads what we send."""
        return self.wire.tls and self.address.ssl_mode.verifies

    @property
    def may_give_password(self) -> bool:
        """Whether a server that asks for the password itself gets it, in clear or encrypted for its key."""
        address, wire = self.address, self.wire
        pinned = address.server_public_key_path is not None and not wire.tls
        return self.verified or wire.private or pinned or address.get_server_public_key

    def stream(self, sql: str) -> "_Result":
        """Run a statement; return its result, whose rows are read one by one, as the server prints them."""
        self._execute_command(COMMAND.COM_QUERY, sql)
        result = _Result(self, convert=False)
        self._result = None
        result.init_unbuffered_query()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result

    def take_packets(self, take: TakePackets) -> None:
        """Let ``take`` have the packets that have come."""
        received = self.wire.received
        if received:
            taken, self._next_seq_id = take(received, self._next_seq_id)
            del received[:taken]

    def forget(self, result: "_Result") -> None:
        """Close the connection if a result was left before its end: to read it all might take forever."""
        if result.unbuffered_active:
            result.unbuffered_active = False
            result.connection = self._result = None
            self._force_close()

    def close(self) -> None:
        """Say goodbye, to a server that listens, and close the socket."""
        if self._sock is not None:
            self.wire.say_goodbye(b"\1\0\0\0\1")
        self._closed = True
        self._force_close()

    # -- PyMySQL's own, with limits -----------------------------------------------------------------

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        if self._result is not None and self._result.has_next:
            raise ProtocolError(f"{self.address}: it announces a second result for a statement that has one")
        if self.total_s:
            self.wire.begin(self.total_s, self.silence_s)
        super()._execute_command(command, sql)

    def _read_packet(self, packet_type: type[MysqlPacket] = MysqlPacket) -> Any:
        self.wire.allowance = (
            _LARGEST_COLUMN if packet_type is FieldDescriptorPacket else self.largest_packet
        ) + 4
        if self._result is not None and self._result.unbuffered_active:
            # Of rows that are read as they come, whoever reads them may take his time; the server may not.
            self.wire.begin(self.total_s, self.silence_s)
        return super()._read_packet(packet_type)

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        self._result = None
        result = _Result(self)
        if unbuffered:
            result.init_unbuffered_query()
        else:
            result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows

    def _create_ssl_ctx(self, _options: Any) -> "_Tls | None":
        return None if self._tls_context is None else _Tls(self._tls_context)

    # -- the login ----------------------------------------------------------------------------------

    def _get_server_information(self) -> None:
        self.wire.doing = "waiting for its greeting"
        super()._get_server_information()
        if self.protocol_version != 10 or not re.match(r"\d+\.", self.server_version):
            raise ProtocolError(
                f"{self.address}: it greets as version {shortened(self.server_version, 60)!r} with protocol "
                f"{self.protocol_version}, expected a MySQL or MariaDB server with protocol 10"
            )
        self.wire.doing = "logging in"
        if self._auth_plugin_name not in _AT_ONCE:
            self._auth_plugin_name = "mysql_native_password"
        self.method = self._auth_plugin_name

    def _get_auth_plugin_handler(self, plugin_name: bytes) -> "_Method":
        self.wire.doing = "logging in"
        return _Method(self, plugin_name)


class _Result(_Answer):  # type: ignore[misc]  # as said above
    """A result whose head is looked at before it is believed."""

    def __init__(self, client: Client, *, convert: bool = True) -> None:
        super().__init__(client)
        self.converters: list[tuple[str | None, Any]] = []
        self._convert = convert

    def __del__(self) -> None:
        """Leave the rest of a result that was given up: PyMySQL reads on here, which might take forever."""

    def _get_descriptions(self) -> None:
        if not 0 < (self.field_count or 0) <= _MOST_COLUMNS:
            raise ProtocolError(
                f"{self.connection.address}: it announces a result of {self.field_count} columns, and no "
                f"table has more than {_MOST_COLUMNS}"
            )
        super()._get_descriptions()
        if not self._convert:
            self.converters = [(encoding, None) for encoding, _ in self.converters]

    def _read_row_from_packet(self, packet: Any) -> tuple[Any, ...]:
        if self._convert:
            return tuple(super()._read_row_from_packet(packet))
        # As PyMySQL does it, without conversions, and strictly: what must be there is, and nothing else.
        data: bytes = packet.get_all_data()
        row: list[str | bytes | None] = []
        at = 0
        for encoding, _ in self.converters:
            size = data[at]
            at += 1
            if size == _NULL:
                row.append(None)
                continue
            if size > _NULL:
                width = _LENGTHS[size]
                size = int.from_bytes(data[at : at + width], "little")
                at += width
            value = data[at : at + size]
            at += size
            row.append(value if encoding is None else value.decode(encoding))
        if at != len(data):
            raise ValueError(f"a row of {len(data)} bytes has values of {at}")
        return tuple(row)

    def _read_load_local_packet(self, _first_packet: MysqlPacket) -> None:
        raise ProtocolError(
            f"{self.connection.address}: it asks for a file of this machine (LOAD DATA LOCAL), which no "
            "statement of ours does: do not trust that server"
        )


class _Tls:
    """What PyMySQL takes for an SSLContext: starts TLS on the wire."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def wrap_socket(self, wire: Wire, server_hostname: str) -> Wire:
        """Shake hands."""
        wire.start_tls(self._context, server_hostname)
        return wire


def tls_context(address: MysqlAddress) -> ssl.SSLContext | None:
    """Make what TLS is started with, None for no TLS; raises RefusedError for files that cannot be used."""
    mode = address.ssl_mode
    if mode is SslMode.DISABLED:
        return None
    for name in ("ssl_ca", "ssl_cert", "ssl_key"):
        path = getattr(address, name)
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            # OpenSSL's own error does not say which of the files it is.
            raise RefusedError(
                f"{address}: {path} cannot be read: {error.strerror}; see MILLRACE_MYSQL_{name.upper()}"
            ) from error
    try:
        if mode.verifies or address.ssl_ca is not None:
            context = ssl.create_default_context(cafile=address.ssl_ca and str(address.ssl_ca))
        else:  # without the system's authorities, which take 30 ms to load
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if address.ssl_cert is not None:
            context.load_cert_chain(address.ssl_cert, address.ssl_key)
    except OSError as error:  # ssl.SSLError is one
        raise RefusedError(
            f"{address}: the TLS files cannot be used: {error}; "
            "see MILLRACE_MYSQL_SSL_CA, _SSL_CERT and _SSL_KEY"
        ) from error
    # Python 3.13 refuses what MySQL makes for itself: a CA certificate without key usage.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode is SslMode.VERIFY_IDENTITY
    context.verify_mode = ssl.CERT_REQUIRED if mode.verifies else ssl.CERT_NONE
    return context


class _Method:
    """An authentication method, as PyMySQL's login calls it: with each packet that the server has for it."""

    def __init__(self, client: Client, name: bytes) -> None:
        self._client = client
        self._name = name.decode("utf-8", "replace")

    def authenticate(self, packet: Any) -> Any:
        """Answer ``packet``, and return what the server says to that."""
        client = self._client
        client.method = self._name
        steps = _METHODS.get(self._name)
        if steps is None:
            raise RefusedError(
                f"{client.address}: the server asks for the authentication plugin "
                f"{shortened(repr(self._name), 64)}, which Millrace does not have; give the user "
                f"{client.address.user!r} caching_sha2_password (MySQL) or mysql_native_password "
                "(MariaDB)"
            )
        return steps(client, packet)


def _salt(client: Client, packet: Any) -> bytes:
    """Take the salt from the server's request for a method."""
    if not packet.is_auth_switch_request():
        raise ProtocolError(f"{client.address}: it continues with a login that has no further step")
    salt = client.salt = bytes(packet.read_all()).removesuffix(b"\0")
    return salt


def _say(client: Client, data: bytes) -> Any:
    client.write_packet(data)
    return client._read_packet()


def _native(client: Client, packet: Any) -> Any:
    return _say(client, _auth.scramble_native_password(client.password, _salt(client, packet)))


def _ed25519(client: Client, packet: Any) -> Any:
    salt = _salt(client, packet)
    try:
        return _say(client, _auth.ed25519_password(client.password, salt))
    except RuntimeError as error:
        raise RefusedError(
            f"{client.address}: the user {client.address.user!r} logs in with client_ed25519, which needs "
            "the Python package PyNaCl: pip install PyNaCl"
        ) from error


def _caching_sha2(client: Client, packet: Any) -> Any:
    if packet.is_auth_switch_request():
        scramble = _auth.scramble_caching_sha2(client.password, _salt(client, packet))
        packet = _say(client, scramble)
        if not packet.is_extra_auth_data():
            return packet
    verdict = packet.get_bytes(1)
    if verdict == b"\3":
        return client._read_packet()
    if verdict != b"\4":
        raise ProtocolError(f"{client.address}: its answer to our scramble is neither yes nor no")
    return _say(client, _password(client, "caching_sha2_password", b"\2"))


def _sha256(client: Client, packet: Any) -> Any:
    _salt(client, packet)
    return _say(client, _password(client, "sha256_password", b"\1"))


def _password(client: Client, method: str, key_request: bytes) -> bytes:
    """Return the password as the server wants it: plain over TLS or a Unix socket, else encrypted."""
    address, wire, password = client.address, client.wire, bytes(client.password)
    if password and not client.may_give_password:
        raise RefusedError(
            f"{address}: the server asks for the password itself ({method}), "
            f"{_way(client)}: {VERIFY_TLS}; "
            "see docs/security.md for other ways (MILLRACE_MYSQL_SERVER_PUBLIC_KEY_PATH, "
            "_GET_SERVER_PUBLIC_KEY)"
        )
    if not password or wire.tls or (wire.private and method == "caching_sha2_password"):
        return password + b"\0"
    if address.server_public_key_path is not None:
        whose = str(address.server_public_key_path)
        try:
            key = address.server_public_key_path.read_bytes()
        except OSError as error:
            raise RefusedError(
                f"{address}: {whose} cannot be read: {error.strerror}; see "
                "MILLRACE_MYSQL_SERVER_PUBLIC_KEY_PATH"
            ) from error
    else:
        packet = _say(client, key_request)
        if not packet.is_extra_auth_data():
            raise ProtocolError(f"{address}: it was asked for its public key, and sent something else")
        key, whose = packet.get_all_data()[1:], "what the server sends"
    try:
        return bytes(_auth.sha2_rsa_encrypt(password, client.salt, key))
    except Exception as error:
        raise RefusedError(
            f"{address}: the password cannot be encrypted: {whose} is not an RSA public key in PEM form, or "
            "one that is too short for it"
        ) from error


def _clear(client: Client, packet: Any) -> Any:
    _salt(client, packet)
    _only_verified(client, "mysql_clear_password")
    return _say(client, client.password + b"\0")


def _dialog(client: Client, packet: Any) -> Any:
    """Answer the questions of MariaDB's PAM plugin: the password alone."""
    _only_verified(client, "dialog")
    question = _salt(client, packet)
    while True:
        if question[1:] != b"Password: ":
            raise RefusedError(
                f"{client.address}: at login the server asks {shortened(repr(question[1:]), 100)}, and "
                "nobody is there to answer; let the user log in with a password alone"
            )
        packet = _say(client, client.password + b"\0")
        if question[0] & 1 or packet.is_ok_packet() or packet.is_auth_switch_request():
            return packet
        question = bytes(packet.get_all_data())


def _only_verified(client: Client, method: str) -> None:
    if not client.verified:
        raise RefusedError(
            f"{client.address}: the server asks for the password in clear ({method}), {_way(client)}: "
            f"{VERIFY_TLS}; or give the user {client.address.user!r} another authentication plugin"
        )


def _way(client: Client) -> str:
    return "over TLS whose certificate is not verified" if client.wire.tls else "and there is no TLS"


def _old(client: Client, _packet: Any) -> Any:
    raise RefusedError(f"{client.address}: the server asks for mysql_old_password, {_OUTDATED}")


_METHODS: Final[dict[str, Callable[[Client, Any], Any]]] = {
    "mysql_native_password": _native,
    "client_ed25519": _ed25519,
    "caching_sha2_password": _caching_sha2,
    "sha256_password": _sha256,
    "mysql_clear_password": _clear,
    "dialog": _dialog,
    "mysql_old_password": _old,
}
