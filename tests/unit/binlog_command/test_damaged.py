"""Logs with flipped bytes: text and flashback of what is left, and no error but those for users."""

import contextlib
import io
import random
from pathlib import Path

import pytest

from millrace.binlog.file import iter_events
from millrace.binlog_command.flashback import FlashbackOptions, FlashbackOutput
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.records import LogDecoder, RawEvent
from millrace.binlog_command.text import TextOptions, TextOutput
from millrace.runtime.errors import UserError

from .made_logs import LOGS

_RUNS = 60


def _damaged(events: list[tuple[int, bytes]], chance: random.Random) -> list[RawEvent]:
    hit = chance.randrange(len(events))
    found = []
    for number, (position, data) in enumerate(events):
        damaged = bytearray(data)
        if number == hit or chance.random() < 0.05:
            for _ in range(chance.choice((1, 1, 3))):
                at = chance.choice(
                    (4, *range(13, len(data)))
                )  # not the size: the events stay cut as they are
                damaged[at] = chance.choice((0, 255, chance.randrange(256), damaged[at] ^ 1))
        found.append(RawEvent("log", "log", position, bytes(damaged)))
    return found


@pytest.mark.parametrize("name", ["mysql.000001", "mariadb.000001"])
def test_damaged_logs(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    with (LOGS / name).open("rb") as stream:
        events = list(iter_events(stream))
    for _ in range(_RUNS):
        options = TextOptions(
            verbose=chance.randrange(3),
            base64_output=chance.choice(("auto", "decode-rows")),
            hexdump=chance.random() < 0.3,
            short_form=chance.random() < 0.1,
            skip_gtids=chance.random() < 0.3,
            local_load=tmp_path,
            generation=chance.choice((None, *Generation)),
        )
        damaged = _damaged(events, chance)
        for output in (
            TextOutput(io.BytesIO(), options),
            FlashbackOutput(io.BytesIO(), FlashbackOptions(verbose=2, force=True)),
        ):
            with contextlib.suppress(UserError):
                for record in LogDecoder(verify=False).records([damaged]):
                    output.write(record)
            output.close()
