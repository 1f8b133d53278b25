"""What services say that cannot start: one line, and an exit code."""

import pytest

from millrace.local import Kafka, Registry
from tests.service_process import source_environment
from tests.shared import run_python

SERVICES = ("reader", "decoder", "rowmapper")


def refused(service: str, code: int, environment: dict[str, str]) -> str:
    settings = {"MILLRACE_SOURCE": "shop", "MILLRACE_FILES": "/nowhere/bin.*", **environment}
    done = run_python("-m", f"services.{service}", settings=settings)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return str(line)


@pytest.mark.parametrize("service", SERVICES)
def test_no_broker(service: str, free_port: int) -> None:
    environment = {
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port}",
        "MILLRACE_KAFKA_CONNECT_TIMEOUT_S": "2",
        "MILLRACE_REGISTRY_URL": "http://127.0.0.1:1",
    }
    line = refused(service, 4, environment)
    assert line.startswith(f"error: Kafka at 127.0.0.1:{free_port} cannot be reached within 2 s: ")
    assert "MILLRACE_KAFKA_BOOTSTRAP_SERVERS" in line


@pytest.mark.parametrize("service", SERVICES[1:])
def test_no_registry(
    service: str, kafka: Kafka, registry: Registry, source_name: str, free_port: int
) -> None:
    environment = source_environment(kafka, source_name, registry)
    url = f"http://127.0.0.1:{free_port}"
    line = refused(service, 5, environment | {"MILLRACE_REGISTRY_URL": url})
    assert line.startswith(f"error: the schema registry at {url} does not answer")
    assert "MILLRACE_REGISTRY_URL" in line
    url = registry.url.replace("/apis/ccompat/v7", "/nothing")
    line = refused(service, 5, environment | {"MILLRACE_REGISTRY_URL": url})
    assert "MILLRACE_REGISTRY_URL must be the root" in line
