"""``python library.py LIBRARY``: ``helm template`` and ``helm lint`` by Helm as a library.

A line of standard input is a JSON array: the folder of a chart to lint, or in addition a release, a namespace
and values as text, to render it. The line that answers it is one of an exit code, the output and what is
wrong. The library is that of the Maven artifact ``com.marcnuri.helm-java``; the functions and structures are
those of the header beside it. It runs in a process of its own, since the runtime of Go takes over the signals
of the one that loads it.
"""

import ctypes
import json
import sys
from tempfile import NamedTemporaryFile

KUBERNETES = b"v1.36.0"
"""What the chart is rendered for; the library would take a version that is older than the chart allows."""

Text = ctypes.c_char_p
Switch = ctypes.c_int


class Options(ctypes.Structure):
    """``struct TemplateOptions``."""

    _fields_ = (
        ("name", Text),
        ("version", Text),
        ("chart", Text),
        ("namespace", Text),
        ("kubeVersion", Text),
        ("dependencyUpdate", Switch),
        ("skipCRDs", Switch),
        ("values", Text),
        ("setFiles", Text),
        ("valuesFiles", Text),
        ("certFile", Text),
        ("keyFile", Text),
        ("caFile", Text),
        ("insecureSkipTlsVerify", Switch),
        ("plainHttp", Switch),
        ("keyring", Text),
        ("debug", Switch),
        ("repositoryConfig", Text),
    )


class LintOptions(ctypes.Structure):
    """``struct LintOptions``."""

    _fields_ = (("path", Text), ("strict", Switch), ("quiet", Switch))


class Result(ctypes.Structure):
    """``Result``."""

    _fields_ = (("out", Text), ("err", Text), ("stdOut", Text), ("stdErr", Text))


def main(library: str) -> None:
    helm = ctypes.CDLL(library)
    helm.Template.restype = helm.Lint.restype = Result
    for line in sys.stdin:
        chart, *others = (text.encode() for text in json.loads(line))
        result = template(helm, chart, *others) if others else lint(helm, chart)
        failed = bool(result.err) or (result.out or b"").endswith(b"Failed: true")
        answer = int(failed), (result.out or b"").decode(), (result.err or b"").decode()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def lint(helm: ctypes.CDLL, chart: bytes) -> Result:
    return helm.Lint(ctypes.byref(LintOptions(path=chart, strict=1)))


def template(helm: ctypes.CDLL, chart: bytes, release: bytes, namespace: bytes, values: bytes) -> Result:
    with NamedTemporaryFile() as file:
        file.write(values)
        file.flush()
        options = Options(
            name=release,
            chart=chart,
            namespace=namespace,
            kubeVersion=KUBERNETES,
            valuesFiles=file.name.encode(),
        )
        return helm.Template(ctypes.byref(options))


if __name__ == "__main__":
    main(*sys.argv[1:])
