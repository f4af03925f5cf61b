"""The files under `deploy/` agree with the command, the settings, the image and the tables; offline.

Kubernetes' own objects are checked against its JSON schemas in the slow test, with a package that ships them
in an environment of its own; KEDA's and SkyPilot's fields are compared with their documentation
(keda.sh/docs, docs.skypilot.co/en/latest/reference/yaml-spec.html).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import Job
from forescribe.api.server import worker_settings
from forescribe.api.settings import PREFIX, Settings, load
from forescribe.cli.main import app
from tests.faults.harness import NotRun
from tests.faults.storage import database

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "k8s").glob("*.yaml"))
SLURM = DEPLOY / "slurm" / "workers.sbatch"
SKYPILOT = DEPLOY / "skypilot" / "workers.yaml"
REPLICAS = DEPLOY / "compose" / "replicas.yaml"

"""What users fill in."""

"""Documented fields, as far as they may be needed here."""


def objects(*files: Path) -> list[dict[str, Any]]:
    """The objects of Kubernetes in these files, all of them by default."""
    found = [yaml.safe_load_all(file.read_text()) for file in files or KUBERNETES]
    return [made for documents in found for made in documents]


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [o for o in objects() if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def pods() -> dict[str, dict[str, Any]]:
    """The pods of all workloads, by the workload's name."""
    return {
        o["metadata"]["name"]: o["spec"]["template"]["spec"]
        for o in objects()
        if o["kind"] in ("Deployment", "Job")
    }


def container(name: str) -> dict[str, Any]:
    (found,) = pods()[name]["containers"]
    return found


def environment(name: str) -> dict[str, str]:
    """The variables of a workload's container, of its maps and secrets too."""
    made = container(name)
    found: dict[str, str] = {}
    for source in made["envFrom"]:
        ((kind, reference),) = source.items()
        which = {"configMapRef": ("ConfigMap", "data"), "secretRef": ("Secret", "stringData")}
        object_kind, key = which[kind]
        found |= named(object_kind, reference["name"])[key]
    return found | {entry["name"]: entry["value"] for entry in made["env"]}


def settings_of(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, host: str = "0.0.0.0"
) -> Settings:
    """The settings that the service reads from these variables: it refuses unknown ones."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load(None, host=host, data_dir="/data")


def parsed(words: list[str]) -> dict[str, Any]:
    """What the command makes of a command line, by flag. Raises click's errors for what it does not know."""
    assert words[0] == "forescribe"
    group = get_command(app)
    command = group.commands[words[1]]
    given = command.make_context(words[1], list(words[2:])).params
    return {flag: given[each.name] for each in command.params for flag in each.opts}


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every command line of ours under `deploy/`, with where it is."""
    for name in pods():
        made = container(name)
        yield f"k8s {name}", [*made["command"], *made.get("args", [])]
    dry = subprocess.run(
        ["bash", str(SLURM), "--dry-run"],
        env={**os.environ, "FORESCRIBE_DATABASE_URL": "x", "FORESCRIBE_BLOBS_URL": "y"},
        capture_output=True,
        text=True,
        check=True,
    )
    yield "slurm", shlex.split(dry.stdout)
    run = yaml.safe_load(SKYPILOT.read_text())["run"].splitlines()[-1]
    yield "skypilot", shlex.split(run.removeprefix("exec "))
    compose = yaml.safe_load(REPLICAS.read_text())
    for name in ("one", "two"):
        yield f"compose {name}", ["forescribe", "serve", *compose["services"][name]["command"]]


@pytest.mark.parametrize(("place", "words"), list(command_lines()), ids=lambda v: str(v)[:24])
def test_every_command_line_is_one_of_the_command(place, words) -> None:
    given = parsed(words)
    options = {word for word in words if word.startswith("--")}
    assert options <= given.keys() and all(given[name] is not None for name in options), place


@pytest.mark.parametrize("name", ["forescribe", "forescribe-worker", "forescribe-batch"])
def test_the_settings_of_each_pod_are_accepted(name, monkeypatch) -> None:
    settings = settings_of(environment(name), monkeypatch)
    assert settings.blobs_url and str(settings.database_url).startswith("postgresql://")
    if name == "forescribe":
        assert settings.front_end and settings.api_keys
    else:
        worker_settings(settings)


@pytest.mark.parametrize("name", ["forescribe", "forescribe-worker", "forescribe-batch"])
def test_a_pod_has_time_to_drain(name, monkeypatch) -> None:
    settings, pod = settings_of(environment(name), monkeypatch), pods()[name]
    hook = container(name).get("lifecycle", {}).get("preStop", {}).get("exec", {})
    waits_s = float(hook["command"][-1]) if hook else 0.0
    announce_s = settings.announce_s if name == "forescribe" else 0.0
    assert pod["terminationGracePeriodSeconds"] >= waits_s + announce_s + settings.drain_s + 10


def test_probes_ask_routes_that_need_no_key() -> None:
    from forescribe.api.routers.operations import health_router as router

    routes = {route.path for route in router.routes}
    for name in ("forescribe", "forescribe-worker"):
        made = container(name)
        ports = {port["name"]: port["containerPort"] for port in made["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            request = made[probe]["httpGet"]
            assert request["path"] in routes and request["port"] in ports
        assert made["readinessProbe"]["httpGet"]["path"] == "/ready"
        assert made["livenessProbe"]["httpGet"]["path"] == "/health"  # not /ready: it may be away
    given = parsed(
        [*container("forescribe-worker")["command"], *container("forescribe-worker")["args"]]
    )
    assert given["--port"] == container("forescribe-worker")["ports"][0]["containerPort"]
    service = named("Service", "forescribe")["spec"]
    assert service["ports"][0]["targetPort"] == container("forescribe")["ports"][0]["name"]
    assert (
        Settings.model_fields["port"].default
        == container("forescribe")["ports"][0]["containerPort"]
    )


@pytest.mark.slow
def test_the_scalers_query_counts_queued_seconds(tmp_path) -> None:
    """On PostgreSQL, in tables that the service has made."""
    import psycopg

    query = named("ScaledObject", "forescribe-worker")["spec"]["triggers"][0]["metadata"]["query"]
    try:
        with database() as url:
            store = Store.open(tmp_path, url)
            counts = []
            with psycopg.connect(url, autocommit=True) as connection:
                counts.append(connection.execute(query).fetchone())
                with store.transaction() as tx:
                    for n in range(3):
                        store.jobs.insert(tx, Job(id=f"job_{n}", owner="", total_s=3600.25))
                counts.append(connection.execute(query).fetchone())
                assert store.jobs.claim("one", beside=()) is not None
                with store.transaction() as tx:
                    store.jobs.set_progress(tx, "job_0", 1800.0)
                    store.jobs.end(tx, "job_1", "succeeded")
                counts.append(connection.execute(query).fetchone())
            assert counts == [(0,), (10801,), (5401,)]
            assert store.jobs.backlog() == (2, 5400.5) and store.jobs.backlog("x") == (0, 0.0)
            store.close()
    except NotRun as error:
        pytest.skip(str(error))


"""Fields that a version from 1.31 to 1.34 requires, though a later one or the API's defaults may not."""


