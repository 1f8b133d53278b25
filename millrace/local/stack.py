"""Kafka, the registry and a database server together."""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Thread
from typing import Self

from millrace.local.component import Component
from millrace.local.database import DatabaseServer, MariaDB, MySQL
from millrace.local.errors import MissingLibraryError
from millrace.local.kafka import Kafka
from millrace.local.registry import Registry
from millrace.mysql.settings import environment


class LocalStack:
    """Kafka, registry and MySQL (or MariaDB), or those ``parts`` of them, started side by side.

    Where MySQL lacks system libraries, ``say`` is told so and MariaDB is taken instead.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        mariadb: bool = False,
        database: DatabaseServer | None = None,
        parts: Collection[str] = ("kafka", "registry", "database"),
        say: Callable[[str], None] = lambda _message: None,
    ) -> None:
        self.kafka = Kafka(nodes)
        self.registry = Registry()
        self.database = database or (MariaDB() if mariadb else MySQL())
        self._parts = parts
        self._say = say

    @property
    def components(self) -> tuple[Component, ...]:
        """The components that are wanted."""
        every: dict[str, Component]
        every = {"kafka": self.kafka, "registry": self.registry, "database": self.database}
        return tuple(component for name, component in every.items() if name in self._parts)

    def start(self) -> Self:
        """Start all of them at once and return when all serve; when one cannot, none is left."""
        try:
            starting = [self._start_in_thread(component) for component in self.components]
            wait(starting)
            for started in starting:
                started.result()
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """End everything at once and remove the data."""
        for component in self.components:
            component.kill()
        self.close()

    def close(self) -> None:
        """End everything and remove the data; harmless when repeated."""
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda component: component.close(), self.components))

    def check(self) -> None:
        """Raise ComponentDiedError if something has ended."""
        for component in self.components:
            component.check()

    def environment(self) -> Iterator[tuple[str, str]]:
        """Yield the environment variables that point the services at this stack."""
        yield "MILLRACE_KAFKA_BOOTSTRAP_SERVERS", self.kafka.bootstrap_servers
        yield "MILLRACE_REGISTRY_URL", self.registry.url
        yield from environment(self.database.address).items()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_in_thread(self, component: Component) -> "Future[None]":
        """Start a component in a daemon thread, which holds nobody up when the user interrupts a download."""
        future: Future[None] = Future()

        def run() -> None:
            try:
                self._start_one(component)
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                future.set_exception(error)
            else:
                future.set_result(None)

        Thread(target=run, name=f"start {component.name}", daemon=True).start()
        return future

    def _start_one(self, component: Component) -> None:
        try:
            component.start()
        except MissingLibraryError as error:
            if isinstance(component, MariaDB):
                raise
            self._say(f"{error}. Using MariaDB instead.")
            self.database = MariaDB(server_id=self.database.server_id).start()
