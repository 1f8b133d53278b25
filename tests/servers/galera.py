"""Fail-over in a Galera cluster of three nodes: ``make test-servers``.

The servers come from Debian's packages, unpacked into the cache. Where apt-get has no MariaDB
with Galera, these tests skip.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from millrace.local import Kafka, MariaDB
from millrace.local.artifacts import cache_folder, fetch, made_once
from millrace.local.database import Option
from tests.debian import unpacked
from tests.live.reader_world import ReaderWorld
from tests.service_process import server_environment, wait_for
from tests.shared import run_python

PACKAGES = (
    "mariadb-server-core",
    "mariadb-client-core",
    "mariadb-server",
    "mariadb-backup",
    "galera-4",
    "socat",
    "libwrap0",
    "liburing2",
    "libsnappy1v5",
)
WRITTEN_AFTER = 60
DOMAIN = 100


def programs() -> Path:
    """Where the packages are unpacked."""

    def make(folder: Path) -> None:
        if unpacked(folder / "packages", *PACKAGES) is None:
            pytest.skip("apt-get has no MariaDB with Galera for this machine")

    waiting_for = "another process that unpacks Galera"
    return made_once(cache_folder() / "galera", make, waiting_for=waiting_for) / "packages" / "root"


class Node(MariaDB):
    """A node of a cluster; the first one begins it, others copy the data of one that is there."""

    def __init__(self, root: Path, others: Sequence["Node"], *, server_id: int, global_gtids: bool) -> None:
        self._root, self._others = root, others
        gtids: dict[str, Option] = {"wsrep-gtid-mode": "OFF"}
        if global_gtids:
            gtids = {
                "wsrep-gtid-mode": "ON",
                "wsrep-gtid-domain-id": DOMAIN,
                "gtid-domain-id": DOMAIN + 1 + len(others),
            }
        tls = dict.fromkeys(("ssl-ca", "ssl-cert", "ssl-key"))
        super().__init__(server_id=server_id, options={**gtids, **tls})
        self._port_count = 4
        if others:
            self.password = others[0].password

    def _find_program(self) -> Path:
        return self._root / "usr" / "sbin" / "mariadbd"

    def _base_options(self, data_folder: Path) -> dict[str, Option]:
        share = self._root / "usr" / "share" / "mysql"
        return {
            **super()._base_options(data_folder),
            "basedir": str(self._root / "usr"),
            "lc-messages-dir": str(share),
            "character-sets-dir": str(share / "charsets"),
            # mariabackup reads no buffer pool of its own size.
            "innodb-buffer-pool-size": None,
        }

    def _initialize(self, folder: Path, log: Path) -> None:
        share = self._root / "usr" / "share" / "mysql"
        names = ("mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data")
        prelude = b"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
        sql = prelude + b"".join((share / f"{name}.sql").read_bytes() for name in names)
        self._run_initialize({**self._base_options(folder), "bootstrap": True}, log, sql)

    def _environment(self) -> dict[str, str]:
        libraries = [str(folder) for folder in (self._root / "usr" / "lib").glob("*-linux-gnu")]
        libraries += [str(folder) for folder in (self._root / "lib").glob("*-linux-gnu")]
        path = [str(self._root / "usr" / name) for name in ("bin", "sbin")]
        return {
            **os.environ,
            "PATH": os.pathsep.join([*path, os.environ["PATH"]]),
            "LD_LIBRARY_PATH": os.pathsep.join([*libraries, str(fetch("libaio"))]),
        }

    def _flavor_options(self) -> dict[str, Option]:
        _, group, transfer, increment = self.ports
        members = ",".join(f"127.0.0.1:{node.ports[1]}" for node in (*self._others, self) if node.ports)
        provider = ";".join(
            (
                f"gmcast.listen_addr=tcp://127.0.0.1:{group}",
                f"ist.recv_addr=127.0.0.1:{increment}",
                "gcache.size=64M",
                "evs.suspect_timeout=PT3S",
                "evs.inactive_timeout=PT6S",
            )
        )
        return {
            **super()._flavor_options(),
            "wsrep-on": "ON",
            "wsrep-provider": str(next((self._root / "usr" / "lib").rglob("libgalera_smm.so"))),
            "wsrep-cluster-address": f"gcomm://{members}",
            "wsrep-node-address": f"127.0.0.1:{group}",
            "wsrep-sst-receive-address": f"127.0.0.1:{transfer}",
            "wsrep-sst-method": "mariabackup",
            "wsrep-sst-auth": "root:",
            "wsrep-provider-options": provider,
            "innodb-autoinc-lock-mode": 2,
            "wsrep-new-cluster": None if self._others else True,
        }

    def _is_ready(self) -> bool:
        if not super()._is_ready():
            return False
        rows = self.query("SHOW STATUS LIKE 'wsrep_local_state_comment'")
        return bool(rows) and rows[0][1] == "Synced"

    def _after_first_start(self) -> None:
        if not self._others:
            super()._after_first_start()


@contextmanager
def cluster(server_ids: Sequence[int], *, global_gtids: bool) -> Iterator[list[Node]]:
    """Three nodes; the second and third come after something was written."""
    root = programs()
    with ExitStack() as stack:
        nodes: list[Node] = []
        for server_id in server_ids:
            node = Node(root, list(nodes), server_id=server_id, global_gtids=global_gtids)
            nodes.append(stack.enter_context(node))
            if len(nodes) == 1:
                node.execute("CREATE DATABASE galera", "CREATE TABLE galera.t (id INT PRIMARY KEY)")
                insert(node, range(20))
        yield nodes


def insert(node: Node, ids: range) -> None:
    """Write each row in a transaction of its own."""
    node.execute(*(f"INSERT INTO galera.t VALUES ({id_})" for id_ in ids))


def rows_of(world: ReaderWorld) -> list[int]:
    """The ids of the rows in the raw topic, in order."""
    write_rows = 23
    return [
        int.from_bytes(each.value[-8:-4], "little")
        for each in world.raw()
        if each.in_file and each.value[4] == write_rows
    ]


def reading(kafka: Kafka, source: str, nodes: Sequence[Node]) -> ReaderWorld:
    world = ReaderWorld.of(kafka, source, nodes[0])
    del world.environment["MILLRACE_MYSQL_PORT"]
    world.environment["MILLRACE_MYSQL_HOST"] = ",".join(f"{node.host}:{node.port}" for node in nodes)
    return world


@pytest.mark.parametrize("server_ids", [(1, 1, 1), (1, 2, 3)], ids=["one server id", "server ids"])
def test_nodes_that_number_transactions_by_themselves(
    kafka: Kafka, source_name: str, server_ids: Sequence[int]
) -> None:
    """The same GTID is another transaction on another node: the reader waits for the one that was read."""
    words = "numbers transactions by itself"
    with cluster(server_ids, global_gtids=False) as nodes:
        first, second, _ = nodes
        world = reading(kafka, source_name, nodes[:2])
        with world.reader() as process:
            insert(first, range(20, 50))
            wait_for(lambda: rows_of(world) == list(range(50)), process, "the rows of the first node")
            first.kill()
            wait_for(lambda: _takes_writes(second), process, "the other nodes")
            insert(second, range(50, 50 + WRITTEN_AFTER))
            wait_for(lambda: process.output.count(words) > 2, process, "refusals")
        assert rows_of(world) == list(range(50))
        done = world.run(**server_environment(second))
        assert done.returncode == 7, done.stderr
        assert words in done.stderr
        assert "MILLRACE_START" not in done.stderr
        doctor = run_python(
            *("-m", "millrace.cli", "doctor"),
            settings={**world.environment, **server_environment(second)},
        )
        assert (doctor.returncode, words in doctor.stdout) == (1, True), doctor.stdout + doctor.stderr


def test_nodes_with_global_gtids(kafka: Kafka, source_name: str) -> None:
    with cluster((1, 1, 1), global_gtids=True) as nodes:
        first, second, _ = nodes
        world = reading(kafka, source_name, nodes[:2])
        with world.reader() as process:
            insert(first, range(20, 50))
            wait_for(lambda: rows_of(world) == list(range(50)), process, "the rows of the first node")
            first.kill()
            wait_for(lambda: _takes_writes(second), process, "the other nodes")
            insert(second, range(50, 50 + WRITTEN_AFTER))
            everything = list(range(50 + WRITTEN_AFTER))
            wait_for(lambda: rows_of(world) == everything, process, "the rows of the second node")


def _takes_writes(node: Node) -> bool:
    ((_, state),) = node.query("SHOW STATUS LIKE 'wsrep_cluster_size'")
    ((_, ready),) = node.query("SHOW STATUS LIKE 'wsrep_ready'")
    return (state, ready) == ("2", "ON")
