"""LOAD DATA: the file in blocks, and what is done with it.

Since MySQL 5.0.3 a file comes as BEGIN_LOAD_QUERY_EVENT (17) and APPEND_BLOCK_EVENT (9), and is used by
EXECUTE_LOAD_QUERY_EVENT (18, in :mod:`millrace.binlog.events.query`) or dropped by DELETE_FILE_EVENT (11),
all bound together by ``file_id``. EXEC_LOAD_EVENT (10) is what MySQL 4.0 wrote in place of 18.
Format: MySQL's ``libs/mysql/binlog/event/load_data_events.h``.
"""

from millrace.binlog.declaration import Event, body, event, post_header
from millrace.binlog.fields import U32, RestBytes
from millrace.binlog.types import EventType

__all__ = ["AppendBlockEvent", "BeginLoadQueryEvent", "DeleteFileEvent", "ExecLoadEvent"]


@event(EventType.APPEND_BLOCK_EVENT)
class AppendBlockEvent(Event):
    """A further block of a file."""

    file_id: U32 = post_header()
    block_data: RestBytes = body()


@event(EventType.EXEC_LOAD_EVENT)
class ExecLoadEvent(Event):
    """The file is complete and is loaded as its CREATE_FILE said."""

    file_id: U32 = post_header()


@event(EventType.DELETE_FILE_EVENT)
class DeleteFileEvent(Event):
    """The load failed on the origin; the file is dropped."""

    file_id: U32 = post_header()


@event(EventType.BEGIN_LOAD_QUERY_EVENT)
class BeginLoadQueryEvent(Event):
    """The first block of a file."""

    file_id: U32 = post_header()
    block_data: RestBytes = body()
