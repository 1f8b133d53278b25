"""Kafka Connect: one worker in standalone mode, asked through its REST interface."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from millrace.local.artifacts import bundle, fetch
from millrace.local.component import Component
from millrace.local.errors import LocalError
from millrace.local.java import find_java
from millrace.local.kafka import Kafka
from millrace.local.processes import Process

_BUSY = frozenset({400, 404, 409, 500})
"""Statuses of a worker that has not stopped, made or found a connector yet; to POST 400 is a refusal."""

_LOG4J = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
"""


class Connect(Component):
    """A worker with plugins, which are bundles of artifacts; the settings of the JVM are its defaults.

    Unless a connector says otherwise, records are JSON without schemas. ``settings`` override the worker's.
    """

    def __init__(self, kafka: Kafka, *plugins: str, settings: Mapping[str, str] | None = None) -> None:
        super().__init__("connect")
        self.version = bundle("connect").version
        self.plugins = plugins
        self.settings = dict(settings or {})
        self._kafka = kafka

    def _prepare(self) -> None:
        folder = self.folder / "plugins"
        folder.mkdir(exist_ok=True)
        for name in self.plugins:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(fetch(name))
        settings = {
            "bootstrap.servers": self._kafka.bootstrap_servers,
            "listeners": f"http://127.0.0.1:{self.ports[0]}",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "plugin.path": str(folder),
            "plugin.discovery": "only_scan",
            **self.settings,
        }
        (self.folder / "worker.properties").write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items())
        )
        (self.folder / "log4j2.properties").write_text(_LOG4J)

    def _launch(self) -> None:
        command = [
            str(find_java(17, 21).program),
            "-cp",
            f"{fetch('connect')}/*",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            f"-Djava.io.tmpdir={self.folder}",
            "org.apache.kafka.connect.cli.ConnectStandalone",
            str(self.folder / "worker.properties"),
        ]
        self.processes = [Process("connect", command, log=self.log_file, cwd=self.folder)]

    def _is_ready(self) -> bool:
        try:
            self.ask("GET", "/connectors")
        except OSError:
            return False
        return True

    @property
    def log_file(self) -> Path:
        """What the worker and its connectors say."""
        return self.folder / "connect.log"

    def begin(self, name: str, config: Mapping[str, str], *, state: str = "RUNNING") -> None:
        """Make a connector."""
        self.ask("POST", "/connectors", {"name": name, "config": dict(config), "initial_state": state})

    def end(self, name: str) -> None:
        """Remove a connector."""
        self.ask("DELETE", f"/connectors/{name}")

    def failure(self, name: str) -> str | None:
        """Return why a task of a connector has failed, which leaves the worker alive; None where none has."""
        for task in self.ask("GET", f"/connectors/{name}/status")["tasks"]:
            if task["state"] == "FAILED":
                return str(task["trace"])
        return None

    def check_task(self, name: str) -> None:
        """Raise :class:`LocalError` where a connector's task has failed."""
        if (trace := self.failure(name)) is not None:
            raise LocalError(f"the connector {name} has failed:\n{trace}")

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the worker; a refusal because it is at work on something is no answer yet."""
        deadline = time.monotonic() + self.start_timeout_s
        while True:
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.ports[0]}{path}",
                data=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                method=method,
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own address
                    text = answer.read()
            except urllib.error.HTTPError as error:
                said = error.read().decode(errors="replace")
                busy = error.code in _BUSY and (method, error.code) != ("POST", HTTPStatus.BAD_REQUEST)
                if not busy or time.monotonic() > deadline:
                    raise LocalError(f"{method} {path}: HTTP {error.code}: {said}") from error
                time.sleep(0.2)
            else:
                return json.loads(text) if text else None
