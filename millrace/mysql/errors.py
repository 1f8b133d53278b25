"""What can go wrong between us and a database server, in words that say what to do.

::

    SourceError
    ├── RetriableError            may pass by itself: connect again after a pause
    │   ├── UnreachableError      no connection comes about: name, port, network, server down
    │   └── LinkLostError         a connection that stood is gone, or was silent for too long
    ├── RefusedError              the server says no, or is not set up for replication; a person must act
    │   ├── ProtocolError         what it sends is not what MySQL's protocol has there, or has no end
    │   ├── DuplicateReplicaError another replica has our server id or uuid, and threw us out
    │   ├── AnonymousError        a transaction without GTID, which gtid_mode=ON keeps the server from sending
    │   ├── PurgedError           the log that we need is no longer, or was never, on this server
    │   └── PositionRefusedError  the log is there, our place in it is not: another log, or one cut short
    ├── LogMismatchError             it is not the log that was read so far, and reading cannot continue in it
    └── GapError                  what arrived does not join what came before: bytes are missing

``RetriableError`` at the very first attempt is a user's mistake as well (a wrong host name); who calls
decides. :func:`from_server` turns an error packet of the server into one of these.
"""

import re

from millrace.text import printable, shortened


class SourceError(Exception):
    """Root of all errors of this package; what a server put into the message is shown as escapes."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class RetriableError(SourceError):
    """The next attempt may succeed without anybody's help."""


class UnreachableError(RetriableError):
    """No connection comes about."""


class LinkLostError(RetriableError):
    """A connection that stood is gone."""


class RefusedError(SourceError):
    """The server refuses, and will again until somebody changes something."""


class ProtocolError(RefusedError):
    """The server sends what it may not: malformed, of a wrong kind, or more than any answer can be."""


class DuplicateReplicaError(RefusedError):
    """Another replica with our server id or uuid has connected; the server serves the last to come."""


class AnonymousError(RefusedError):
    """The log holds transactions without GTIDs, which a server with gtid_mode=ON sends to no replica."""


class PurgedError(RefusedError):
    """The server no longer has the log that we ask for."""


class PositionRefusedError(RefusedError):
    """The server has no such place in its log."""


class LogMismatchError(SourceError):
    """The server's log is not the one that was read so far, nor does its history hold what was read."""


class GapError(SourceError):
    """Bytes of the log are missing, or it is not the log that we were reading."""


_DUPLICATE_ID = (
    "another replica with our server id or uuid has connected to this server, which then ended our dump; "
    "give each replica a number of its own (MILLRACE_MYSQL_SERVER_ID here), and run one reader per source"
)

# ER_MASTER_FATAL_ERROR_READING_BINLOG carries every trouble of the dump thread; only the text tells which.
# Both the old words of the servers (master, slave) and the new ones (source, replica) occur.
_READING_BINLOG: tuple[tuple[str, type[SourceError], str], ...] = (
    (
        "could not find first log file name",
        PurgedError,
        (
            "the server no longer has the log file that we ask for (purged, reset, or never there); "
            "SHOW BINARY LOGS lists those it has"
        ),
    ),
    (
        "could not find next log",
        PurgedError,
        "the next log file is missing on the server, though its index names it",
    ),
    (
        "purged",
        PurgedError,
        (
            "the server has purged logs that hold transactions which we have not read; "
            "keep logs for longer (binlog_expire_logs_seconds), and start again from what is there"
        ),
    ),
    (
        "could not find gtid state",
        PurgedError,
        (
            "the server has purged the logs that hold the requested GTID position; "
            "keep logs for longer (expire_logs_days), and start again from what is there"
        ),
    ),
    (
        "position > file size",
        PositionRefusedError,
        "the log file on the server ends before the requested position",
    ),
    (
        "impossible position",
        PositionRefusedError,
        "the log file on the server ends before the requested position",
    ),
    (
        "which is not in the",
        PositionRefusedError,
        "the server's log does not hold the GTID that we read last: it is another log",
    ),
    (
        "more gtids than",
        PositionRefusedError,
        (
            "we have read transactions of this server that it does not have: it lost the end of its log, "
            "or was restored"
        ),
    ),
    ("same server_uuid/server_id", DuplicateReplicaError, _DUPLICATE_ID),
    ("same server_uuid", DuplicateReplicaError, _DUPLICATE_ID),
    (
        "cannot replicate anonymous transaction",
        AnonymousError,
        (
            "its log holds transactions without GTIDs, from before gtid_mode was turned ON, and in that mode "
            "it sends them to no replica; SET GLOBAL gtid_mode=ON_PERMISSIVE until the reader has passed them"
        ),
    ),
    (
        "cannot replicate gtid-transaction",
        RefusedError,
        (
            "its log holds transactions with GTIDs, and with gtid_mode=OFF it sends them to no replica; SET "
            "GLOBAL gtid_mode=OFF_PERMISSIVE until the reader has passed them"
        ),
    ),
    (
        "auto_position",
        RefusedError,
        "the server does not write GTIDs (gtid_mode is not ON); start from a file and position instead",
    ),
    ("binary log is not open", RefusedError, "the binary log is off; start the server with log_bin"),
    (
        "max_allowed_packet",
        RefusedError,
        "an event is larger than the server's max_allowed_packet; SET GLOBAL max_allowed_packet=1073741824",
    ),
    ("server id was not set", RefusedError, "the server has no server_id; set one in its configuration"),
    ("server_id is not set", RefusedError, "the server has no server_id; set one in its configuration"),
)

_LONGEST_TEXT = 512
"""Of a server's message; its own limit is MYSQL_ERRMSG_SIZE, 512 bytes."""

