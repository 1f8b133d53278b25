"""What an administrator does to topics of a real Kafka while services run."""

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from millrace.kafka.client import AdminClient, admin_client
from millrace.runtime.settings import KafkaSettings

__all__ = ["AUTHORIZER", "Administrator", "delete_records"]

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Settings of a broker that knows ACLs, and allows everything that none is about."""

_TIMEOUT_S = 30


class Administrator:
    """Changes topics, and waits until that is done."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._admin = admin_client(settings)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        for future in self._admin.delete_topics([topic]).values():
            future.result(_TIMEOUT_S)

    def alter(self, topic: str, setting: str, value: str) -> None:
        """Set a setting of a topic."""
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(_TIMEOUT_S)

    def deny(self, topic: str, operation: AclOperation, kind: ResourceType = ResourceType.TOPIC) -> None:
        """Deny everybody one operation on a topic, or another resource."""
        bindings = [
            _acl(topic, kind, AclOperation.ALL, AclPermissionType.ALLOW),
            _acl(topic, kind, operation, AclPermissionType.DENY),
        ]
        for future in self._admin.create_acls(bindings).values():
            future.result(_TIMEOUT_S)

    def allow(self, topic: str, kind: ResourceType = ResourceType.TOPIC) -> None:
        """Take back what was denied."""
        wanted = AclBindingFilter(
            kind,
            topic,
            ResourcePatternType.LITERAL,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for future in self._admin.delete_acls([wanted]).values():
            future.result(_TIMEOUT_S)


def _acl(
    topic: str, kind: ResourceType, operation: AclOperation, permission: AclPermissionType
) -> AclBinding:
    return AclBinding(kind, topic, ResourcePatternType.LITERAL, "User:*", "*", operation, permission)


def delete_records(admin: AdminClient, topic: str, end: int) -> bool:
    """Delete the records before an offset; False until the log has a policy that allows it."""
    (future,) = admin.delete_records([TopicPartition(topic, 0, end)]).values()
    return future.exception(30) is None
