"""LOAD DATA put together: the statement with the file that it loads, found by file id.

Since MySQL 5.0.3 a log says it so, with other events in between at any point::

    BEGIN_LOAD_QUERY, APPEND_BLOCK*, (EXECUTE_LOAD_QUERY | DELETE_FILE)

and MySQL 4.0 to 5.0.2 so, where CREATE_FILE holds the statement in packed form and the first block::

    CREATE_FILE, APPEND_BLOCK*, (EXEC_LOAD | DELETE_FILE)

LOAD and NEW_LOAD (MySQL 3.23 and 4.0) are statements without the file. DELETE_FILE is the end of a load that
failed. Format: ``libs/mysql/binlog/event/load_data_events.h`` of MySQL, and ``sql/log_event.cc`` of 5.7.
"""

from dataclasses import dataclass

from millrace.binlog.declaration import Event
from millrace.binlog.errors import InvalidValueError, MissingStateError
from millrace.binlog.events.control import FormatDescriptionEvent, StartEventV3
from millrace.binlog.events.load import (
    AppendBlockEvent,
    BeginLoadQueryEvent,
    CreateFileEvent,
    DeleteFileEvent,
    ExecLoadEvent,
    LoadDataEvent,
)
from millrace.binlog.events.query import ExecuteLoadQueryEvent

__all__ = ["LoadData", "LoadDataAssembler"]


@dataclass(frozen=True, slots=True)
class LoadData:
    """A LOAD DATA statement and the content of its file.

    ``statement`` is an EXECUTE_LOAD_QUERY, whose text names the file, or the packed form of a CREATE_FILE,
    LOAD or NEW_LOAD. ``content`` is None where the log does not hold the file: with the latter two.
    """

    statement: ExecuteLoadQueryEvent | LoadDataEvent
    content: bytes | None


@dataclass(slots=True)
class _File:
    created: CreateFileEvent | None
    blocks: list[bytes]


class LoadDataAssembler:
    """Takes all events of a log, in order, and gives each load where the log executes it.

    Files whose load is not over are held: ``held_bytes`` of them, never more than ``max_bytes``. To keep
    large files elsewhere, write the blocks of the events to it as they come; nothing else is in them.
    """

    __slots__ = ("_files", "held_bytes", "max_bytes")

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._files: dict[int, _File] = {}

    @property
    def open_files(self) -> tuple[int, ...]:
        """Ids of the files whose load is not over."""
        return tuple(self._files)

    def feed(self, event: Event) -> LoadData | None:
        """Take the next event; give the load that it executes, if it does.

        Raises MissingStateError for an event whose file was not begun, because the log was read from a later
        event on, and InvalidValueError when a block would make it hold more than ``max_bytes``: the file is
        forgotten then.
        """
        match event:
            case BeginLoadQueryEvent():
                self._begin(event.file_id, None, event.block_data)
            case CreateFileEvent():
                self._begin(event.file_id, event, event.block_data)
            case AppendBlockEvent():
                self._append(event.file_id, event.block_data)
            case ExecuteLoadQueryEvent():
                return LoadData(event, self._take(event.file_id)[1])
            case ExecLoadEvent():
                return self._execute(event.file_id)
            case DeleteFileEvent():
                if event.file_id in self._files:
                    self._take(event.file_id)
            case LoadDataEvent():
                return LoadData(event, None)
            case FormatDescriptionEvent() | StartEventV3() if event.created:
                self._files.clear()  # the server was restarted: no load continues
                self.held_bytes = 0
        return None

    def _begin(self, file_id: int, created: CreateFileEvent | None, block: bytes) -> None:
        if file_id in self._files:
            self._take(file_id)
        self._files[file_id] = _File(created, [])
        self._append(file_id, block)

    def _append(self, file_id: int, block: bytes) -> None:
        file = self._file(file_id)
        if self.held_bytes + len(block) > self.max_bytes:
            self._take(file_id)
            raise InvalidValueError(f"files to load, {file_id} among them, take over {self.max_bytes} bytes")
        file.blocks.append(block)
        self.held_bytes += len(block)

    def _execute(self, file_id: int) -> LoadData:
        created, content = self._take(file_id)
        if created is None:
            raise InvalidValueError(f"EXEC_LOAD names file {file_id}, which CREATE_FILE did not create")
        return LoadData(created, content)

    def _take(self, file_id: int) -> tuple[CreateFileEvent | None, bytes]:
        file = self._file(file_id)
        del self._files[file_id]
        content = b"".join(file.blocks)
        self.held_bytes -= len(content)
        return file.created, content

    def _file(self, file_id: int) -> _File:
        file = self._files.get(file_id)
        if file is None:
            raise MissingStateError(f"file {file_id} to load was begun before the events that were read")
        return file
