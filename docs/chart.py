"""What of the Helm chart follows from the settings: the schema of its values, and which value sets what."""  # noqa: INP001

import importlib
import json
import re
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from millrace.cli.job import JOBS
from millrace.decoder.settings import DecoderSettings
from millrace.reader.settings import ReaderSettings
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.setting_names import variable
from services.snapshot.settings import SnapshotSettings
from spark_jobs.common.job import RawJobSettings

CHART: Final = Path(__file__).resolve().parents[1] / "helm" / "millrace"
SOURCE: Final = "sources.*."

BY_THE_CHART: Final = {
    "MILLRACE_FOLLOW": "the chart sets it where files are read",
    "MILLRACE_HTTP_HOST": "the chart sets it",
    "MILLRACE_RESTART": "a snapshot is started over by hand",
    "MILLRACE_ROWS_STORE": "the chart sets it beside rows.complete",
    "MILLRACE_SPARK_CORES": "jobs.resources say it",
    "MILLRACE_SPARK_JARS": "the image of the jobs has them",
    "MILLRACE_SPARK_MEMORY_MIB": "jobs.resources say it",
}
"""Settings that are no values, and who says them."""

_TLS: Final = {
    "ssl_ca_location": "tls.caKey",
    "ssl_certificate_location": "tls.certificateKey",
    "ssl_key_location": "tls.privateKeyKey",
    "ssl_key_password": "tls.privateKeyPasswordKey",
}
OWN: Final = {
    "MILLRACE_SOURCE": "sources.*.name",
    "MILLRACE_INPUT_SOURCE": "sources.*.inputSource",
    "MILLRACE_START": "sources.*.start",
    "MILLRACE_HTTP_PORT": "http.port",
    "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "kafka.bootstrapServers",
    "MILLRACE_KAFKA_SASL_USERNAME": "kafka.sasl.usernameKey",
    "MILLRACE_KAFKA_SASL_PASSWORD": "kafka.sasl.passwordKey",
    "MILLRACE_REGISTRY_URL": "registry.url",
    "MILLRACE_REGISTRY_USERNAME": "registry.usernameKey",
    "MILLRACE_REGISTRY_PASSWORD": "registry.passwordKey",
    **{
        variable(section, name): f"{section}.{path}"
        for section in ("kafka", "registry")
        for name, path in _TLS.items()
    },
    "MILLRACE_MYSQL_HOST": "sources.*.mysql.host",
    "MILLRACE_MYSQL_USER": "sources.*.mysql.userKey",
    "MILLRACE_MYSQL_PASSWORD": "sources.*.mysql.passwordKey",
    "MILLRACE_MYSQL_SERVER_ID": "sources.*.mysql.serverId",
    "MILLRACE_MYSQL_SSL_CA": "sources.*.mysql.tls.caKey",
    "MILLRACE_MYSQL_SSL_CERT": "sources.*.mysql.tls.certificateKey",
    "MILLRACE_MYSQL_SSL_KEY": "sources.*.mysql.tls.privateKeyKey",
    "MILLRACE_MYSQL_SSL_MODE": "sources.*.mysql.tls.mode",
    "MILLRACE_MYSQL_SERVER_PUBLIC_KEY_PATH": "sources.*.mysql.tls.serverPublicKeyKey",
    "MILLRACE_COLUMNS_HASH_SALT": "sources.*.hashSalt.key",
    "MILLRACE_SNAPSHOT_MODE": "sources.*.snapshot.mode",
    "MILLRACE_SNAPSHOT_WHERE": "sources.*.snapshot.where",
}
"""Settings whose values have another form than they, and a schema of their own: a Secret's key, a map."""

_ELSEWHERE: Final = {
    "MILLRACE_LOG_LEVEL": "logLevel",
    "MILLRACE_KAFKA_SASL_MECHANISM": "kafka.sasl.mechanism",
    "MILLRACE_MYSQL_GET_SERVER_PUBLIC_KEY": "sources.*.mysql.tls.getServerPublicKey",
    "MILLRACE_SNAPSHOT_ROWS_PER_S": "sources.*.snapshot.rowsPerSecond",
}
"""Settings whose values are named otherwise than by the rule."""

_OF_THE_RELEASE: Final = ("topics.replication_factor", "topics.max_tables", "topics.table_partitions")
_LISTS: Final = {
    "MILLRACE_FILES": ",",
    "MILLRACE_ROWS_FILTER": ";",
    "MILLRACE_ROWS_KEYS": ",",
    "MILLRACE_ROWS_COMPLETE": ",",
    "MILLRACE_SNAPSHOT_TABLES": ",",
    "MILLRACE_SNAPSHOT_EXCLUDE": ",",
}
"""Settings that are lists, beside those of selection, and what is between their parts."""


