"""The application of Ray Serve without Ray: settings of replicas, options, readiness; its configuration."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest
import yaml

from forescribe.api.process.models import Failure
from forescribe.api.speech.serving import Serving
from forescribe.asr.errors import ModelError, UsageError
from forescribe.cluster import app, serve_app
from forescribe.cluster.serve_app import (
    SpeechReplica,
    application,
    deployment_options,
    replica_app,
    settings_of,
)

CONFIG = Path(__file__).parents[2] / "deploy" / "ray" / "forescribe.yaml"
OPEN = {"model": "tiny.en", "open_to_all": True, "jobs": False}


def needs_ray(test):
    """A test that imports Ray Serve, whose models use pydantic's old names, and starts nothing."""
    missing = importlib.util.find_spec("ray") is None
    test = pytest.mark.skipif(missing, reason="needs `scripts/setup cluster`")(test)
    return pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")(test)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "tiny.en", "jobs": False}, "no api_keys"),
        (OPEN | {"jobs": True}, "database_url=postgresql"),
        (
            OPEN | {"jobs": True, "database_url": "sqlite:////tmp/jobs.db"},
            "database_url=postgresql",
        ),
        (OPEN | {"jobs": True, "database_url": "postgresql://db/jobs"}, "blobs_url=s3"),
        (OPEN | {"port": 9000}, "port: Serve decides this"),
        (OPEN | {"workers": 2}, "workers: Serve decides this"),
        (OPEN | {"modle": "tiny.en"}, "modle"),
    ],
)
def test_settings_that_would_lose_something_are_refused(given: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings_of(given)


def test_values_may_be_text_as_on_the_command_line() -> None:
    settings = settings_of(
        {"model": "tiny.en", "open_to_all": "true", "jobs": "false", "drain_s": "7"}
    )
    assert (settings.drain_s, settings.jobs) == (7.0, False)


def test_our_limits_speak_before_those_of_serve() -> None:
    settings = settings_of(OPEN | {"max_requests": 5, "max_uploads": 7, "drain_s": 40})
    options = deployment_options(settings)
    assert options["max_ongoing_requests"] > 5 + 7
    assert options["graceful_shutdown_timeout_s"] > 40
    assert options["ray_actor_options"] == {}


def test_devices_are_asked_of_ray() -> None:
    assert deployment_options(settings_of(OPEN | {"device": "cuda"}))["ray_actor_options"] == {
        "num_gpus": 1
    }


def lifespan(settings, monkeypatch, start) -> list[str]:
    """The states that the model had when the lifespan began and ended; `start` stands in for its thread."""
    monkeypatch.setattr(Serving, "start", start)
    states: list[str] = []

    async def run() -> None:
        built, serving = replica_app(settings)
        async with built.router.lifespan_context(built):
            states.append(serving.state)
        states.append(serving.state)

    asyncio.run(asyncio.wait_for(run(), 60))
    return states


def test_a_replica_is_ready_when_its_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(serving: Serving) -> None:
        async def load() -> None:
            await asyncio.sleep(0.05)
            serving.state = "ready"

        serving.loading = asyncio.get_running_loop().create_task(load())  # type: ignore[attr-defined]

    assert lifespan(settings_of(OPEN), monkeypatch, start) == ["ready", "stopped"]


def test_a_model_that_cannot_be_loaded_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(serving: Serving) -> None:
        serving.failed(Failure.of("the speech model", ModelError("no weights of large")))

    with pytest.raises(RuntimeError, match="no weights of large"):
        lifespan(settings_of(OPEN), monkeypatch, start)


def test_a_broken_replica_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_app, "replica_app", lambda settings: ("app", Serving.of(settings)))
    replica = SpeechReplica(OPEN)
    replica.check_health()
    assert replica.__serve_build_asgi_app__() == "app"
    replica.check_health()
    assert replica.serving is not None
    replica.serving.state = "broken"
    with pytest.raises(RuntimeError, match="broken"):
        replica.check_health()


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="run `scripts/setup cluster`"):
        app(dict(OPEN))


def configured() -> dict:
    return yaml.safe_load(CONFIG.read_text())


def test_the_configuration_keeps_the_rules() -> None:
    (given,) = configured()["applications"]
    (deployment,) = given["deployments"]
    settings = settings_of(given["args"])
    own = deployment_options(settings)
    assert deployment["name"] == own["name"]
    assert deployment["max_ongoing_requests"] >= own["max_ongoing_requests"]
    assert deployment["graceful_shutdown_timeout_s"] >= own["graceful_shutdown_timeout_s"]
    assert configured()["http_options"]["request_timeout_s"] > settings.timeout_s


@needs_ray
def test_serve_accepts_the_configuration_and_the_application() -> None:
    """Offline: Serve's own schema, and a deployment that is built but not run."""
    from ray.serve import Application
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema.model_validate(configured())
    assert schema.applications[0].import_path == "forescribe.cluster:app"
    assert isinstance(application(OPEN), Application)


@needs_ray
def test_what_is_sent_to_a_replica_is_small() -> None:
    from ray import cloudpickle

    bound = application(OPEN)
    assert len(cloudpickle.dumps(bound._bound_deployment.func_or_class)) < 20_000
