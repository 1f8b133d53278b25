"""Spark's Python workers whose job ends while they start."""

import os
import socket
import struct
import subprocess
import sys

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
