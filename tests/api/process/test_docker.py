"""The images, as far as they can be tried without Docker: every step is read, the ones that need nothing but
Python and a shell are replayed over exactly the files that an image gets."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from forescribe.api.routers import operations
from forescribe.api.settings import OTHER_PREFIXES, PREFIX, Settings

ROOT = Path(__file__).parents[3]
FILES = ["Dockerfile", "Dockerfile.gaudi"]


@dataclass(frozen=True)
class Step:
    """An instruction of a Dockerfile, its lines joined."""

    word: str
    rest: str


def steps(name: str) -> list[Step]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return [Step(word, " ".join(rest.split())) for word, rest in pairs]


def last_stage(name: str) -> list[Step]:
    """What the image is in the end."""
    found = steps(name)
    return found[max(i for i, step in enumerate(found) if step.word == "FROM") :]


def environment(found: list[Step]) -> dict[str, str]:
    text = " ".join(step.rest for step in found if step.word == "ENV")
    return dict(re.findall(r"(\w+)=(\S+)", text))


def copied(name: str) -> list[str]:
    """The sources of COPY that come from the folder."""
    found = [step.rest.split() for step in steps(name) if step.word == "COPY"]
    return [source for words in found if "--from" not in words[0] for source in words[:-1]]


def let_through(path: str) -> bool:
    """By .dockerignore: all is left out but what a line with `!` names, and what is below it."""
    let = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#"):
            heads = [path, *map(str, Path(path).parents)]
            if any(fnmatch.fnmatch(head, pattern) for head in heads if head != "."):
                let = line.startswith("!")
    return let


@pytest.mark.parametrize("name", FILES)
def test_hadolint_has_nothing_to_say(name) -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint has no program for this machine")
    made = subprocess.run([program, ROOT / name], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout


@pytest.mark.parametrize("name", FILES)
def test_every_file_that_is_copied_is_there_and_let_through(name) -> None:
    for source in copied(name):
        assert (ROOT / source).exists(), source
        assert let_through(source), source
    assert not let_through("shared/data") and not let_through(".git/config")


@pytest.mark.parametrize("name", FILES)
def test_all_that_the_wheel_is_made_of_is_copied(name) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"],
        *project["project"]["license-files"],
        project["project"]["readme"],
    ]
    assert {source.split("/")[0] for source in wanted} <= set(copied(name))


@pytest.mark.parametrize("name", FILES)
def test_the_steps_before_the_installation_replayed(name, tmp_path) -> None:
    """What is wanted and what is pinned, written in a folder that has only what was copied before."""
    (tmp_path / "scripts").mkdir()
    for step in steps(name):
        if step.word == "COPY":
            *sources, _ = step.rest.split()
            for source in sources:
                shutil.copy(ROOT / source, tmp_path / source)
        if step.word == "RUN" and "list_requirements.py" in step.rest:
            break
    commands = [c for c in step.rest.split(" && ") if "pip install" not in c]
    script = " && ".join(re.sub(r"\bpython3?\b", sys.executable, c, count=1) for c in commands)
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)

    wanted = (tmp_path / "wanted.txt").read_text().split("\n")
    assert any(line.startswith("fastapi") for line in wanted)
    assert any(line.startswith("pyannote.audio") for line in wanted)
    torch = [line for line in wanted if re.match(r"torch(audio)?\b", line)]
    pinned = tmp_path / "pinned.txt"
    if name == "Dockerfile":
        assert len(torch) == 2
    else:
        assert not torch  # Intel's stays, and nothing may bring another
        own = [
            line for line in pinned.read_text().split("\n") if re.match(r"torch(audio)?==", line)
        ]
        assert len(own) == 2
        assert "transformers" in pinned.read_text() and "nvidia" not in pinned.read_text()


@pytest.mark.parametrize("name", FILES)
def test_weights_are_baked_one_by_one_and_a_failure_is_one(name, tmp_path) -> None:
    """The loop over MODELS, with a program in the place of the hub's."""
    (step,) = [s for s in steps(name) if s.word == "RUN" and "hf download" in s.rest]
    loop = re.search(r"for model in .*?; done", step.rest)
    assert loop and Path(sys.executable).with_name("hf").exists()
    fake = tmp_path / "hf"
    fake.write_text('#!/bin/sh\necho "$@" >> "$0.log"; [ "$2" != missing/model ]\n')
    fake.chmod(0o755)

    def run(models: str) -> int:
        made = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MODELS": models}
        return subprocess.run(["bash", "-c", loop[0]], env=made, check=False).returncode

    assert run("") == 0 and not (tmp_path / "hf.log").exists()
    assert run("a/target b/draft") == 0
    assert (tmp_path / "hf.log").read_text().split("\n")[:2] == [
        "download a/target",
        "download b/draft",
    ]
    assert run("a/target missing/model b/draft") == 1


@pytest.mark.parametrize("name", FILES)
def test_port_health_check_and_settings_are_the_services(name) -> None:
    found = last_stage(name)
    port = Settings.model_fields["port"].default
    assert [step.rest for step in found if step.word == "EXPOSE"] == [str(port)]
    (check,) = [step.rest for step in found if step.word == "HEALTHCHECK"]
    path = re.search(rf"http://127\.0\.0\.1:{port}(/\w+)", check)
    assert path and path[1] in {route.path for route in operations.health_router.routes}
    code = re.search(r'"-c", "(.*)"\]', check)
    assert code
    compile(code[1], name, "exec")
    given = [key for key in environment(steps(name)) if key.startswith(PREFIX)]
    known = {PREFIX + field.upper() for field in Settings.model_fields}
    assert given and all(key in known or key.startswith(OTHER_PREFIXES) for key in given)


def test_without_keys_an_image_refuses_to_listen_to_all() -> None:
    for name in FILES:
        assert environment(steps(name))[f"{PREFIX}HOST"] == "0.0.0.0"
    with pytest.raises(ValueError, match="no api_keys"):
        Settings(host="0.0.0.0")


def test_compose_agrees_with_the_image_and_the_settings() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    service, database = compose["services"]["forescribe"], compose["services"]["postgres"]
    volumes = {step.rest for step in last_stage("Dockerfile") if step.word == "VOLUME"}
    mounted = {entry.split(":")[1] for entry in service["volumes"]}
    assert all(folder in mounted for folder in re.findall(r'"(/\w+)"', volumes.pop()))
    assert service["ports"] == ["127.0.0.1:8000:8000"] and service["init"]
    assert all(v.split(":")[0] in compose["volumes"] for v in service["volumes"] if v[0] != ".")
    url = service["environment"]["FORESCRIBE_DATABASE_URL"]
    assert url.startswith("postgresql://forescribe:${POSTGRES_PASSWORD:?}@postgres:5432/")
    assert "database_url" in Settings.model_fields
    assert database["environment"]["POSTGRES_DB"] == url.rpartition("/")[2]
    assert service["depends_on"]["postgres"]["condition"] == "service_healthy"
    grace_s = int(service["stop_grace_period"].removesuffix("s"))
    assert grace_s > Settings.model_fields["drain_s"].default
