"""What a cluster is like, for those who check it before they use it: nothing is created or changed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not export them
    AdminClient,
    ConfigResource,
    ResourceType,
)

from millrace.kafka.errors import answer_of, translated

if TYPE_CHECKING:
    from concurrent.futures import Future

_TIMEOUT_S: Final = 30.0
_TOPICS_AT_A_TIME: Final = 500

T = TypeVar("T")

Config = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic: ``replicas`` and ``in_sync`` are those of the partition that has the fewest.

    ``operations`` are what our credentials may do with it, by Kafka's names (READ, WRITE, …).
    """

    name: str
    partitions: int
    replicas: int
    in_sync: int
    config: Config
    operations: frozenset[str]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster; ``broker_configs`` has an entry for each broker that tells its settings."""

    brokers: int
    broker_configs: Mapping[int, Config]
    topics: Mapping[str, TopicView]
    operations: frozenset[str]
    refusals: tuple[str, ...]
    """What we were not allowed to see, in Kafka's words."""
    all_topics: frozenset[str] = frozenset()
    """Names of all topics, those with other prefixes included."""


def look_at_cluster(admin: AdminClient, prefix: str) -> ClusterView:
    """Look at the brokers, and at the topics whose names begin with ``prefix``.

    Raises :class:`~millrace.kafka.errors.BrokerError` where the cluster itself tells nothing; what single
    brokers and topics refuse to tell is left out, and listed.
    """
    with translated("describing the cluster"):
        cluster: Any = answer_of(admin.describe_cluster(include_authorized_operations=True), _TIMEOUT_S)
        known = admin.list_topics(timeout=_TIMEOUT_S).topics
    names = [name for name in known if name.startswith(prefix)]
    refusals: list[str] = []
    brokers = [node.id for node in cluster.nodes]
    # Of brokers, Kafka wants to be asked one by one.
    configs = _configs(
        admin, [[ConfigResource(ResourceType.BROKER, str(number))] for number in brokers], refusals
    )
    topics = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    topic_configs = _configs(admin, _batched(topics, _TOPICS_AT_A_TIME), refusals)
    operations = _topic_operations(admin, names, refusals)
    return ClusterView(
        brokers=len(brokers),
        broker_configs={int(number): config for number, config in configs.items()},
        topics={
            name: TopicView(
                name,
                len(known[name].partitions),
                min((len(part.replicas) for part in known[name].partitions.values()), default=0),
                min((len(part.isrs) for part in known[name].partitions.values()), default=0),
                topic_configs[name],
                operations.get(name, frozenset()),
            )
            for name in names
            if name in topic_configs
        },
        operations=_names(cluster.authorized_operations),
        refusals=tuple(dict.fromkeys(refusals)),
        all_topics=frozenset(known),
    )


def _configs(
    admin: AdminClient, batches: Iterable[Sequence[ConfigResource]], refusals: list[str]
) -> dict[str, Config]:
    """Return the settings of resources by their names; those of a batch are asked for together."""
    found: dict[str, Config] = {}
    for batch in batches:
        futures: dict[ConfigResource, Future[dict[str, Any]]] = admin.describe_configs(list(batch))
        for resource, future in futures.items():
            name = resource.name
            try:
                entries = answer_of(future, _TIMEOUT_S)
            except KafkaException as error:
                refusals.append(f"settings of {name}: {error.args[0].str()}")
            else:
                # What all topics have is kept once: there may be thousands of them.
                found[name] = {
                    intern(key): intern(str(entry.value))
                    for key, entry in entries.items()
                    if entry.value is not None
                }
    return found


def _batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut a sequence into pieces of ``size``."""
    return (items[at : at + size] for at in range(0, len(items), size))


def _topic_operations(admin: AdminClient, names: list[str], refusals: list[str]) -> dict[str, frozenset[str]]:
    found = {}
    if not names:
        return {}
    futures = admin.describe_topics(TopicCollection(names), include_authorized_operations=True)
    for name, future in futures.items():
        try:
            description: Any = answer_of(future, _TIMEOUT_S)
        except KafkaException as error:
            refusals.append(f"rights on {name}: {error.args[0].str()}")
        else:
            found[name] = _names(description.authorized_operations)
    return found


def _names(operations: Any) -> frozenset[str]:
    return frozenset(operation.name for operation in operations or ())
