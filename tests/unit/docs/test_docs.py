"""The documentation agrees with the project: links lead somewhere, tables and names are those of the code."""

import re
import shlex
from pathlib import Path
from types import ModuleType

import click
import pytest

from millrace.binlog_command.tool_options import TOOL_OPTIONS
from millrace.cli import main
from millrace.cli.job import JOBS
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.metrics import MISSING
from spark_jobs.common.session import SparkSettings
from tests.shared import PROJECT, load_script

PAGES = sorted(
    [
        *PROJECT.glob("*.md"),
        *PROJECT.glob("docs/**/*.md"),
        *PROJECT.glob("helm/**/*.md"),
    ]
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load_script("docs/generate.py")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_pages_that_the_code_names_exist() -> None:
    """Errors, findings of doctor, settings and alerts name the page to read."""
    found = set()
    for folder in ("millrace", "services", "spark_jobs", "helm", "tests", "benchmarks"):
        for file in (PROJECT / folder).rglob("*"):
            if file.suffix in {".py", ".pyx", ".yaml", ".tpl", ".txt", ".json"}:
                found |= set(re.findall(r"docs/[\w/-]+\.md(?:#[\w-]+)?", file.read_text(errors="replace")))
    assert len(found) > 10
    for name in found:
        path, _, anchor = name.partition("#")
        assert (PROJECT / path).exists(), name
        assert not anchor or anchor in anchors(PROJECT / path), name


def commands(page: Path) -> list[list[str]]:
    """The commands of Millrace in the blocks of code of a page, as words."""
    text = page.read_text().replace("\\\n", " ")
    fenced = "\n".join(re.findall(r"(?ms)^ *```(?:sh|bash|console)?\n(.*?)^ *```", text))
    indented = "\n".join(re.findall(r"(?m)^    (.+)$", text))
    lines = re.findall(r"(?m)^\s*(?:\$ )?(millrace [^\n]*)", f"{fenced}\n{indented}")
    parts = [part for line in lines for part in re.split(r"\s[|&;]+\s?|\s#\s|\s>\s", line)]
    return [shlex.split(part) for part in parts if part.startswith("millrace ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_commands_in_pages_exist(page: Path) -> None:
    for words in commands(page):
        command: click.Command = main
        context = click.Context(main, **main.context_settings)
        rest = words[1:]
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            found = command.get_command(context, rest.pop(0))
            assert found is not None, words
            command = found
        options = {option for parameter in command.get_params(context) for option in parameter.opts}
        if words[1] == "binlog":
            options |= {f"--{option.name}" for option in TOOL_OPTIONS if not option.refused}
        for word in rest:
            if option := re.match(r"--[a-z-]+|-[a-z]", word):
                assert option[0] in options, (words, word)


def test_the_generated_parts_are_fresh(generator: ModuleType) -> None:
    stale = [
        page
        for page, names in generator.PAGES.items()
        if generator.generated(page, names) != (PROJECT / page).read_text()
    ]
    assert stale == [], "run: make generate"
    event_types = load_script("tools/generate_event_types.py")
    assert event_types.generated() == event_types.TYPES.read_text(), "run: make generate"


def test_values_of_the_chart_are_described_as_their_settings_are(generator: ModuleType) -> None:
    """Where a value of the chart is passed on as it is, its comment begins with the setting's description."""
    other_meaning = {
        *("MILLRACE_SOURCE", "MILLRACE_INPUT_SOURCE", "MILLRACE_START", "MILLRACE_SNAPSHOT_MODE"),
        *("MILLRACE_LOG_LEVEL", "MILLRACE_HTTP_PORT"),
        *("MILLRACE_MYSQL_HOST", "MILLRACE_MYSQL_SERVER_ID", "MILLRACE_MYSQL_SSL_MODE"),
    }
    above = {
        "$root.Values": "",
        "$source": "sourceDefaults.",
        "MILLRACE_MYSQL": "sourceDefaults.mysql.",
        "MILLRACE_SNAPSHOT": "snapshot.",
    }
    described = {
        name: field.description
        for model in generator.SERVICES.values()
        for name, field in generator.settings(model)
    }
    meanings = {path: meaning for path, _, meaning in generator.values()}
    template = (PROJECT / "helm/millrace/templates/_environment.tpl").read_text()
    passed_on = re.findall(
        r"(?m)^((MILLRACE_[A-Z]+)\w*): {{ (?:int64 )?(\$[\w.]+?)?\.(\w+(?:\.\w+)?) \| quote }}", template
    )
    for variable, section, root, name in passed_on:
        if variable not in other_meaning:
            value, text = above[root or section] + name, described[variable]
            assert meanings[value].startswith(f"{text[0].upper()}{text[1:]}."), value
    assert len(passed_on) > 30


def test_variables_that_are_named_exist(generator: ModuleType) -> None:
    known = {name for model in generator.SERVICES.values() for name, _ in generator.settings(model)}
    known |= {f"MILLRACE_SPARK_{name.upper()}" for name in SparkSettings.model_fields}
    known |= {
        "MILLRACE_CONFIG",
        "MILLRACE_CACHE",
        "MILLRACE_KERNEL",
        "MILLRACE_SHARED",
        "MILLRACE_DEMO_SOURCE",
        "MILLRACE_FAULT_RUNS",
        "MILLRACE_FAULT_STEPS",
    }
    for page in PAGES:
        named = set(re.findall(r"\bMILLRACE_[A-Z_]*[A-Z](?![A-Z_])", page.read_text()))
        assert named <= known, page


def test_metrics_that_are_named_exist(generator: ModuleType) -> None:
    for page in [PROJECT / "docs" / "metrics.md", *PROJECT.glob("docs/how-to/*.md")]:
        named = set(re.findall(r"`(millrace_[a-z_]+)[`{]", page.read_text()))
        assert named <= set(generator.metrics()), page


def test_metrics_are_named_by_convention(generator: ModuleType) -> None:
    units = ("_seconds", "_bytes", "_records")
    for name, family in generator.metrics().items():
        assert re.fullmatch(r"millrace_(service|reader|decoder|rowmapper|snapshot)_[a-z]+(_[a-z]+)*", name), (
            name
        )
        assert family.documentation.endswith("."), name
        assert name.endswith("_total") == (family.type == "counter"), name
        if "timestamp" in name:
            assert name.endswith("_timestamp_seconds"), name
        if "lag" in name or "position" in name.split("_")[-2:]:
            assert name.endswith((*units, "_total")), name


def test_alerts_are_described_and_use_metrics_that_exist(generator: ModuleType) -> None:
    rules = (PROJECT / "helm" / "millrace" / "templates" / "prometheusrule.yaml").read_text()
    page = (PROJECT / "docs" / "metrics.md").read_text()
    described = dict(re.findall(r"(?m)^\| `(Millrace\w+)` \| (.+?) \|", page))
    alerts = dict(re.findall(r"(?ms)- alert: (\w+)$(.*?)annotations:", rules))
    assert list(described) == list(alerts)
    known = {*generator.metrics(), "process_start_time_seconds"}
    for alert, text in alerts.items():
        used = set(re.findall(r"\b(?:millrace|process)_[a-z_]+", text))
        assert used, alert
        assert used <= known, alert
        assert used == set(re.findall(r"`([a-z_]+)`", described[alert])), alert


def defined_tests() -> set[str]:
    """Names of all tests."""
    return {
        name
        for file in (PROJECT / "tests").glob("**/*.py")
        for name in re.findall(r"(?m)^ *(?:async )?def (test_\w+)", file.read_text())
    }


def test_the_tests_that_show_a_defence_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (PROJECT / "docs" / "security.md").read_text()))
    assert named
    assert named <= defined_tests()


def verdicts() -> str:
    """The section of docs/reliability.md on verdicts."""
    page = (PROJECT / "docs" / "reliability.md").read_text()
    return page.partition("## What each good verdict has compared\n")[2].partition("\n## ")[0]


def test_every_good_verdict_has_a_test_that_makes_it_say_no() -> None:
    table, *_ = verdicts().partition("| state |")
    rows = re.findall(r"(?m)^\| (?!verdict \||---)(.+) \|$", table)
    assert len(rows) > 20
    defined = defined_tests()
    for row in rows:
        verdict, compared, missing, tests = row.split(" | ")
        named = set(re.findall(r"`(test_\w+)`", tests))
        assert compared, verdict
        assert missing, verdict
        assert named, verdict
        assert named <= defined, (verdict, named - defined)


def test_each_state_that_is_not_well_has_a_metric_an_alert_and_a_line_of_readyz(
    generator: ModuleType,
) -> None:
    rules = (PROJECT / "helm" / "millrace" / "templates" / "prometheusrule.yaml").read_text()
    alerts = dict(re.findall(r"(?ms)- alert: (\w+)$(.*?)annotations:", rules))
    listed = set()
    for metrics, alert in re.findall(
        r"(?m)^\| [^|]+ \| (`millrace_[^|]+) \| `(\w+)` \| (?:yes|no)", verdicts()
    ):
        named = set(re.findall(r"`(millrace_\w+)`", metrics))
        assert named <= set(generator.metrics())
        assert all(metric in alerts[alert] for metric in named), alert
        listed |= named
    assert {name.removesuffix("_total") for name in listed - {"millrace_service_ready"}} == MISSING


def test_every_command_and_job_says_what_it_has_compared() -> None:
    told = set(re.findall(r"`(?:millrace )?([a-z_]+)", verdicts()))
    services = {"reader", "decoder", "rowmapper", "run"}  # which have a row of their own
    context = click.Context(main, **main.context_settings)
    assert {*main.list_commands(context), *JOBS} - services - {"job"} <= told


def test_every_exit_code_is_described() -> None:
    described = re.findall(r"(?m)^\| (\d+) \|", (PROJECT / "docs/how-to/troubleshoot.md").read_text())
    assert [int(code) for code in described] == [int(code) for code in ExitCode]


def test_every_decision_is_listed() -> None:
    folder = PROJECT / "docs" / "adr"
    listed = re.findall(r"\((\d{4}-[a-z-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))
    for name in listed:
        text = (folder / name).read_text()
        assert text.startswith(f"# {int(name[:4])}. "), name
        sections = re.findall(r"(?m)^## (.+)$", text)
        assert {"Context", "Decision", "Rejected alternatives"} <= set(sections), name
