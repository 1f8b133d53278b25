"""The pipeline of the demo: where its servers are, and its three services as processes."""

import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from millrace.local.errors import LocalError
from millrace.local.processes import Process, release_port, reserve_port
from millrace.mysql.address import MysqlAddress
from millrace.mysql.settings import MysqlSettings, environment, values_of_url
from millrace.runtime.errors import SettingsError
from millrace.runtime.setting_names import KERNEL_VARIABLE, PREFIX
from millrace.runtime.settings import (
    EnvironmentSettings,
    KafkaAndRegistrySettings,
    KafkaSettings,
    RegistrySettings,
    load_settings,
    variables_of,
)

SERVICES: Final = ("reader", "decoder", "rowmapper")
_WRITTEN: Final = {
    "millrace_reader_events_total": "raw events",
    "millrace_decoder_events_total": "typed events",
    "millrace_rowmapper_rows_total": "records in row topics",
}
"""Counters of the services, and what they count."""
_SAMPLE: Final = re.compile(r"^(\w+) (\S+)$", re.MULTILINE)

_READY_TIMEOUT_S: Final = 180


class _ServerSettings(EnvironmentSettings):
    """How the server is reached where SOURCE does not say it."""

    mysql: MysqlSettings


def parse_address(url: str) -> MysqlAddress:
    """Read ``mysql://user:password@host:port``; raises SettingsError."""
    try:
        values, log_file = values_of_url(url)
    except ValueError as error:
        raise SettingsError([f"SOURCE: {error}"]) from None
    if log_file is not None or "user" not in values:
        raise SettingsError(["SOURCE is not of the form mysql://user:password@host:port"])
    # The account is the demo's, and never the reader's; how the way there is secured may stand in either.
    account = {"port": 3306, **values}
    account.setdefault("password", "")
    return load_settings(_ServerSettings, mysql=account).mysql.address()


def demo_settings(bootstrap_servers: str, registry_url: str) -> KafkaAndRegistrySettings:
    """Read what else environment and file say of Kafka and the registry; raises SettingsError."""
    return load_settings(
        KafkaAndRegistrySettings,
        kafka={"bootstrap_servers": bootstrap_servers},
        registry={"url": registry_url},
    )


def _is_kept(name: str) -> bool:
    """Whether a variable of ours is that of the services too."""
    return not name.upper().startswith(PREFIX) or name in {"MILLRACE_CACHE", KERNEL_VARIABLE}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Everything that the services and the jobs are told."""

    source: str
    database: MysqlAddress
    bootstrap_servers: str
    registry_url: str
    start: str

    def environment(self) -> dict[str, str]:
        """Return our environment with the settings of the services instead of any that it had."""
        return {
            **{name: value for name, value in os.environ.items() if _is_kept(name)},
            "MILLRACE_SOURCE": self.source,
            "MILLRACE_START": self.start,
            **variables_of("kafka", self.kafka()),
            **variables_of("registry", self.registry()),
            **environment(self.database),
        }

    def kafka(self) -> KafkaSettings:
        """Return the settings for Kafka."""
        return demo_settings(self.bootstrap_servers, self.registry_url).kafka

    def registry(self) -> RegistrySettings:
        """Return the settings for the registry."""
        return demo_settings(self.bootstrap_servers, self.registry_url).registry


class Services:
    """Reader, decoder and row mapper, each a process of its own with a log in ``folder``."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self._processes: list[Process] = []
        self._ports: list[int] = []

    def start(self) -> None:
        """Start all three and wait until each says that it is ready."""
        for name in SERVICES:
            port = reserve_port()
            self._ports.append(port)
            environment = {**self._environment, "MILLRACE_HTTP_PORT": str(port)}
            command = [sys.executable, "-P", "-m", f"services.{name}"]
            log = self._folder / f"{name}.log"
            self._processes.append(Process(name, command, log=log, env=environment))
        deadline = time.monotonic() + _READY_TIMEOUT_S
        for name, port in zip(SERVICES, self._ports, strict=True):
            while _get(port, "readyz") is None:
                self.check()
                if time.monotonic() > deadline:
                    raise LocalError(
                        f"{name} is not ready after {_READY_TIMEOUT_S} s:\n" + "\n".join(self.log_tails())
                    )
                time.sleep(0.1)

    def check(self) -> None:
        """Raise LocalError with what it said if one of them has ended."""
        for process in self._processes:
            if (code := process.poll()) is not None:
                raise LocalError(f"{process.name} ended with exit code {code}:\n{process.log_tail(15)}")

    def written(self) -> dict[str, int]:
        """Return how much the services have written, by what it is; of those that answer now."""
        # Not with prometheus_client's parser: a Ctrl-C that comes while it works is lost in it.
        samples = (_SAMPLE.findall(_get(port, "metrics") or "") for port in self._ports)
        return {_WRITTEN[name]: int(float(value)) for name, value in chain(*samples) if name in _WRITTEN}

    def stop(self) -> dict[str, int]:
        """Ask all to end in order and return their exit codes."""
        for process in self._processes:
            process.signal(signal.SIGTERM)
        codes = {process.name: process.wait_or_kill() for process in self._processes}
        self._forget()
        return codes

    def kill(self) -> None:
        """End all at once."""
        for process in self._processes:
            process.kill()
        self._forget()

    def _forget(self) -> None:
        for port in self._ports:
            release_port(port)
        self._processes, self._ports = [], []

    def log_tails(self) -> list[str]:
        """Return the end of each log."""
        return [f"{process.name}:\n{process.log_tail(5)}" for process in self._processes]


def _get(port: int, path: str) -> str | None:
    """Return what a service answers; None where it has nothing to say, or does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as response:
            return str(response.read(), "utf-8")
    except OSError:
        return None
