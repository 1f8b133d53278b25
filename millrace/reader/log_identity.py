"""Whether the log of a server is still the one that was read: who wrote it, and what heads its files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millrace.avro.service_state import LogIdentity, ReaderState
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events.control import FormatDescriptionEvent
from millrace.binlog.header import FIRST_POSITION
from millrace.binlog.state import StreamState
from millrace.log_files import file_order
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.dump import ReplicaIdentity
from millrace.mysql.identity import LogHead, ServerNames, read_head
from millrace.mysql.status import LogFile, binary_logs
from millrace.reader.gtids import GtidProgress
from millrace.reader.history import gtids_before, lacking


@dataclass(frozen=True, slots=True)
class LogMismatch:
    """Why a log is not the one that was read; ``reason`` says it in words.

    ``other_server`` tells that another server wrote it. ``purged`` tells that the file that was read is older
    than all that are there. ``followed_by`` is the file after one that lost its end.
    """

    reason: str
    other_server: bool
    purged: bool = False
    followed_by: LogFile | None = None


def log_mismatch(
    connection: MysqlConnection,
    replica: ReplicaIdentity | None,
    names: ServerNames,
    state: ReaderState,
    beat: Callable[[], None],
) -> LogMismatch | None:
    """Say why the server's log is another one than the state speaks of, or nothing.

    The head of a file is sent to a ``replica``; without one it is not looked at.
    """
    identity = state.identity
    other_server = _is_other_server(connection, names, identity)
    if other_server is not None and _has_names(names, identity):
        return LogMismatch(other_server, other_server=True)
    logs = binary_logs(connection)
    names_of_files = [log.name for log in logs]
    if state.log_file not in names_of_files:
        return LogMismatch(
            f"{state.log_file} is no longer there" if other_server is None else other_server,
            other_server=other_server is not None,
            purged=_is_before(state.log_file, names_of_files),
        )
    index = names_of_files.index(state.log_file)
    if replica is not None:
        head = read_head(connection.address, replica, logs[index].name, beat) if _can_tell(state) else None
        difference = None if head is None else difference_of(state, head)
        if difference is not None:
            return LogMismatch(f"of {state.log_file}, {difference}", other_server=other_server is not None)
    if logs[index].size < state.position:
        following = logs[index + 1] if index + 1 < len(logs) else None
        return LogMismatch(
            f"{state.log_file} ends at {logs[index].size}", other_server=False, followed_by=following
        )
    return None


def _has_names(names: ServerNames, identity: LogIdentity | None) -> bool:
    """Return whether the server calls itself something that can be compared."""
    return identity is not None and bool(
        (identity.server_uuid and names.uuid) or (identity.server_uid and names.uid)
    )


def _is_other_server(
    connection: MysqlConnection, names: ServerNames, identity: LogIdentity | None
) -> str | None:
    """Say in what the server is not the one that was read, or nothing."""
    if identity is None:
        return None
    if identity.server_uuid and names.uuid and identity.server_uuid != names.uuid:
        return f"server_uuid was {identity.server_uuid}, is {names.uuid}"
    if identity.server_uid and names.uid and identity.server_uid != names.uid:
        return f"server_uid was {identity.server_uid}, is {names.uid}"
    server_id = connection.number("server_id")
    # A server with a name of its own may be given another number.
    if not _has_names(names, identity) and identity.server_id != server_id:
        return f"server_id was {identity.server_id}, is {server_id}"
    return None


def _is_before(log_file: str, there: list[str]) -> bool:
    """Return whether a file, by its number, comes before all that are there."""
    order = file_order(Path(log_file))
    return all(Path(name).stem == Path(log_file).stem and order < file_order(Path(name)) for name in there)


def _can_tell(state: ReaderState) -> bool:
    """Return whether something is known of the head of the file at hand: itself, or what lies before it."""
    return state.identity is not None and bool(state.identity.created or state.gtid_set)


def difference_of(read: ReaderState, head: LogHead) -> str | None:
    """Say in what the head of a file is not that of the file which was read, or is to be read; or nothing."""
    identity = read.identity
    if identity is None:
        return None
    if not identity.created:
        # It was not there yet: all that was read must lie before it, unless that came from another log.
        before = gtids_before(head) if read.position == FIRST_POSITION and not read.left_out else None
        lost = "" if before is None else lacking(read.gtid_set, before)
        return f"the GTIDs before it lack {lost}, which was read" if lost else None
    state = StreamState()
    try:
        decoded = decode_event(head.format_description, state, verify=False)
        description = decoded.event
        if not isinstance(description, FormatDescriptionEvent):
            code = decoded.header.type_code
            return f"the first event is of type {code}, no FORMAT_DESCRIPTION_EVENT"
        seen = {
            "server_id": (identity.server_id, decoded.header.server_id),
            "server_version": (identity.server_version, description.server_version),
            "the time of its beginning": (identity.created, decoded.header.timestamp),
        }
        if identity.previous_gtids is not None and head.second is not None:
            previous = GtidProgress().previous(decode_event(head.second, state, verify=False).event)
            seen["the GTIDs before it"] = (identity.previous_gtids, previous)
    except BinlogError as error:
        return f"the head cannot be read: {error}"
    for what, (was, now) in seen.items():
        if was != now:
            return f"{what} was {was}, is {now}"
    return None
