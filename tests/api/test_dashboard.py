"""The Grafana dashboard: what it asks for exists in /metrics, and Grafana can load it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.conftest import sound
from tests.api.jobs.application import application, ended, ready, submit

FILE = Path(__file__).parents[2] / "deploy" / "grafana" / "forescribe.json"


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


def test_every_series_and_label_exists(dashboard, tmp_path, transcriber, decoders) -> None:
    with application(tmp_path, transcriber, decoders) as client:
        ready(client)
        ended(client, submit(client, sound(2)).json()["id"])
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
