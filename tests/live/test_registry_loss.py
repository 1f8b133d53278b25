"""A schema registry that loses its data, and gives ids to other schemas: nobody reads by a foreign one.

The registry is a real one of its own. What it loses is its file, as a container without a volume does, or
what came after a copy of it.
"""

import shutil
from contextlib import suppress

import pytest
from confluent_kafka import OFFSET_END
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from millrace.avro.registry import SchemaLostError, SchemaRegistry, UnknownSchemaError
from millrace.contract import Topics
from millrace.kafka.schema_topic import SchemaTopic
from millrace.kafka.topics import topic_ids
from millrace.local import Registry
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import RegistrySettings, TopicsSettings
from tests.service_process import wait_for

from .broker_control import delete_records
from .rows_world import SERVICES, RowsWorld
from .test_rowmapper import differences, run


def schema(name):
    return {"type": "record", "name": name, "namespace": "n", "fields": [{"name": "a", "type": "long"}]}


@pytest.fixture(scope="module")
def own_registry():
    with Registry() as made:
        yield made


def lose(registry, *, copy=None):
    """Have a registry begin with the data of a copy, or with none."""
    registry.stop()
    for path in registry.folder.glob("registry.*db"):
        path.unlink()
    if copy is not None:
        for path in copy.iterdir():
            shutil.copy(path, registry.folder)
    registry.start()


def connected(registry):
    return SchemaRegistry(RegistrySettings(url=registry.url), retry_s=0.5)


def look(client):
    """Look at once, as a service does once a minute."""
    client._look_at = 0.0
    client.look()
    client._looking.join()
    client.look()


def test_a_registry_that_is_restored_or_emptied(own_registry, tmp_path):
    lose(own_registry)
    with connected(own_registry) as ours, connected(own_registry) as other:
        first = ours.register("first", schema("First"))
        own_registry.stop()
        for path in own_registry.folder.glob("registry.*db"):
            shutil.copy(path, tmp_path)
        look(ours)  # one that is down is waited for
        own_registry.start()
        second = ours.register("second", schema("Second"))
        look(ours)

        lose(own_registry, copy=tmp_path)
        with pytest.raises(UnknownSchemaError):
            other.schema(second)
        look(ours)  # it is registered again, with the same id
        assert other.schema(second) == schema("Second")

        lose(own_registry, copy=tmp_path)
        assert other.register("other", schema("Other")) == second
        other.confirm("first", schema("First"), first)
        with pytest.raises(SchemaLostError, match=f"another schema under the id {second},") as lost:
            look(ours)
        assert lost.value.exit_code is ExitCode.DATA

        lose(own_registry)
        with pytest.raises(SchemaLostError, match=f"no schema under the id {second},"):
            other.confirm("second", schema("Second"), second)


def test_a_subject_that_is_deleted(own_registry):
    with connected(own_registry) as ours:
        schema_id = ours.register("deleted", schema("Deleted"))
        ours._client.request("DELETE", "/subjects/deleted")
        with suppress(SchemaLostError):  # where its ids are deleted with it, and not given again
            ours.confirm("deleted", schema("Deleted"), schema_id)
            ours._schemas.clear()
            assert ours.schema(schema_id) == schema("Deleted")


def test_a_topic_of_schemas_that_is_emptied_or_made_again(settings, admin, source_name):
    """A number is a schema's own: what is lost is written again."""
    topic = Topics(source_name).avro

    def opened():
        return SchemaTopic(settings, source_name, TopicsSettings())

    def set_policy(policy):
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()

    def empty():
        set_policy("compact,delete")  # of one that is compacted alone no records are deleted
        wait_for(lambda: delete_records(admin, topic, OFFSET_END), None, "the end of the records")
        set_policy("compact")

    def remove():
        admin.delete_topics([topic])[topic].result()
        wait_for(lambda: topic not in topic_ids(admin, [topic]), None, "the end of the topic")

    with opened() as ours:
        number = ours.register("s", schema("A"))
        look(ours)
        for lose_all in (empty, remove):
            lose_all()
            look(ours)
            with opened() as other:
                assert other.schema(number) == schema("A")
    empty()
    with opened() as later, opened() as other:
        later.confirm("s", schema("A"), number)
        assert other.schema(number) == schema("A")


@pytest.mark.slow
def test_services_stop_and_are_led_out(kafka, own_registry, mysql, source_name, tmp_path):
    """Whichever starts first: none writes an id that is not its schema's; then the advice is followed."""
    lose(own_registry)
    with RowsWorld(kafka, own_registry, mysql, source_name, tmp_path).with_database() as world:
        world.environment["MILLRACE_KAFKA_FENCED_WAIT_S"] = "0"
        with world.services(*SERVICES):
            world.wait_for_start()
            run(world, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20)); INSERT INTO t VALUES (1, 'a')")
            world.wait_for_row("t")
        lose(own_registry)
        with connected(own_registry) as other:
            for number in range(20):
                other.register(f"other{number}", schema(f"Other{number}"))
        held = {name: len(world.messages(name)) for name in (world.topics.events, *world.table_topics())}
        for name in ("decoder", "rowmapper", "run"):
            with world.service(name, ends_with=ExitCode.DATA) as process:
                wait_for(lambda process=process: process.poll() is not None, process, "its end")
                assert "'millrace reprocess'" in process.error_output
        assert {name: len(world.messages(name)) for name in held} == held
        doctor = world.command("doctor", "--json", code=1)
        assert "under the id" in str(doctor.stdout)
        world.command("reprocess", "--yes")
        with world.services(*SERVICES):
            run(world, "INSERT INTO t VALUES (2, 'b')")
            world.registry._schemas.clear()
            world.wait_for_row("t", 2)
        assert differences(world) == {}
