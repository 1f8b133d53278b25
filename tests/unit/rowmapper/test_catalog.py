"""Which definition of a table holds for an event."""

from millrace.avro.catalog import CatalogEntry
from millrace.binlog.table import TableDefinition
from services.rowmapper.catalog import Catalog, Position


def entry(name, epoch, log_file, position, engine):
    return CatalogEntry(epoch, log_file, position, TableDefinition("d", name, (), engine=engine), 1)


def test_definition_of_the_position():
    catalog = Catalog()
    for order in (2, 0, 1):
        epoch, file, position = [(0, "bin.999999", 500), (0, "bin.1000000", 4), (1, "bin.000001", 4)][order]
        catalog.add(entry("t", epoch, file, position, str(order)))

    def found(epoch, log_file, position):
        answer = catalog.find("d", "t", Position(epoch, log_file, position))
        return answer.definition.engine, answer.later

    assert found(0, "bin.999999", 499) == ("0", True)
    assert found(0, "bin.999999", 500) == ("0", False)
    assert found(0, "bin.999999", 10_000) == ("0", False)
    assert found(0, "bin.1000000", 4) == ("1", False)
    assert found(0, "bin.1000001", 4) == ("1", False)
    assert found(1, "bin.000001", 900) == ("2", False)
    assert catalog.find("d", "other", Position(0, "bin.000001", 4)) is None
