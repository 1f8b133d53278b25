"""Names of the settings of all programs: variables of the environment, and keys of the file.

One environment and one file serve all programs, each of which uses but a part of them. A misspelt name looks
like the setting of another program, unless each program knows the names of all.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

PREFIX: Final = "MILLRACE_"
CONFIG_VARIABLE: Final = "MILLRACE_CONFIG"
KERNEL_VARIABLE: Final = "MILLRACE_KERNEL"

# generated: setting names
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "": (
        "files",
        "follow",
        "http_host",
        "http_port",
        "input_source",
        "log_level",
        "on_gap",
        "restart",
        "semi_sync",
        "skip_gap",
        "source",
        "start",
    ),
    "columns": (
        "drop",
        "hash",
        "hash_salt",
        "mask",
        "truncate",
    ),
    "kafka": (
        "bootstrap_servers",
        "compression",
        "connect_timeout_s",
        "fenced_wait_s",
        "sasl_mechanism",
        "sasl_password",
        "sasl_username",
        "security_protocol",
        "ssl_ca_location",
        "ssl_certificate_location",
        "ssl_key_location",
        "ssl_key_password",
    ),
    "mysql": (
        "allow_statements",
        "connect_timeout_s",
        "get_server_public_key",
        "heartbeat_s",
        "host",
        "password",
        "port",
        "server_id",
        "server_public_key_path",
        "ssl_ca",
        "ssl_cert",
        "ssl_key",
        "ssl_mode",
        "user",
    ),
    "registry": (
        "password",
        "ssl_ca_location",
        "ssl_certificate_location",
        "ssl_key_location",
        "ssl_key_password",
        "url",
        "username",
    ),
    "replicate": (
        "do_db",
        "do_server_ids",
        "do_table",
        "ignore_db",
        "ignore_operations",
        "ignore_server_ids",
        "ignore_table",
        "rewrite_db",
        "wild_do_table",
        "wild_ignore_table",
    ),
    "rows": (
        "bigint_unsigned",
        "binary",
        "bit",
        "buffer_mib",
        "column_attributes",
        "complete",
        "connector",
        "decimal",
        "filter",
        "format",
        "include_query",
        "key_headers",
        "keys",
        "on_incompatible",
        "propagate_source_type",
        "store",
        "temporal",
        "tombstones",
        "truncate",
        "unpacked_mib",
        "wide_decimal",
    ),
    "snapshot": (
        "chunk_mib",
        "chunk_rows",
        "exclude",
        "mode",
        "parallel",
        "rows_per_s",
        "tables",
        "where",
    ),
    "spark": (
        "cores",
        "jars",
        "memory_mib",
    ),
    "topics": (
        "max_tables",
        "names",
        "partitions",
        "raw_exclude",
        "replication_factor",
        "table_partitions",
    ),
}
# end
"""Keys by section of the file; those outside the sections under an empty name."""

RETIRED: Final = {"mysql": ("ssl_verify", "ssl_disabled")}
"""Settings of before. The program that had them says what replaces them."""

BESIDE: Final = (
    CONFIG_VARIABLE,
    KERNEL_VARIABLE,
    "MILLRACE_CACHE",
    "MILLRACE_DEMO_SOURCE",
    # of the tests and benchmarks
    "MILLRACE_BENCH_SPAWNED",
    "MILLRACE_FAULT_RUNS",
    "MILLRACE_FAULT_STEPS",
    "MILLRACE_SHARED",
)
"""Variables that are no settings of a service."""

_SERVICE_LINK: Final = re.compile(
    r"_SERVICE_HOST|_SERVICE_PORT(_\w+)?|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_LINKED_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")


def variable(section: str, key: str) -> str:
    """Return the environment variable of a key of the file."""
    return PREFIX + f"{section}_{key}".strip("_").upper()


def known_variables() -> frozenset[str]:
    """Return the environment variables that a program of ours reads."""
    return frozenset(BESIDE).union(
        variable(section, key)
        for names in (SETTINGS, RETIRED)
        for section, keys in names.items()
        for key in keys
    )


def given_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that begin as ours, without those that Kubernetes makes of Services.

    A Service ``millrace-mysql`` gives each pod of its namespace ``MILLRACE_MYSQL_PORT=tcp://10.0.0.1:3306``,
    ``MILLRACE_MYSQL_SERVICE_HOST`` and others, unless the pod has ``enableServiceLinks: false``.
    """
    return {
        name: value
        for name, value in environment.items()
        if name.upper().startswith(PREFIX) and not _is_service_link(name, value)
    }


def _is_service_link(name: str, value: str) -> bool:
    rest = name.removeprefix(PREFIX[:-1])
    if rest.endswith("_PORT") and _LINKED_ADDRESS.match(value):
        return True
    ends = _SERVICE_LINK.search(rest)
    return ends is not None and ends.end() == len(rest) and name not in known_variables()


def variable_problems(environment: Mapping[str, str]) -> list[str]:
    """Return a line for each variable that begins as ours and is none, with the name that is nearest."""
    known = known_variables()
    given = given_variables(environment)
    problems = [
        f"{name} is not a setting: unset it, and set {name}_… one by one"
        if name.removeprefix(PREFIX).lower() in SETTINGS
        else f"{name} is unknown; {_nearest(name.upper(), known)}"
        for name in sorted(given.keys() - known)
    ]
    if given.get(KERNEL_VARIABLE, "on").lower() not in {"", "on", "off"}:
        problems.append(f"{KERNEL_VARIABLE} is wrong: expected on or off")
    return problems


def file_problems(file: str, content: Mapping[str, Any]) -> list[str]:
    """Return a line for each key and section of a TOML file that no program of ours knows."""
    head = f"{CONFIG_VARIABLE}: {file}: "
    problems = []
    for name, value in content.items():
        is_section = isinstance(value, dict)
        if name in SETTINGS and name and not is_section:
            problems.append(f"{head}{name} is a section: write [{name}], and a line for each setting below")
        elif name in SETTINGS[""] and is_section:
            problems.append(f"{head}[{name}] is no section: write {name} = …, above all sections")
        elif name in SETTINGS and name:
            keys = {*SETTINGS[name], *RETIRED.get(name, ())}
            problems += [
                f"{head}{key} in [{name}] is unknown; {_nearest(key, keys)}"
                for key in value
                if key not in keys
            ]
        elif name not in SETTINGS[""]:
            known = [f"[{each}]" for each in SETTINGS if each] if is_section else SETTINGS[""]
            shown = f"[{name}]" if is_section else name
            problems.append(f"{head}{shown} is unknown; {_nearest(shown, known)}")
    return problems


def _nearest(name: str, known: Any) -> str:
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f"there is {found[0]}" if found else "docs/configuration.md has all settings"
