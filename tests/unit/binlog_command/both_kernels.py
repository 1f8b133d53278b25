"""The outputs of ``millrace binlog`` with the kernel and without it."""

import io
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast
from unittest.mock import patch

from millrace import kernel
from millrace.binlog_command.flashback import FlashbackOptions, FlashbackOutput
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.json_output import JsonOutput
from millrace.binlog_command.records import LogDecoder, Output, RawEvent
from millrace.binlog_command.stats import StatsOutput
from millrace.binlog_command.text import TextOptions, TextOutput
from millrace.binlog_command.verify import VerifyOutput

__all__ = ["OUTPUTS", "both"]

Make = Callable[[io.BytesIO, Path], Output]
"""Makes an output to a stream, with an empty folder for the files of LOAD DATA."""


def _lines(make: Callable[[Callable[[str], None]], Output]) -> Make:
    return lambda stream, _folder: make(lambda line: cast("None", stream.write(line.encode() + b"\n")))


def _text(verbose: int, generation: Generation | None = None) -> Make:
    options = TextOptions(verbose=verbose, base64_output="decode-rows", generation=generation)
    return lambda stream, folder: TextOutput(stream, replace(options, local_load=folder))


OUTPUTS: dict[str, Make] = {
    "text": _text(2),
    "5.7": _text(1, Generation.MYSQL_5_7),
    "10.5": _text(2, Generation.MARIADB_10_5),
    "hexdump": lambda stream, folder: TextOutput(stream, TextOptions(hexdump=True, local_load=folder)),
    "flashback": lambda stream, _folder: FlashbackOutput(stream, FlashbackOptions(verbose=2, force=True)),
    "json": lambda stream, _folder: JsonOutput(stream),
    "stats": _lines(StatsOutput),
    "verify": _lines(VerifyOutput),
}


def both(
    read: Callable[[], Iterable[list[RawEvent]]], *names: str, verify: bool = True
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Write batches of events by the outputs of these names, with the kernel and without it."""
    return _written(kernel.has, read(), names, verify), _written(lambda _name: False, read(), names, verify)


def _written(
    has: Callable[[str], bool], batches: Iterable[list[RawEvent]], names: Iterable[str], verify: bool
) -> dict[str, bytes]:
    with TemporaryDirectory() as base, patch.object(kernel, "has", has):
        streams = {name: io.BytesIO() for name in names}
        folders = {name: Path(base) / name / "load" for name in names}
        for folder in folders.values():
            folder.mkdir(parents=True)
        outputs = [OUTPUTS[name](stream, folders[name]) for name, stream in streams.items()]
        for record in LogDecoder(verify=verify).records(batches):
            for output in outputs:
                output.write(record)
        for output in outputs:
            output.close()
    return {
        name: stream.getvalue().replace(os.fsencode(folders[name]), b"load")
        for name, stream in streams.items()
    }
