"""An executor of Spark in a pod: ``python -m spark_jobs.common.executor``.

The driver passes the executor's parameters to a pod as variables, and leaves it to the image to start Java
with them: Spark's own images have a script for that, the package pyspark has none.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

import pyspark

from millrace.local.errors import LocalError
from millrace.local.java import find_java
from millrace.runtime.exit_codes import ExitCode

_JAVA_OPTION: Final = "SPARK_JAVA_OPT_"
_MAIN: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTIONS: Final[Mapping[str, str]] = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_ABSENT_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""Spark asks for a module that small Java runtimes lack."""


def java_arguments(spark: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of Java for the variables that the driver has set.

    :raises KeyError: when one of them is absent.
    """
    numbers = sorted(
        int(name.removeprefix(_JAVA_OPTION)) for name in environment if name.startswith(_JAVA_OPTION)
    )
    options = [environment[f"{_JAVA_OPTION}{number}"] for number in numbers]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    classes = filter(None, [environment.get("SPARK_CLASSPATH"), f"{spark}/jars/*"])
    return [
        *(option for option in options if option != _ABSENT_MODULE),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(classes),
        _MAIN,
        *(part for option, name in _OPTIONS.items() for part in (option, environment[name])),
    ]


def main() -> NoReturn:
    """Become the executor that the variables describe."""
    spark = Path(pyspark.__file__).parent
    try:
        java = find_java(17, 21)
        arguments = java_arguments(spark, os.environ)
    except KeyError as error:
        _fail(f"{error.args[0]} is not set: Spark's driver sets it in the executors' pods")
    except LocalError as error:
        _fail(str(error))
    environment = {**os.environ, "JAVA_HOME": str(java.home), "SPARK_HOME": str(spark)}
    os.execve(java.program, [str(java.program), *arguments], environment)  # noqa: S606 - Java, as the driver asks


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    raise SystemExit(int(ExitCode.SETTINGS))


if __name__ == "__main__":
    main()
