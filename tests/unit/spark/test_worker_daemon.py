"""How Spark's Python workers start."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.shared import PROJECT

RESET = struct.pack("ii", 1, 0)
"""Of SO_LINGER: a connection that is closed is reset."""


def test_a_connection_that_java_has_closed_is_not_told() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "spark_jobs.common.worker_daemon", "pyspark.worker"],
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret"}, cwd=PROJECT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        (port,) = struct.unpack(">i", process.stdout.read(4))
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert len(connection.recv(4)) == 4  # the others were forked before this one
        _, told = process.communicate()
    assert not told.decode()


def test_nothing_is_imported_from_archives() -> None:
    """A worker would read their directories again for each task."""
    spark = Path(pyspark.__file__).parent
    archives = [*(spark / "python" / "lib").glob("*.zip"), *(spark / "jars").glob("spark-core_*.jar")]
    assert len(archives) == 3
    program = (
        "import sys; from spark_jobs.common import worker_daemon; worker_daemon.leave_archives()\n"
        "import pyspark.worker, py4j; print(pyspark.__file__)\n"
        "print([type(one) for one in sys.path_importer_cache.values() if hasattr(one, 'archive')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": ":".join(map(str, archives))},
        cwd=PROJECT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [pyspark.__file__, "[]"]
