"""Records that were read before, read once more by their offsets."""

from collections.abc import Callable, Iterator

from millrace.kafka.pipe import InputReader, Record
from millrace.runtime.settings import KafkaSettings

__all__ = ["reread"]

_BATCH = 100
"""Few, since what is read again is mostly large."""


def reread(
    settings: KafkaSettings, topic: str, group: str, start: int, stop: int, *, beat: Callable[[], None]
) -> Iterator[Record]:
    """Give the records of partition 0 from offset ``start`` to before ``stop``, where the last one must be.

    ``beat`` is called now and then, as a sign of life. Raises as :class:`InputReader` does.
    """
    with InputReader(settings, topic, group) as reader:
        reader.seek(start)
        while True:
            for record in reader.read(_BATCH, 1.0):
                yield record
                if record.offset() >= stop - 1:
                    return
            beat()
