"""``python library.py LIBRARY RELEASE CHART NAMESPACE``: ``helm template`` with Helm's code as a library.

Values are read from standard input. The library is that of the Maven artifact ``com.marcnuri.helm-java``; the
functions and structures are those of the header beside it. It runs in a process of its own, since the runtime
of Go takes over the signals of the one that loads it.
"""

import ctypes
import sys

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


class Result(ctypes.Structure):
    """``Result``."""

    _fields_ = (("out", Text), ("err", Text), ("stdOut", Text), ("stdErr", Text))


def main(library: str, release: str, chart: str, namespace: str) -> int:
    helm = ctypes.CDLL(library)
    helm.Template.restype = Result
    options = Options(
        name=release.encode(),
        chart=chart.encode(),
        namespace=namespace.encode(),
        kubeVersion=KUBERNETES,
        valuesFiles=b"/dev/stdin",
    )
    result = helm.Template(ctypes.byref(options))
    sys.stdout.buffer.write(result.out or b"")
    sys.stderr.buffer.write(result.err or b"")
    return 1 if result.err else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
