"""The SET statements in front of a statement: what its status variables say of the session it ran in.

Only what differs from what was printed before is printed, in the order and the words of
``Query_log_event::print_query_header`` of the generation.
"""

import re
from itertools import count

from millrace.binlog.columns.charsets import charset_name, collation_name
from millrace.binlog.events import StatementEvent, StatusVariables
from millrace.binlog.fields import encode_text
from millrace.binlog.header import EventHeader
from millrace.binlog.types import HeaderFlag, QueryFlag2, SqlMode
from millrace.binlog_command.client_text import as_digits, reads_alike
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.row_printer import sql_name, sql_string

DELIMITER = b"/*!*/;"
_OWN_DELIMITERS = re.compile(rb"/\*(\d{1,9})\*/;")
_CHARSET_COMMAND = re.compile(rb"/\*!\\C \w+ \*/")
"""What :meth:`SessionText.charset_lines` writes; what was logged ends with a line feed."""
_SUPPRESS_USE, _THREAD_SPECIFIC = int(HeaderFlag.SUPPRESS_USE_F), int(HeaderFlag.THREAD_SPECIFIC_F)
_SHORT_FORM_THREAD = 999999999

_Flag = tuple[int, bool, bytes]
_FLAGS2: tuple[_Flag, ...] = (
    (QueryFlag2.OPTION_NO_FOREIGN_KEY_CHECKS, True, b"@@session.foreign_key_checks"),
    (QueryFlag2.OPTION_AUTO_IS_NULL, False, b"@@session.sql_auto_is_null"),
    (QueryFlag2.OPTION_RELAXED_UNIQUE_CHECKS, True, b"@@session.unique_checks"),
    (QueryFlag2.OPTION_NOT_AUTOCOMMIT, True, b"@@session.autocommit"),
)
_CHECK_CONSTRAINTS: _Flag = (
    QueryFlag2.OPTION_NO_CHECK_CONSTRAINT_CHECKS,
    True,
    b"@@session.check_constraint_checks",
)
_IF_EXISTS: _Flag = (QueryFlag2.OPTION_IF_EXISTS, False, b"@@session.sql_if_exists")
_EXPLICIT_TIMESTAMP: _Flag = (
    QueryFlag2.OPTION_EXPLICIT_DEF_TIMESTAMP,
    False,
    b"@@session.explicit_defaults_for_timestamp",
)
_INSERT_HISTORY: _Flag = (
    QueryFlag2.OPTION_INSERT_HISTORY,
    False,
    b"@@session.system_versioning_insert_history",
)
"""Bits of ``flags2``, whether they turn the variable off, and the variable."""

_EXPLICIT_TIMESTAMP_SINCE = {5: 17, 6: 9, 7: 5, 8: 4, 9: 2}
"""Of MariaDB 10.5 to 10.9 the releases that began to log the setting."""


def _flags(generation: Generation, server_version: tuple[int, ...]) -> tuple[_Flag, ...]:
    """Return the flags that the text of a log of that server has."""
    if not generation.is_mariadb:
        return _FLAGS2
    flags = _FLAGS2
    if generation >= Generation.MARIADB_10_2:
        flags += (_CHECK_CONSTRAINTS,)
    if server_version >= (10, 5, 2):
        flags += (_IF_EXISTS,)
        major, minor, release = server_version
        if major > 10 or release >= _EXPLICIT_TIMESTAMP_SINCE.get(minor, 0):
            flags += (_EXPLICIT_TIMESTAMP,)
    return (*flags, _INSERT_HISTORY) if generation is Generation.MARIADB_10_11 else flags


def _delimited(statement: bytes) -> bytes:
    """Write a statement and its end; one whose text holds the delimiter gets another for itself alone.

    Clients look for the delimiter in what they take for SQL: in the body of a routine too, where nothing is
    quoted. The programs of the servers share that weakness.
    """
    if DELIMITER not in statement:
        return statement + DELIMITER + b"\n"
    taken = set(map(int, _OWN_DELIMITERS.findall(statement)))
    own = b"/*%d*/;" % next(number for number in count(1) if number not in taken)
    return b"DELIMITER %b\n%b%b\nDELIMITER %b\n" % (own, statement, own, DELIMITER)


