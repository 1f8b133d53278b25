"""What the chaos happens to: servers, the network between them, services that are kept running."""

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from millrace.avro.registry import SchemaRegistry
from millrace.contract import RUN, SERVICES, Topics
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.local.processes import Process, reserve_port
from millrace.runtime.settings import KafkaSettings, RegistrySettings
from tests.chaos.proxy import Network
from tests.shared import PROJECT, environment_with

PROGRAMS = (*SERVICES, RUN)
FORMS: dict[str, tuple[str, ...]] = {"services": SERVICES, RUN: (RUN,)}
"""What carries a source, and what that consists of."""

DATABASE = "chaos"

EXPECTED_EXITS = {0, 3, 4, 5, 6, -signal.SIGKILL}
"""What a program may end with under faults: told to, source, Kafka, registry, taken over, killed."""

_POLL_S = 0.1
_BACKOFF_S = 0.5
_END_S = 120.0
_START_S = 600
"""A broker that comes back waits for the controllers, one of which may be standing still."""


class ChaosKafka(Kafka):
    """A cluster which each program reaches through links of its own, one per broker."""

    def __init__(self, nodes: int, network: Network) -> None:
        super().__init__(nodes, heap_mb=384)
        self._listeners = {program: [reserve_port() for _ in range(nodes)] for program in PROGRAMS}
        self._links = {
            program: [
                network.link(f"{program}-broker{node}", lambda port=port: port)
                for node, port in enumerate(ports)
            ]
            for program, ports in self._listeners.items()
        }

    def bootstrap_of(self, program: str) -> str:
        """Return the addresses of the brokers as a program is told them."""
        return ",".join(f"127.0.0.1:{link.port}" for link in self._links[program])

    def _settings(self, node: int) -> dict[str, str]:
        settings = super()._settings(node)
        names = [program.upper() for program in PROGRAMS]
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
    """A program that is started again whenever it ends, as an orchestrator would; it begins at rest."""

    def __init__(self, name: str, environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.environment = environment
        self.exits: Counter[int] = Counter()
        self.unexpected: list[str] = []
        self._also_expected: int | None = None
        self._log = log
        self._next: list[str] | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._process: Process | None = None
        self._retired = True
        self._rests = threading.Event()
        self._rests.set()
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
            self._signal(number)

    def replace(self, command: Sequence[str]) -> None:
        """Kill it, and run ``command`` in its place until that ends."""
        with self._lock:
            self._next = list(command)
            self._signal(signal.SIGKILL)

    def may_end_with(self, code: int | None) -> None:
        """Take another exit code for expected; None for none."""
        self._also_expected = code

    def retire(self) -> None:
        """Do not start it again once it has ended, until :meth:`resume`."""
        with self._lock:
            self._retired = True

    def pause(self, number: int) -> None:
        """End it by a signal, and do not start it again until :meth:`resume`."""
        with self._lock:
            self._retired = True
            self._signal(number)
        if not self._rests.wait(_END_S):
            self.unexpected.append(f"{self.name} did not end when told to: {self.log_tail(4)}")
            self.pause(signal.SIGKILL)

    def resume(self) -> Process:
        """Start it again."""
        with self._lock:
            self._process = self._launch(self._ordinary)
            self._retired = False
            self._rests.clear()
            return self._process

    def stop(self) -> int:
        """Ask it to end for good; give its exit code, 0 where it is at rest."""
        self._ending.set()
        self._thread.join()
        if self._process is None or self._rests.is_set():
            return 0
        return self._process.stop(timeout_s=_END_S)

    def log_tail(self, lines: int) -> str:
        return "" if self._process is None else self._process.log_tail(lines)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)

    def _launch(self, command: Sequence[str]) -> Process:
        return Process(self.name, command, log=self._log, env=self.environment, cwd=PROJECT)

    def _watch(self) -> None:
        while not self._ending.wait(_POLL_S):
            process = self._process
            code = None if process is None or self._rests.is_set() else process.poll()
            if process is None or code is None:
                continue
            self.exits[code] += 1
            if code not in EXPECTED_EXITS and code != self._also_expected:
                self.unexpected.append(f"{self.name} ended with {code}: {process.log_tail(4)}")
            if self._next is None:
                time.sleep(_BACKOFF_S)
            with self._lock:
                if self._retired:
                    self._rests.set()
                else:
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
        """All programs by name, also those at rest."""
        self.form = "services"

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
            for program in ("reader", RUN):
                self.network.link(f"{program}-server", lambda: self.server.port)
            for program in ("decoder", "rowmapper", RUN):
                self.network.link(f"{program}-registry", lambda: self.registry.ports[0])
            self._exits = exits.pop_all()
        return self

    def close(self) -> None:
        """End everything that still runs."""
        self._exits.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def at_work(self) -> tuple[str, ...]:
        """The programs that carry the source now."""
        return FORMS[self.form]

    @property
    def other_form(self) -> str:
        """The form that does not."""
        return next(form for form in FORMS if form != self.form)

    def start_services(self, form: str = "services") -> None:
        """Start the programs of a form, to be kept running."""
        self.form = form
        for name in PROGRAMS:
            log = self.folder / f"{name}.log"
            self.services[name] = Supervised(name, self._environment(name), log)
        for name in self.at_work:
            self.services[name].resume()

    def stop_services(self) -> dict[str, int]:
        """End all in order; give their exit codes."""
        return {name: service.stop() for name, service in self.services.items()}

    def _environment(self, program: str) -> dict[str, str]:
        links = self.network.links
        environment = environment_with(
            {
                "MILLRACE_SOURCE": self.source,
                "MILLRACE_START": "earliest",
                "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": self.kafka.bootstrap_of(program),
                "MILLRACE_KAFKA_FENCED_WAIT_S": "3",
            }
        )
        if program in ("reader", RUN):
            environment |= {
                "MILLRACE_MYSQL_HOST": "127.0.0.1",
                "MILLRACE_MYSQL_PORT": str(links[f"{program}-server"].port),
                "MILLRACE_MYSQL_USER": self.server.user,
                "MILLRACE_MYSQL_PASSWORD": self.server.password,
                "MILLRACE_MYSQL_GET_SERVER_PUBLIC_KEY": "true",
                "MILLRACE_MYSQL_HEARTBEAT_S": "1",
            }
        if program != "reader":
            port, path = links[f"{program}-registry"].port, self.registry.url.split("/", 3)[3]
            environment["MILLRACE_REGISTRY_URL"] = f"http://127.0.0.1:{port}/{path}"
        if program in ("rowmapper", RUN):
            environment["MILLRACE_ROWS_BUFFER_MIB"] = "1"  # large transactions are read a second time
        return environment