def settings() -> dict[str, tuple[str, str, FieldInfo]]:
    """Return the section, the key and the field of each setting of services and jobs, by its variable."""
    found = {}
    for model in (ReaderSettings, DecoderSettings, RowMapperSettings, SnapshotSettings, RawJobSettings):
        for name, field in model.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                for key, below in kind.model_fields.items():
                    found[variable(name, key)] = name, key, below
            else:
                found[variable("", name)] = "", name, field
    return found


def value_path(name: str, section: str, key: str) -> str:
    """Return the path of the value that sets a setting; empty for none."""
    if name in BY_THE_CHART:
        return ""
    if name in OWN or name in _ELSEWHERE:
        return {**OWN, **_ELSEWHERE}[name]
    of_the_release = section == "kafka" or f"{section}.{key}" in _OF_THE_RELEASE
    head, *rest = re.sub(r"_s$", "_seconds", key).split("_")
    camel = head + "".join(map(str.capitalize, rest))
    return ("" if of_the_release else SOURCE) + f"{section}.{camel}".lstrip(".")


def separator(name: str, section: str, key: str) -> str:
    """Return what is between the parts of a setting that is a list; empty for one that is none."""
    is_list = section in {"replicate", "columns"} or (section, key) in {
        ("topics", "names"),
        ("topics", "partitions"),
        ("topics", "raw_exclude"),
    }
    return _LISTS.get(name, "," if is_list else "")


def settings_text() -> str:
    """Write for the templates which value sets each setting, and the options of the jobs."""
    paths = {name: value_path(name, section, key) for name, (section, key, _) in sorted(settings().items())}
    options = {
        job: sorted(
            option
            for parameter in importlib.import_module(f"spark_jobs.{job}").main.params
            for option in parameter.opts
        )
        for job in JOBS
    }
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    components = {name: values[name] for name in ("reader", "decoder", "rowmapper", "run", "snapshot")}
    mysql = values["sourceDefaults"]["mysql"]
    lists = {
        paths[name].removeprefix(SOURCE): [name, between]
        for name, (section, key, _) in sorted(settings().items())
        if (between := separator(name, section, key)) and name not in BY_THE_CHART and section != "snapshot"
    }
    content = {"values": paths, "lists": lists, "options": options, "components": components, "mysql": mysql}
    return json.dumps(content, indent=2) + "\n"


def schema_text() -> str:
    """Write the schema of the values: what the file has, with what follows from settings and values.yaml."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    for name, (section, key, field) in settings().items():
        path = value_path(name, section, key)
        if path and name not in OWN:
            _put(schema, path, _schema_of(key, field, separator(name, section, key)))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema["allOf"] = [_required(values)]
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _schema_of(key: str, field: FieldInfo, between: str) -> dict[str, Any]:
    if between:
        part = f"[^{between}\\n]+"
        forms = {
            "files": part,
            "do_db": r"[^,.\n]+",
            "ignore_db": r"[^,.\n]+",
            "rewrite_db": part + "->" + part,
        }
        item: dict[str, Any] = {"type": "string", "pattern": "^" + forms.get(key, part + r"\." + part) + "$"}
        if key.endswith("_server_ids"):
            item = {"type": ["integer", "string"], "pattern": "^[0-9]+$", "minimum": 0}
        return {"type": "array", "uniqueItems": True, "items": item}
    kind = field.annotation
    choices = [each for each in (kind, *get_args(kind)) if get_origin(each) is Literal]
    if choices:
        return {"enum": list(get_args(choices[0]))}
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    found: dict[str, Any] = {"type": next(names[each] for each in (kind, *get_args(kind)) if each in names)}
    if (kind is str and field.is_required()) or any(hasattr(mark, "min_length") for mark in field.metadata):
        found["minLength"] = 1
    for mark in field.metadata:
        for ours, theirs in (("ge", "minimum"), ("le", "maximum"), ("gt", "exclusiveMinimum")):
            if hasattr(mark, ours):
                found[theirs] = getattr(mark, ours)
    return found


def _put(schema: dict[str, Any], path: str, value: dict[str, Any]) -> None:
    """Set the schema of the value at ``path``."""
    at = schema
    if path.startswith(SOURCE):
        at = schema["definitions"]["source"]
    *above, name = path.removeprefix(SOURCE).split(".")
    for part in above:
        at = at["properties"].setdefault(
            part, {"type": "object", "additionalProperties": False, "properties": {}}
        )
        if "$ref" in at:
            at = schema["definitions"][at["$ref"].rpartition("/")[2]]
    kept = {key: rule for key, rule in at["properties"].get(name, {}).items() if key in {"anyOf", "$comment"}}
    at["properties"][name] = {**value, **kept}


def _required(values: dict[str, Any]) -> dict[str, Any]:
    """Require what values.yaml has: a null takes a default away, and templates do not expect that."""
    below = {
        key: _required(value)
        for key, value in values.items()
        if isinstance(value, dict)
        and value
        and key not in {"resources", "podSecurityContext", "containerSecurityContext"}
    }
    return {"required": sorted(values), **({"properties": below} if below else {})}