class SessionText:
    """What the statements printed so far have set."""

    def __init__(
        self, generation: Generation, *, short_form: bool, utf8mb3: bool, sets_thread: bool = True
    ) -> None:
        """``sets_thread`` says whether the session may set the number of its thread."""
        self.generation = generation
        self.utf8mb3 = utf8mb3
        self._server_version: tuple[int, ...] = ()
        self._short_form = short_form
        self._sets_thread = sets_thread
        self._database = ""
        self._thread_id: int | None = None
        self._flags2: int | None = None
        self._flags = _flags(generation, (0, 0, 0))
        self.charset: tuple[int, ...] | None = None
        self._printed: dict[str, object] = {}
        self._previous: StatusVariables | None = None

    def ended(self, statement: bytes) -> bytes:
        """Write a statement of the session as it is and its end, or in a form that no client misreads."""
        charset = None if self.charset is None else charset_name(self.charset[0], utf8mb3=self.utf8mb3)
        if _CHARSET_COMMAND.fullmatch(statement) or reads_alike(statement, charset, self.sql_mode):
            return _delimited(statement)
        lines = map(_delimited, as_digits(statement))
        return b"# Clients do not read this statement as servers do: here are its bytes.\n" + b"".join(lines)

    @property
    def sql_mode(self) -> int | None:
        """The mode in force; None where it is not known."""
        mode = self._printed.get("sql_mode")
        return mode if isinstance(mode, int) else None

    def string(self, data: bytes) -> bytes:
        """Write a string literal of SQL as the mode in force has it."""
        if (self.sql_mode or 0) & SqlMode.NO_BACKSLASH_ESCAPES:
            return b"'%b'" % data.replace(b"'", b"''")
        return sql_string(data)

    def begin_log(self, server_version: tuple[int, ...]) -> None:
        """Take note of the server that wrote the log that begins."""
        self._server_version = server_version
        self._flags = _flags(self.generation, server_version)

    def lines(
        self, event: StatementEvent, header: EventHeader, database: str, *, controls: bool
    ) -> list[bytes]:
        """Write what stands in front of a statement: USE, the time, and all that changed in the session.

        ``database`` is the default database under its new name; ``controls`` says that the statement is one
        of those that begin or end transactions.
        """
        use: list[bytes] = []
        lines = []
        if header.flags & _SUPPRESS_USE:
            if not controls:
                self._database = ""
        elif database != self._database:
            self._database = database
            if database:
                use.append(self.ended(b"use %b" % sql_name(database)))
        variables = event.status_variables
        lines.append(self._timestamp(header.timestamp, variables))
        if self._sets_thread and (
            self._thread_id is None
            or (header.flags & _THREAD_SPECIFIC and self._thread_id != event.thread_id)
        ):
            lines.append(self.thread_line(event.thread_id))
        if variables is None:
            variables = StatusVariables()
        # Equal variables come from one cache; nothing can have changed then.
        if variables is not self._previous or variables.character_set_collations is not None:
            self._previous = variables
            lines += self._changes(variables)
        lines += self._always(variables)
        return [*use, *map(self.ended, lines)]

    def thread_line(self, thread_id: int) -> bytes:
        """Write the change to another session, by whose number temporary tables are told apart."""
        self._thread_id = thread_id
        return b"SET @@session.pseudo_thread_id=%d" % (_SHORT_FORM_THREAD if self._short_form else thread_id)

    @staticmethod
    def _timestamp(timestamp: int, variables: StatusVariables | None) -> bytes:
        micros = None
        if variables is not None:
            micros = variables.microseconds or variables.hrnow
        if micros:
            return b"SET TIMESTAMP=%d.%06d" % (timestamp, micros)
        return b"SET TIMESTAMP=%d" % timestamp

    def _changes(self, variables: StatusVariables) -> list[bytes]:
        lines = []
        if variables.flags2 is not None and variables.flags2 != self._flags2:
            lines += self._flags_line(variables.flags2)
        if variables.sql_mode is not None and self._differs("sql_mode", variables.sql_mode):
            lines.append(
                b"SET @@session.sql_mode=%d" % variables.sql_mode + self._mode_mask(variables.sql_mode)
            )
        auto = variables.auto_increment
        increment, offset = (auto.increment, auto.offset) if auto is not None else (1, 1)
        if self._differs("auto_increment", (increment, offset)):
            lines.append(
                b"SET @@session.auto_increment_increment=%d, @@session.auto_increment_offset=%d"
                % (increment, offset)
            )
        if variables.charset is not None:
            charset = variables.charset
            lines += self.charset_lines((charset.client, charset.connection, charset.server))
        return lines + self._locale_lines(variables)

    def _mode_mask(self, sql_mode: int) -> bytes:
        """Take away, on a server that does not know them any more, the modes that MySQL 8.0 dropped."""
        since_8_0 = self.generation is not Generation.MYSQL_8_0 or self._server_version >= (8, 0, 5)
        return b"" if since_8_0 or not sql_mode & SqlMode.DROPPED else b"/*!80005 &~0x%x*/" % SqlMode.DROPPED

    def _differs(self, name: str, value: object) -> bool:
        if self._printed.get(name) == value:
            return False
        self._printed[name] = value
        return True

    def _flags_line(self, flags2: int) -> list[bytes]:
        changed = ~0 if self._flags2 is None else self._flags2 ^ flags2
        self._flags2 = flags2
        settings = [
            b"%b=%d" % (variable, bool(flags2 & bit) is not negative)
            for bit, negative, variable in self._flags
            if changed & bit
        ]
        return [b"SET " + b", ".join(settings)] if settings else []

    def charset_lines(self, charset: tuple[int, ...]) -> list[bytes]:
        """Write the change to other character sets: collation ids of client, connection and server."""
        if charset == self.charset:
            return []
        self.charset = charset
        client, connection, server = charset
        name = charset_name(client, utf8mb3=self.utf8mb3)
        lines = []
        if name is not None:
            lines.append(b"/*!\\C %b */" % name.encode())
        by_name = self.generation >= Generation.MARIADB_10_5 and name is not None
        lines.append(
            b"SET @@session.character_set_client=%b,@@session.collation_connection=%d,"
            b"@@session.collation_server=%d"
            % ((name or "").encode() if by_name else b"%d" % client, connection, server)
        )
        return lines

    def _locale_lines(self, variables: StatusVariables) -> list[bytes]:
        lines = []
        collations = variables.character_set_collations
        if collations is not None and self.generation.is_mariadb:
            pairs = ",".join(
                f"{charset_name(entry.charset, utf8mb3=True)}="
                f"{collation_name(entry.collation, mariadb=True, utf8mb3=True)}"
                for entry in collations.entries
            )
            lines.append(b"SET @@session.character_set_collations='%b'" % pairs.encode())
        if variables.time_zone and self._differs("time_zone", variables.time_zone):
            lines.append(b"SET @@session.time_zone=%b" % self.string(encode_text(variables.time_zone)))
        lc_time_names = variables.lc_time_names or 0
        if self._differs("lc_time_names", lc_time_names):
            lines.append(b"SET @@session.lc_time_names=%d" % lc_time_names)
        charset_database = variables.charset_database or 0
        if self._differs("charset_database", charset_database):
            value = b"%d" % charset_database if charset_database else b"DEFAULT"
            lines.append(b"SET @@session.collation_database=" + value)
        return lines

    def _always(self, variables: StatusVariables) -> list[bytes]:
        """Write what MySQL prints with every statement that has it."""
        lines = []
        if variables.explicit_defaults_for_timestamp is not None:
            lines.append(
                b"SET @@session.explicit_defaults_for_timestamp=%d"
                % variables.explicit_defaults_for_timestamp
            )
        collation = variables.default_collation_for_utf8mb4
        if collation is not None and self._differs("default_collation_for_utf8mb4", collation):
            lines.append(b"/*!80011 SET @@session.default_collation_for_utf8mb4=%d*/" % collation)
        if variables.sql_require_primary_key is not None:
            lines.append(
                b"/*!80013 SET @@session.sql_require_primary_key=%d*/" % variables.sql_require_primary_key
            )
        if variables.default_table_encryption is not None:
            lines.append(
                b"/*!80016 SET @@session.default_table_encryption=%d*/" % variables.default_table_encryption
            )
        return lines
