"""What the row mapper says when it cannot start."""

from tests.shared import run_python


def run_rowmapper(**environment):
    settings = {"MILLRACE_SOURCE": "shop", "MILLRACE_KAFKA_CONNECT_TIMEOUT_S": "2", **environment}
    return run_python("-m", "services.rowmapper", settings=settings)


def test_registry_down(kafka, source_name, free_port):
    done = run_rowmapper(
        MILLRACE_SOURCE=source_name,
        MILLRACE_KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap_servers,
        MILLRACE_KAFKA_CONNECT_TIMEOUT_S="60",
        MILLRACE_REGISTRY_URL=f"http://127.0.0.1:{free_port}",
    )
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: the schema registry at http://127.0.0.1:{free_port} does not answer")
    assert "MILLRACE_REGISTRY_URL" in line


def test_no_registry_at_the_address(kafka, registry, source_name):
    done = run_rowmapper(
        MILLRACE_SOURCE=source_name,
        MILLRACE_KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap_servers,
        MILLRACE_KAFKA_CONNECT_TIMEOUT_S="60",
        MILLRACE_REGISTRY_URL=registry.url.replace("/apis/ccompat/v7", "/nothing"),
    )
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert "MILLRACE_REGISTRY_URL must be the root" in line


def test_no_broker(free_port):
    done = run_rowmapper(
        MILLRACE_KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{free_port}", MILLRACE_REGISTRY_URL="http://127.0.0.1:1"
    )
    assert done.returncode == 4
    assert done.stderr.startswith("error: Kafka at")
    assert len(done.stderr.splitlines()) == 1


def test_settings_that_are_wrong():
    done = run_rowmapper(MILLRACE_ROWS_BIGINT_UNSIGNED="int", MILLRACE_KAFKA_BOOTSTRAP_SERVERS="x:1")
    assert done.returncode == 2
    assert any("MILLRACE_ROWS_BIGINT_UNSIGNED is wrong" in line for line in done.stderr.splitlines())
