"""A server's binary log as an input of ``millrace binlog``."""

from collections.abc import Callable, Iterator

from millrace.binlog.errors import TooLargeError
from millrace.binlog.file import MAX_EVENT_SIZE
from millrace.binlog_command.records import RawEvent
from millrace.mysql.server_log import PlacedPiece, ServerAddress, ServerLog, whole_events


class ServerInput:
    """Reads a server's logs from the first, the named or the first after a GTID set on."""

    def __init__(
        self,
        address: ServerAddress,
        *,
        after_gtids: str | None = None,
        to_last_log: bool = False,
        follow: bool = False,
        note: Callable[[str], None] = lambda _: None,
        max_event_size: int = MAX_EVENT_SIZE,
        server_id: int | None = None,
    ) -> None:
        """Read the log that ``address`` names alone, unless told ``to_last_log`` or to ``follow``.

        An event larger than ``max_event_size`` is an error.
        """
        self._address = address
        self._after_gtids = after_gtids
        self._log = ServerLog(address.mysql, follow=follow, note=note, server_id=server_id)
        self._max_event_size = max_event_size
        self._only_file = None if to_last_log or follow else address.log_file
        self.last_path = ""
        self.total_bytes = self.done_bytes = 0

    def logs(self) -> Iterator[Iterator[list[RawEvent]]]:
        """Yield the events of all logs in one run."""
        yield self._events()

    def _events(self) -> Iterator[list[RawEvent]]:
        try:
            for file, position, data in whole_events(self._counted(), self._max_event_size):
                yield [RawEvent(f"{self._address}/{file}", file, position, data)]
        except TooLargeError as error:
            error.log_file = f"{self._address}/{error.log_file}"
            raise

    def _counted(self) -> Iterator[PlacedPiece]:
        """Yield the pieces of the logs that are wanted, and count their bytes."""
        for placed in self._pieces():
            if self._only_file is not None and placed.file != self._only_file:
                return
            self.done_bytes += len(placed.piece.data)
            yield placed

    def _pieces(self) -> Iterator[PlacedPiece]:
        if self._after_gtids is not None:
            return self._log.after_gtids(self._after_gtids)
        logs = self._log.binary_logs()
        names = [log.name for log in logs]
        first = self._address.log_file or names[0]
        wanted = logs[names.index(first) :] if first in names else []
        if self._only_file is not None:
            wanted = wanted[:1]
        self.total_bytes = sum(log.size for log in wanted)
        self.last_path = f"{self._address}/{wanted[-1].name if wanted else first}"
        return self._log.pieces(first)
