"""The Grafana dashboard: what it asks for exists in /metrics, and Grafana can load it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forescribe.api.metrics import WHOLE_DATABASE
from tests.api.batches.calls import begin, ended, jsonl, line, upload
from tests.api.conftest import sound
from tests.api.jobs.application import application, ready

FILE = Path(__file__).parents[2] / "deploy" / "grafana" / "forescribe.json"
ROOT = {"title", "uid", "schemaVersion", "panels", "templating", "time", "tags", "refresh"}
PANEL = {"id", "type", "title", "gridPos", "datasource", "targets", "fieldConfig", "options"}
TYPES = {"timeseries", "stat", "row"}
DATABASE_GAUGES = ("jobs_open", "jobs_audio_seconds", "jobs_oldest_seconds", "batches_open")


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def test_grafana_can_load_it(dashboard) -> None:
    assert dashboard.keys() >= ROOT and dashboard["schemaVersion"] >= 36
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["type"] in TYPES
        place = panel["gridPos"]
        assert place.keys() == {"x", "y", "w", "h"} and place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels(dashboard):
        assert panel.keys() >= PANEL and panel["targets"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert all(t["datasource"]["uid"] == "${datasource}" for t in panel["targets"])
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = {n for query in queries(dashboard) for n in re.findall(r"\$(\w+)", query)}
    assert used <= names | {"__rate_interval"}
    for query in queries(dashboard):
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")


def test_every_series_and_label_exists(dashboard, tmp_path, transcriber, decoders) -> None:
    with application(tmp_path, transcriber, decoders) as client:
        ready(client)
        file = upload(client, sound(2)).json()["id"]
        lines = [line("good", file=file), line("bad", file="file-x")]
        ended(client, begin(client, jsonl(lines)).json()["id"])
        form = {"model": "random", "language": "de", "temperature": "0.5"}
        client.post("/v1/audio/transcriptions", files={"file": sound(1)}, data=form)
        text = client.get("/metrics").text
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        if (
            family.type == "counter"
        ):  # before its first sample a counter with labels has a name only
            labels.setdefault(f"{family.name}_total", set())
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    asked = {name for query in queries(dashboard) for name in re.findall(r"forescribe_\w+", query)}
    assert len(asked) > 25 and asked <= labels.keys()
    added_by_prometheus = {"job", "instance"}
    for query in queries(dashboard):
        for name, selector in re.findall(r"(forescribe_\w+)\{([^}]*)\}", query):
            wanted = set(re.findall(r"(\w+)=", selector)) - added_by_prometheus
            assert wanted <= labels[name] or not labels[name], (name, wanted)
        by = re.search(r"by \(([^)]*)\)", query)
        (name,) = set(re.findall(r"forescribe_\w+", query)) if by else [None]
        if by and name and labels[name]:
            assert set(re.split(r",\s*", by[1])) <= labels[name], query


def test_a_gauge_of_the_whole_database_is_not_summed(
    dashboard, tmp_path, transcriber, decoders
) -> None:
    """Each process exports it: with three processes a sum would show three times as many jobs."""
    with application(tmp_path, transcriber, decoders) as client:
        text = ready(client).get("/metrics").text
    shared = {
        family.name
        for family in text_string_to_metric_families(text)
        if WHOLE_DATABASE in family.documentation
    }
    assert shared >= {f"forescribe_{name}" for name in DATABASE_GAUGES}
    for query in queries(dashboard):
        for function, name in re.findall(r"(\w+)\((forescribe_\w+)", query):
            assert name not in shared or function == "max", query


def test_the_build_is_told(tmp_path, transcriber, decoders) -> None:
    with application(tmp_path, transcriber, decoders) as client:
        ready(client)
        (line,) = [
            row
            for row in client.get("/metrics").text.splitlines()
            if row.startswith("forescribe_build_info{")
        ]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    assert labels.keys() == {"version", "model", "engine", "device"}
    assert labels["model"] == "random" and labels["device"] == "cpu" and labels["engine"]
    assert re.match(r"\d+\.\d+", labels["version"]) and line.endswith(" 1.0")
