"""A server's log that grows by statements alone."""

import time

from millrace.local import MariaDB, MySQL


def settle(server: MySQL | MariaDB) -> None:
    """Wait until the server adds nothing to its newest log by itself.

    MariaDB does: a checkpoint that names the log, up to a second or so behind its head.
    """
    deadline = time.monotonic() + 240
    while isinstance(server, MariaDB):
        newest = server.binlog_files[-1].name
        events = server.query(f"SHOW BINLOG EVENTS IN '{newest}'")
        if any((kind, info) == ("Binlog_checkpoint", newest) for _, _, kind, _, _, info in events):
            return
        assert time.monotonic() < deadline, f"{newest} has no checkpoint of its own"
        time.sleep(0.1)