def _entries(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """All mappings below a value, with their places."""
    if isinstance(value, dict):
        yield place, value
        for name, below in value.items():
            yield from _entries(below, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for below in value:
            yield from _entries(below, f"{place}[]")


def test_the_slurm_script_passes_the_end_on_and_cleans_up(tmp_path) -> None:
    """A fake worker that ends at SIGTERM, with a status of its own."""
    fake = tmp_path / "bin" / "forescribe"
    fake.parent.mkdir()
    fake.write_text(
        "#!/usr/bin/env bash\ntrap 'echo gave back; exit 7' TERM\n"
        'echo "$@" > "$FAKE_LOG"; echo begun\nfor _ in $(seq 600); do sleep 0.1; done\n'
    )
    fake.chmod(0o755)
    variables = {
        "PATH": f"{fake.parent}:{os.environ['PATH']}",
        "SLURM_TMPDIR": str(tmp_path / "scratch"),
        "FAKE_LOG": str(tmp_path / "log"),
        "FORESCRIBE_DATABASE_URL": "postgresql://x/y",
        "FORESCRIBE_BLOBS_URL": "s3://b",
    }
    (tmp_path / "scratch").mkdir()
    with subprocess.Popen(
        ["bash", str(SLURM)], env=variables, stdout=subprocess.PIPE, text=True
    ) as task:
        assert task.stdout is not None and task.stdout.readline() == "begun\n"
        assert len(list((tmp_path / "scratch").iterdir())) == 1
        task.terminate()
        assert task.wait(60) == 7 and task.stdout.read() == "gave back\n"
    assert (tmp_path / "log").read_text().startswith("worker --until-idle")
    assert not list((tmp_path / "scratch").iterdir())


def test_the_replicas_of_compose_are_alike_and_share_what_they_must() -> None:
    compose = yaml.safe_load(REPLICAS.read_text())
    services = compose["services"]
    one, two = services["one"], services["two"]
    assert one["environment"].pop("FORESCRIBE_DEVICE") != two["environment"].pop(
        "FORESCRIBE_DEVICE"
    )
    assert one == two and "data:/data" in one["volumes"]
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    assert {name for name in one["environment"] if name.startswith(PREFIX)} <= known
    grace_s = int(one["stop_grace_period"].removesuffix("s"))
    defaults = Settings.model_fields
    assert grace_s > defaults["drain_s"].default + defaults["announce_s"].default
    assert (
        services["postgres"]
        == yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["postgres"]
    )
    mounted = [v for s in services.values() for v in s.get("volumes", []) if not v.startswith(".")]
    assert {volume.split(":")[0] for volume in mounted} <= compose["volumes"].keys()
    nginx = (DEPLOY / "compose" / "nginx.conf").read_text()
    assert {f"{name}:8000" for name in ("one", "two")} == set(
        re.findall(r"server (\w+:\d+)", nginx)
    )
    assert nginx.count("{") == nginx.count("}")
    for needed in ("proxy_request_buffering off", "proxy_buffering off", "client_max_body_size 0"):
        assert needed in nginx
