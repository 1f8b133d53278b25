"""What the chaos happens to: servers, the network between them, services that are kept running."""

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from millrace.avro.registry import SchemaRegistry
from millrace.contract import Topics
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.local.processes import Process, reserve_port
from millrace.runtime.settings import KafkaSettings, RegistrySettings
from tests.chaos.proxy import Network
from tests.shared import PROJECT, environment_with

SERVICES = ("reader", "decoder", "rowmapper")
DATABASE = "chaos"

EXPECTED_EXITS = {0, 3, 4, 5, 6, -signal.SIGKILL}
"""What a service may end with under faults: told to, source, Kafka, registry, taken over, killed."""

_POLL_S = 0.1
_BACKOFF_S = 0.5
_START_S = 600
"""A broker that comes back waits for the controllers, one of which may be standing still."""


class ChaosKafka(Kafka):
    """A cluster which each service reaches through links of its own, one per broker."""

    def __init__(self, nodes: int, network: Network) -> None:
        super().__init__(nodes, heap_mb=384)
        self._listeners = {service: [reserve_port() for _ in range(nodes)] for service in SERVICES}
        self._links = {
            service: [
                network.link(f"{service}-broker{node}", lambda port=port: port)
                for node, port in enumerate(ports)
            ]
            for service, ports in self._listeners.items()
        }

    def bootstrap_of(self, service: str) -> str:
        """Give the addresses of the brokers as a service is told them."""
        return ",".join(f"127.0.0.1:{link.port}" for link in self._links[service])

    def _settings(self, node: int) -> dict[str, str]:
        settings = super()._settings(node)
        names = [service.upper() for service in SERVICES]
        opened = [f"{name}://127.0.0.1:{self._listeners[name.lower()][node]}" for name in names]
        told = [f"{name}://127.0.0.1:{self._links[name.lower()][node].port}" for name in names]
        return settings | {
            "listeners": ",".join([settings["listeners"], *opened]),
            "advertised.listeners": ",".join([f"PLAINTEXT://127.0.0.1:{self.ports[node]}", *told]),
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *names)
            ),
            "inter.broker.listener.name": "PLAINTEXT",
        }


class Supervised:
    """A service that is started again whenever it ends, as an orchestrator would."""

    def __init__(self, name: str, environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.environment = environment
        self.exits: Counter[int] = Counter()
        self.unexpected: list[str] = []
        self._also_expected: int | None = None
        self._paused = False
        self._log = log
        self._next: list[str] | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._process = self._launch(self._ordinary)
        self._thread = threading.Thread(target=self._watch, name=f"supervisor of {name}", daemon=True)
        self._thread.start()

    @property
    def _ordinary(self) -> list[str]:
        return [sys.executable, "-m", f"services.{self.name}"]

    @property
    def exit_count(self) -> int:
        """How often it has ended so far."""
        return self.exits.total()

    def another(self) -> Process:
        """Start a second one beside it, which takes over."""
        return self._launch(self._ordinary)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with self._lock:
            self._process.signal(number)

    def replace(self, command: Sequence[str]) -> None:
        """Kill it, and run ``command`` in its place until that ends."""
        with self._lock:
            self._next = list(command)
            self._process.signal(signal.SIGKILL)

    def may_end_with(self, code: int | None) -> None:
        """Take another exit code for expected; None for none."""
        self._also_expected = code

    def pause(self) -> None:
        """Kill it, and do not start it again until :meth:`resume`."""
        with self._lock:
            self._paused = True
            self._process.signal(signal.SIGKILL)
            self._process.wait(60)

    def resume(self) -> None:
        """Start it again."""
        with self._lock:
            self._process = self._launch(self._ordinary)
            self._paused = False

    def stop(self) -> int:
        """Ask it to end for good; give its exit code."""
        self._ending.set()
        self._thread.join()
        return self._process.stop(timeout_s=120)

    def log_tail(self, lines: int) -> str:
        return self._process.log_tail(lines)

    def _launch(self, command: Sequence[str]) -> Process:
        return Process(self.name, command, log=self._log, env=self.environment, cwd=PROJECT)

    def _watch(self) -> None:
        while not self._ending.wait(_POLL_S):
            code = self._process.poll()
            if code is None or self._paused:
                continue
            self.exits[code] += 1
            if code not in EXPECTED_EXITS and code != self._also_expected:
                self.unexpected.append(f"{self.name} ended with {code}: {self._process.log_tail(4)}")
            if self._next is None:
                time.sleep(_BACKOFF_S)
            with self._lock:
                if not self._paused:
                    command, self._next = self._next, None
                    self._process = self._launch(command or self._ordinary)


class Stack:
    """Servers, network and services of one source; a context manager."""

    source = "chaos"

    def __init__(self, server: MySQL | MariaDB, folder: Path, *, brokers: int) -> None:
        self.server = server
        self.folder = folder
        self.topics = Topics(self.source)
        self.network = Network()
        self.registry = Registry()
        self._brokers = brokers
        self._exits = ExitStack()
        self.services: dict[str, Supervised] = {}

    def start(self) -> Self:
        """Start servers and network; the services come later."""
        with ExitStack() as exits:
            exits.enter_context(self.network)
            self.kafka = exits.enter_context(ChaosKafka(self._brokers, self.network))
            exits.enter_context(self.registry)
            exits.enter_context(self.server)
            for component in (self.kafka, self.registry, self.server):
                component.start_timeout_s = _START_S
            self.settings = KafkaSettings(bootstrap_servers=self.kafka.bootstrap_servers)
            self.schemas = SchemaRegistry(RegistrySettings(url=self.registry.url))
            exits.callback(self.schemas.close)
            self.network.link("reader-server", lambda: self.server.port)
            for service in ("decoder", "rowmapper"):
                self.network.link(f"{service}-registry", lambda: self.registry.ports[0])
            self._exits = exits.pop_all()
        return self

    def close(self) -> None:
        """End everything that still runs."""
        self._exits.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_services(self) -> None:
        """Start all three, to be kept running."""
        for name in SERVICES:
            log = self.folder / f"{name}.log"
            self.services[name] = Supervised(name, self._environment(name), log)

    def stop_services(self) -> dict[str, int]:
        """End all three in order; give their exit codes."""
        return {name: service.stop() for name, service in self.services.items()}

    def _environment(self, service: str) -> dict[str, str]:
        links = self.network.links
        environment = environment_with(
            {
                "MILLRACE_SOURCE": self.source,
                "MILLRACE_START": "earliest",
                "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": self.kafka.bootstrap_of(service),
                "MILLRACE_KAFKA_FENCED_WAIT_S": "3",
            }
        )
        if service == "reader":
            return environment | {
                "MILLRACE_MYSQL_HOST": "127.0.0.1",
                "MILLRACE_MYSQL_PORT": str(links["reader-server"].port),
                "MILLRACE_MYSQL_USER": self.server.user,
                "MILLRACE_MYSQL_PASSWORD": self.server.password,
                "MILLRACE_MYSQL_GET_SERVER_PUBLIC_KEY": "true",
                "MILLRACE_MYSQL_HEARTBEAT_S": "1",
            }
        port, path = links[f"{service}-registry"].port, self.registry.url.split("/", 3)[3]
        environment["MILLRACE_REGISTRY_URL"] = f"http://127.0.0.1:{port}/{path}"
        if service == "rowmapper":
            environment["MILLRACE_ROWS_BUFFER_MIB"] = "1"  # large transactions are read a second time
        return environment
