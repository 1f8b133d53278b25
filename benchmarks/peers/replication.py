"""python-mysql-replication, the library: it decodes rows and discards them.

As a program (``python -m benchmarks.peers.replication``) this reads a log and prints how many rows it has
seen, now and then, until it is stopped. What to read is in the environment, so that no password is among its
arguments.
"""

import json
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.pipeline import PipelineResult, watch
from millrace.local import LocalStack
from millrace.local.processes import Process, tail

_SERVER_ID = 5500
_VARIABLE = "BENCHMARK_REPLICATION"
_SAY_EVERY_S = 0.1


def measure_replication(stack: LocalStack, schema: str, log_file: str, rows: int) -> PipelineResult:
    """Decode ``rows`` rows of the tables of ``schema``, from the start of a log file on."""
    database = stack.database
    wanted = {
        "connection_settings": {
            "host": database.host,
            "port": database.port,
            "user": database.user,
            "password": database.password,
        },
        "server_id": _SERVER_ID,
        "log_file": log_file,
        "log_pos": 4,
        "resume_stream": True,
        "blocking": True,
        "only_schemas": [schema],
    }
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        log = Path(folder) / "replication.log"
        command = [sys.executable, "-m", "benchmarks.peers.replication"]
        environment = {**os.environ, _VARIABLE: json.dumps(wanted)}
        process = Process("python-mysql-replication", command, log=log, env=environment, cwd=Path.cwd())

        def written() -> int:
            counts = re.findall(r"^(\d+) rows$", tail(log, 3), re.MULTILINE)
            return int(counts[-1]) if counts else 0

        try:
            return watch(stack, {"python": process}, rows, begun=lambda: written() > 0, written=written)
        finally:
            process.kill()


def _read(wanted: dict[str, Any]) -> None:
    """Read a log to its end and on, and say how many rows there were."""
    # Installed for `make bench-peers` alone.
    from pymysqlreplication import BinLogStreamReader  # noqa: PLC0415
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent  # noqa: PLC0415

    rows = 0

    def say() -> None:
        while True:
            time.sleep(_SAY_EVERY_S)
            print(f"{rows} rows", flush=True)

    threading.Thread(target=say, daemon=True).start()
    for event in BinLogStreamReader(**wanted, only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent]):
        rows += len(event.rows)


if __name__ == "__main__":
    _read(json.loads(os.environ[_VARIABLE]))
