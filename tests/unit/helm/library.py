"""``python library.py LIBRARY CHART``: ``helm template`` with Helm's code as a library, again and again.

Each line of standard input is a release, a namespace and values, each line of standard output what Helm made
of them and what it said, all as JSON. The library is that of the Maven artifact ``com.marcnuri.helm-java``,
the functions and structures are those of the header beside it. It runs in a process of its own, since the
runtime of Go takes over the signals of the one that loads it.
"""

import ctypes
import json
import sys
import tempfile

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


def main(library: str, chart: str) -> None:
    helm = ctypes.CDLL(library)
    helm.Template.restype = Result
    for line in sys.stdin:
        release, namespace, values = json.loads(line)
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump(values, file)
            file.flush()
            options = Options(
                name=release.encode(),
                chart=chart.encode(),
                namespace=namespace.encode(),
                kubeVersion=KUBERNETES,
                valuesFiles=file.name.encode(),
            )
            result = helm.Template(ctypes.byref(options))
        print(json.dumps([(text or b"").decode() for text in (result.out, result.err)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
