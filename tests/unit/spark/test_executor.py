"""What an executor in a pod is started with, and what is said where Kubernetes gives none."""

from pathlib import Path

import pytest

from millrace.runtime.exit_codes import ExitCode
from spark_jobs.common.executor import java_arguments
from spark_jobs.common.job import errors_in_words
from tests.shared import run_python

VARIABLES = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_EXECUTOR_POD_NAME": "exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    **{f"SPARK_JAVA_OPT_{n}": f"-Doption={n}" for n in range(11)},
    "SPARK_JAVA_OPT_11": "--add-modules=jdk.incubator.vector",
}


def test_java_is_started_as_the_driver_says() -> None:
    arguments = java_arguments(Path("/spark"), VARIABLES)
    assert arguments[:11] == [f"-Doption={n}" for n in range(11)]
    assert arguments[11:15] == ["-Xms512m", "-Xmx512m", "-cp", "/spark/jars/*"]
    options = arguments[16:]
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "exec-1",
    }
    more = java_arguments(Path("/spark"), {**VARIABLES, "SPARK_CLASSPATH": "/more/*"})
    assert more[14] == "/more/*:/spark/jars/*"


@pytest.mark.parametrize("name", ["SPARK_EXECUTOR_MEMORY", "SPARK_DRIVER_URL"])
def test_without_a_driver_it_says_so(name: str) -> None:
    rest = {other: value for other, value in VARIABLES.items() if other != name}
    done = run_python("-m", "spark_jobs.common.executor", settings=rest)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {name} is not set: Spark's driver sets it")
    assert done.stderr.count("\n") == 1


SAYS = "io.fabric8.kubernetes.client.KubernetesClientException: "
REFUSED = (
    f"a.b.E: c\n\tat d\nCaused by: {SAYS}Failure executing: GET at: https://10.0.0.1/api/v1/pods/x. "
    'Message: pods "x" is forbidden: User "u" cannot get it. Received status: Status(code=403)\n\tat e'
)
NOT_REACHED = (
    f"a.b.E: c\nCaused by: {SAYS}Operation: [get] failed.\n\tat d\n\tat e\n\t... 2 more\n"
    "Caused by: java.io.IOException: Connection refused: /10.0.0.1:443\n\tat f\n"
    "Caused by: java.net.ConnectException: Connection refused\n"
)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (REFUSED, 'pods "x" is forbidden: User "u" cannot get it'),
        (NOT_REACHED, "Connection refused: /10.0.0.1:443"),
    ],
    ids=["refused", "not reached"],
)
def test_why_there_are_no_executors_is_told(
    error: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, errors_in_words("archive"):
        raise RuntimeError(error)
    assert ended.value.code == int(ExitCode.SETTINGS)
    line = capsys.readouterr().err
    assert line.startswith(f"error: archive got no executors from Kubernetes ({told}): check --master")
    assert line.count("\n") == 1
