"""``millrace binlog`` on every file of the corpus: what ``--verify`` finds, and that ``--json`` is JSON."""

import io
import json
from collections.abc import Iterator

from millrace.binlog.errors import BinlogError
from millrace.binlog_command.inputs import FileInput
from millrace.binlog_command.json_output import JsonOutput
from millrace.binlog_command.records import LogDecoder, LogRecord
from millrace.binlog_command.stats import StatsOutput
from millrace.binlog_command.verify import VerifyOutput
from tests.corpus.conftest import CorpusFile

FINDINGS = {
    # Patched by hand with its checksums left as they were.
    "MyFlash/__binlog_output_base.flashback": 2,
    "MyFlash/__binlog_output_base.flashback.405e7a": 2,
    "MyFlash/binlog_output_base.flashback": 2,
    "MyFlash/binlog_output_base.flashback.000001": 2,
    # Made for tests of the server: events were taken out or put in, or bytes changed.
    "mysql-testsuite-8.0_8.0.46/ddl_in_transaction.000001": 8,
    "mysql-testsuite-8.0_8.0.46/duplicate_xid.000001": 1,
    "mysql-testsuite-8.0_8.0.46/duplicate_xid_ddl.000001": 1,
    "mysql-testsuite-8.0_8.0.46/duplicate_xid_xa_commit.000001": 2,
    "mysql-testsuite-8.0_8.0.46/duplicate_xid_xa_rollback.000001": 2,
    "mysql-testsuite-8.0_8.0.46/malformed_xid_xa_commit.000001": 1,
    "mysql-testsuite-8.0_8.0.46/malformed_xid_xa_rollback.000001": 1,
    "mysql-testsuite-8.0_8.0.46/orphan_begin_start.000001": 7,
    "mysql-testsuite-8.0_8.0.46/orphan_rollback.000001": 1,
    "rust_mysql_common/corrupt-relay-bin.000624": 1,
    # Cut: in an event, or in a transaction.
    "osheroff_mysql-binlog-connector-java/mysql-bin.aurora-padding": 1,
    "rust_mysql_common/binlog_truncated_event.000001": 1,
    "rust_mysql_common/binlog_truncated_prev_gtid_event.000001": 1,
    "webscalesql-5.6/trunc_binlog.000001": 1,
    # Without an end: neither ROTATE nor STOP, nor the mark of a log in use.
    "galaxyengine/bugdata_80011.zip__bugdata_80011+binlog.000001": 1,
    "mariadb-10.0/mdev-4645-binlog_group_id_checksum.binlog": 1,
    "mariadb-10.0/mdev-4645-binlog_none.binlog": 1,
    "mariadb-test-data_10.11.14/binlog-header.binlog": 1,
    "mysql-cdc-rs/8.0__02_query__binlog.000001": 1,
    "mysql-testsuite-8.0_8.0.46/data_encrypted_80016.zip__data_encrypted+binlog.000002": 1,
    "mysql-testsuite-8.0_8.0.46/wl12261_upgrade_80012.zip__data_80012+binlog.000001": 1,
    "mysql-testsuite-8.0_8.0.46/wl12261_upgrade_80013.zip__data_80013+binlog.000001": 1,
    # A preview of MySQL 5.1 gives positions inside of a transaction from its beginning.
    "rust_mysql_common/ver_5_1-wl2325_s.001": 2,
}


def records(file: CorpusFile, *, verify: bool) -> Iterator[LogRecord]:
    decoder = LogDecoder(verify=verify)
    for log in FileInput([str(file.path)]).logs():
        yield from decoder.records(log)


def test_what_is_damaged_is_found_and_nothing_else(corpus: list[CorpusFile]) -> None:
    found = {}
    for file in corpus:
        lines: list[str] = []
        output = VerifyOutput(lines.append)
        for record in records(file, verify=True):
            output.write(record)
        output.close()
        if output.findings:
            found[file.name] = output.findings
        assert sum(": note: " not in line for line in lines) == output.findings + 1
    assert found == FINDINGS


def test_every_event_is_a_line_of_json_and_is_counted(corpus: list[CorpusFile]) -> None:
    for file in corpus:
        lines = io.BytesIO()
        report: list[str] = []
        as_json, stats = JsonOutput(lines), StatsOutput(report.append, as_json=True)
        errors = 0
        for record in records(file, verify=False):
            errors += isinstance(record.event, BinlogError)
            as_json.write(record)
            stats.write(record)
        stats.close()
        events = [json.loads(line, parse_constant=_refuse) for line in lines.getvalue().splitlines()]
        assert sum("error" in event for event in events) == errors, file.name
        figures = json.loads(report[0])
        whole = [event for event in events if "error" not in event]
        assert figures["events"] == sum(event["sub_index"] == 0 for event in whole), file.name
        assert figures["rows"] == sum(len(event.get("rows", ())) for event in whole), file.name
        sizes = [event["size"] for event in whole if event["sub_index"] == 0]
        assert figures["bytes"] == sum(sizes), file.name


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
