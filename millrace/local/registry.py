"""Apicurio Registry, which speaks the Confluent schema registry's API."""

import json
import urllib.error
import urllib.request

from millrace.local.artifacts import bundle, fetch
from millrace.local.component import Component
from millrace.local.java import class_archive, find_java
from millrace.local.processes import Process


class Registry(Component):
    """A schema registry whose schemas lie in a file and outlast a restart; compatibility BACKWARD."""

    def __init__(self) -> None:
        super().__init__("registry")
        self.version = bundle("registry").version
        self._port_count = 2

    @property
    def url(self) -> str:
        """Root of the Confluent API, version 7."""
        return f"http://127.0.0.1:{self.ports[0]}/apis/ccompat/v7"

    def _prepare(self) -> None:
        """Fetch it; it makes its data on its own."""
        fetch("registry")

    def _launch(self) -> None:
        java = find_java(21)
        command = [
            str(java.program),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            *class_archive("registry", java, fetch("registry")),
            f"-Djava.io.tmpdir={self.folder}",
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={self.ports[0]}",
            # Otherwise it serves its health on every interface, on port 9000.
            "-Dquarkus.management.host=127.0.0.1",
            f"-Dquarkus.management.port={self.ports[1]}",
            "-Dapicurio.ccompat.legacy-id-mode.enabled=false",
            # By default H2 writes half a second later: a schema in use would be lost when it is killed.
            f"-Dapicurio.datasource.url=jdbc:h2:file:{self.folder / 'registry'};WRITE_DELAY=0",
            "-jar",
            str(fetch("registry") / "quarkus-run.jar"),
        ]
        self.processes = [Process("registry", command, log=self.folder / "registry.log", cwd=self.folder)]

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5):  # noqa: S310 - our own address
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _after_first_start(self) -> None:
        self._put("/config", {"compatibility": "BACKWARD"})

    def _put(self, path: str, body: dict[str, str]) -> None:
        request = urllib.request.Request(  # noqa: S310 - our own address
            f"{self.url}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=30):  # noqa: S310 - our own address
            pass
