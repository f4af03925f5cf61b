"""The formula of the guide: it recovers its parameters and breaks even where it should."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.speed import when_it_pays
from benchmarks.speed.when_it_pays import (
    FITTED_AT,
    GAMMAS,
    Point,
    Prices,
    best_speed_up,
    implied_alpha,
)
from forescribe.speculative.device import choose
from forescribe.speculative.engine.schedule import expected_tokens
from forescribe.speculative.models import hub
from forescribe.speculative.models.engines import causal_decoder
from forescribe.text.language_model import load

alphas = st.floats(0.01, 0.99)
costs = st.floats(0.001, 1.0)


def points(alpha: float, draft: float, growth: float, batch: int = 1) -> list[Point]:
    """Measurements of a machine for which the formula holds."""
    base = 0.004
    made = []
    for gamma in GAMMAS:
        length = expected_tokens(alpha, gamma)
        seconds = base * (1 + gamma * (draft + growth))
        made.append(
            Point(
                pair="text",
                batch=batch,
                gamma=gamma,
                length=length,
                acceptance_rate=(length - 1) / gamma if gamma else 0.0,
                draft_s=base * gamma * draft,
                score_s=base * (1 + gamma * growth),
                token_s=seconds / length,
            )
        )
    return made


@given(alphas, st.integers(1, 12))
def test_alpha_is_found_from_the_tokens_per_round(alpha, gamma):
    assert implied_alpha(expected_tokens(alpha, gamma), gamma) == pytest.approx(alpha, abs=1e-6)


@given(alphas, costs, costs)
def test_costs_are_found_and_the_curve_runs_through_the_points(alpha, draft, growth):
    made = points(alpha, draft, growth)
    price = when_it_pays.prices(made)
    assert price == Prices(
        pytest.approx(alpha, abs=1e-6), pytest.approx(draft), pytest.approx(growth)
    )
    for gamma, gained in when_it_pays.speed_ups(made).items():
        assert price.speed_up(gamma) == pytest.approx(gained, rel=1e-5)


@given(alphas, costs)
def test_drafts_pay_exactly_where_alpha_is_above_the_price_of_a_draft(alpha, cost):
    best = best_speed_up(alpha, cost)
    if alpha > cost + 1e-6:
        assert best > 1
    elif alpha < cost - 1e-6:
        assert best == 1


def test_the_figure_of_a_record_is_reproducible(tmp_path):
    record = tmp_path / "record.json"
    made = [*points(0.8, 0.1, 0.05), *points(0.7, 0.1, 0.2, batch=8)]
    record.write_text(json.dumps({"points": [vars(p) for p in made]}))
    options = when_it_pays.parse(["draw", "--json", str(record)])
    assert options.command(options) == 0
    first = record.with_suffix(".svg").read_bytes()
    assert b"text, batch 1" in first and b"gamma" in first
    options.command(options)
    assert record.with_suffix(".svg").read_bytes() == first


def test_alpha_is_fitted_where_it_is_measured():
    assert FITTED_AT in GAMMAS and GAMMAS[0] == 0


def test_a_measurement_names_the_engines_and_its_equality(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(when_it_pays, "GAMMAS", (0, FITTED_AT))
    monkeypatch.setattr(when_it_pays, "LONGEST", 8)
    record = tmp_path / "record.json"
    options = when_it_pays.parse(
        f"measure --pairs text --batch 1 --repeats 1 --json {record}".split()
    )
    assert options.command(options) == 0
    found = json.loads(record.read_text())
    chosen = causal_decoder(load(hub.path("text"), choose("cpu"), network=False).model).engine
    assert found["equal"] is True and found["engines"]["text"]["target"] == str(chosen)
    assert f"text: engine {chosen}, of the draft" in capsys.readouterr().out
