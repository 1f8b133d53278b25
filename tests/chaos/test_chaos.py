"""A short campaign: services and ``millrace run`` are killed at exact points, all else goes wrong once."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.local import MissingLibraryError, MySQL
from tests.chaos.campaign import Campaign
from tests.chaos.faults import Disturbed, Down, Fault, Placed, Second, Signalled, Switched
from tests.chaos.lost_tail import LostTail
from tests.chaos.stack import Stack

pytestmark = [pytest.mark.live, pytest.mark.timeout(3000)]


def rounds(stack: Stack) -> Iterator[list[Fault]]:
    """Faults, those of a list at the same time; what is at work when a list is asked for suffers them."""
    reader, decoder, rowmapper, run = stack.services.values()
    links = stack.network.links
    to_server, to_broker = links["reader-server"], links["rowmapper-broker0"]
    yield [
        Placed(reader, "before_commit", 3),
        Placed(decoder, "inside_statement", 2),
        Placed(rowmapper, "after_commit", 2, commit_every=50),
    ]
    yield [
        Placed(reader, "inside_statement", 2),
        Placed(decoder, "after_produce", 40),
        Placed(rowmapper, "before_commit", 2, commit_every=50),
    ]
    yield [
        Down("server", stack.server, stack.server.kill, 0.5),
        Placed(rowmapper, "inside_statement", 3),
    ]
    yield [
        Disturbed(to_server, "cut", to_server.cut, 1.0),
        Disturbed(to_broker, "held", to_broker.hold, 2.0),
        Second(stack, decoder),
    ]
    yield [Down("broker0", stack.kafka, stack.kafka.kill, 0.5), Signalled(reader, signal.SIGTERM)]
    yield [LostTail(stack, "raw", 2)]
    yield [Switched(stack, "fenced", behind=["decoder"], behind_s=1.0)]
    yield [Placed(run, "before_commit", 3)]
    yield [Second(stack, rowmapper)]
    yield [LostTail(stack, "events", 2)]
    yield [Switched(stack, "SIGKILL")]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(MySQL(), tmp_path, brokers=1)
    try:
        made.start()
    except MissingLibraryError as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_nothing_is_lost_and_nothing_repeated(stack: Stack) -> None:
    said: list[str] = []
    campaign = Campaign(stack, 1, say=said.append, pause_s=0.3, large_rows=300)
    with campaign.running():
        for faults in rounds(stack):
            campaign.suffer(faults)
    campaign.check()
    report = campaign.report
    assert report.problems == [], said
    assert report.verdict.problems == [], said
    assert report.missed == 0, said
    assert report.verdict.counts["closed log files equal to the server's"] > 0
