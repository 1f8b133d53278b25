"""Which partition of a table's topic a key belongs to.

Kafka's own choice is murmur2 of the key's bytes. Ours is the same of the key without the prefix of its Avro
data: that is the schema's id, and rows must not change partition when a table's schema does. Specified
by ``org.apache.kafka.common.utils.Utils.murmur2`` and ``BuiltInPartitioner``.
"""

from collections.abc import Callable, Iterable, Iterator

from millrace import kernel
from millrace.avro.registry import without_prefix

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def partition_of(key: bytes | None, partitions: int) -> int:
    """Return the partition for a key of a record; rows without a key keep to the first one."""
    if partitions == 1 or key is None:
        return 0
    return (murmur2(without_prefix(key)) & 0x7FFFFFFF) % partitions


def partitions_of(keys: Iterable[bytes | None], partitions: int) -> Iterator[int]:
    """Yield the partition of each key, as :func:`partition_of` does."""
    of = _hash()
    for key in keys:
        yield 0 if key is None else (of(without_prefix(key)) & 0x7FFFFFFF) % partitions


def _hash() -> Callable[[bytes], int]:
    """Choose what hashes keys: the kernel where it is used, else :func:`murmur2`."""
    if not kernel.has("transactions"):
        return murmur2
    from millrace.kernel import transactions  # noqa: PLC0415 - it may not be built

    return transactions.murmur2


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash that Kafka's Java clients use, as an unsigned number."""
    size = len(data)
    whole = size - size % 4
    h = _SEED ^ size
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if whole < size:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15