CONNECT = "connect"
"""What :func:`from_server` is told we were about while logging in: only there the password is in question."""

_DENIED = "check user and password (MILLRACE_MYSQL_USER, MILLRACE_MYSQL_PASSWORD)"

_NO_TLS = (
    "the server offers no TLS, which MILLRACE_MYSQL_SSL_MODE, _SSL_CA or _SSL_CERT ask for; set it up on the "
    "server, or on a network that you trust set MILLRACE_MYSQL_SSL_MODE=PREFERRED"
)

_BY_CODE: dict[int, tuple[type[SourceError], str]] = {
    1040: (RetriableError, "the server has no free connection (max_connections)"),
    1044: (RefusedError, _DENIED),
    1045: (RefusedError, _DENIED),
    1053: (LinkLostError, "the server is shutting down"),
    1079: (LinkLostError, "the server is shutting down"),
    1129: (RefusedError, "the server has blocked this host after failed attempts; run FLUSH HOSTS there"),
    1130: (RefusedError, "the server admits nobody from this host; create the user for it: 'user'@'%'"),
    1152: (LinkLostError, "the server ended the connection"),
    1158: (LinkLostError, "the server could not read from the network"),
    1159: (LinkLostError, "the server waited too long for us"),
    1160: (LinkLostError, "the server could not write to the network"),
    1161: (LinkLostError, "the server waited too long for us to read (net_write_timeout)"),
    1184: (LinkLostError, "the server ended the connection"),
    1226: (RetriableError, "the user has used up its connections (max_user_connections)"),
    1251: (
        RefusedError,
        "the server wants an outdated login; give the user a current authentication plugin",
    ),
    1317: (LinkLostError, "the query was killed on the server"),
    1698: (RefusedError, _DENIED),
    1820: (RefusedError, "the password has expired; set a new one with ALTER USER"),
    1862: (RefusedError, "the password has expired; set a new one with ALTER USER"),
    1927: (LinkLostError, "the connection was killed on the server"),
    2006: (LinkLostError, "the server has gone away"),
    2013: (LinkLostError, "the connection was lost"),
    2026: (RefusedError, _NO_TLS),
    2055: (LinkLostError, "the connection was lost"),
    2059: (RefusedError, "the user's authentication plugin is not supported; use caching_sha2_password"),
    3118: (RefusedError, "the account is locked; ALTER USER … ACCOUNT UNLOCK"),
    3169: (LinkLostError, "the session was killed on the server"),
    4052: (DuplicateReplicaError, _DUPLICATE_ID),
    4151: (RefusedError, "the account is locked; ALTER USER … ACCOUNT UNLOCK"),
}


_OF_THE_READER = "REPLICATION SLAVE, REPLICATION CLIENT, SELECT"
_PRIVILEGES = re.compile(r"THE ([A-Z_ ,]+) PRIVILEGE")
_NOT_ON_TABLES = (1142, 1143)
_NOT_ALLOWED = 1227
_NOT_ALLOWED_ONCE_IN = (1044, 1045)
"""While logging in they say that user, password or database is wrong."""


def is_denied(code: int, doing: str) -> bool:
    """Return whether an error of the server's says that our account lacks a privilege."""
    return code in (*_NOT_ON_TABLES, _NOT_ALLOWED) or (doing != CONNECT and code in _NOT_ALLOWED_ONCE_IN)


def from_server(
    code: int, text: str, *, server: str, user: str, doing: str, account: str = ""
) -> SourceError:
    """Return the error that says in words what the server's error ``code`` with ``text`` means.

    ``server`` is "host:port", ``user`` the name that we log in with, ``account`` the account that the server
    takes us for (``'user'@'host'``), ``doing`` what we were about ("connect", "dump"). The server's own text
    is always part of the message.
    """
    account = account or f"'{user}'@'%'"
    said = f"(error {code}: {shortened(printable(text.rstrip('. ')), _LONGEST_TEXT)})"
    if code in _NOT_ON_TABLES:
        # The text names the table, and the address that we come from.
        return RefusedError(
            f"{server}: user {user!r} lacks SELECT to {doing}; run GRANT SELECT ON *.* TO {account}, or "
            f"on the tables that are wanted {said}"
        )
    if is_denied(code, doing):
        return RefusedError(
            f"{server}: user {user!r} lacks a privilege to {doing}; run {grant_for(text, account)} {said}"
        )
    if code == 1236:
        lower = text.lower()
        for words, kind, meaning in _READING_BINLOG:
            if words in lower:
                return kind(f"{server}: {meaning} {said}")
        return RetriableError(
            f"{server}: the server cannot read its log at the place that it was asked for. A position that "
            "was named in MILLRACE_START or by 'millrace source reset' may not be where an event starts; "
            f"else 'millrace doctor' compares that place with the server {said}"
        )
    known = _BY_CODE.get(code)
    if known is not None:
        kind, meaning = known
        return kind(f"{server}: cannot {doing} as {user!r}: {meaning} {said}")
    return RefusedError(f"{server}: cannot {doing} as {user!r} {said}")


def grant_for(text: str, account: str) -> str:
    """Return the GRANT statement that gives ``account`` the privilege which the server's ``text`` asks for.

    Servers name one or several that would do, as in "you need (at least one of) the SUPER, REPLICATION CLIENT
    privilege(s)"; SUPER is never what we propose.
    """
    named = _PRIVILEGES.search(text.upper())
    found = [] if named is None else [one.strip() for one in named[1].split(",")]
    privilege = next((one for one in found if one != "SUPER"), None)
    return f"GRANT {privilege or _OF_THE_READER} ON *.* TO {account}"
