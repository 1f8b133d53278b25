"""The outputs of ``millrace binlog`` with the kernel for text and without it."""

import io
from collections.abc import Callable, Iterable
from typing import cast
from unittest.mock import patch

from millrace import kernel
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.json_output import JsonOutput
from millrace.binlog_command.records import LogDecoder, Output, RawEvent
from millrace.binlog_command.stats import StatsOutput
from millrace.binlog_command.text import TextOptions, TextOutput
from millrace.binlog_command.verify import VerifyOutput

__all__ = ["OUTPUTS", "both"]

Make = Callable[[io.BytesIO], Output]


def _lines(make: Callable[[Callable[[str], None]], Output]) -> Make:
    return lambda stream: make(lambda line: cast("None", stream.write(line.encode() + b"\n")))


def _text(verbose: int, generation: Generation | None = None) -> Make:
    options = TextOptions(verbose=verbose, base64_output="decode-rows", generation=generation)
    return lambda stream: TextOutput(stream, options)


OUTPUTS: dict[str, Make] = {
    "text": _text(2),
    "5.7": _text(1, Generation.MYSQL_5_7),
    "10.5": _text(2, Generation.MARIADB_10_5),
    "json": JsonOutput,
    "stats": _lines(StatsOutput),
    "verify": _lines(VerifyOutput),
}


def both(name: str, events: Iterable[RawEvent], *, verify: bool = True) -> tuple[bytes, bytes]:
    """Write events by the output of that name, with the kernel and without it."""
    events = list(events)
    written = []
    for has in (kernel.has, lambda _name: False):
        stream = io.BytesIO()
        with patch.object(kernel, "has", has):
            output = OUTPUTS[name](stream)
            for record in LogDecoder(verify=verify).records(events):
                output.write(record)
            output.close()
        written.append(stream.getvalue())
    return written[0], written[1]
