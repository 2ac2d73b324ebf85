"""The tables and the figure of the EVPV study."""

import json

from studies import evpv
from studies.evpv_report import draw, falls, markdown


def cells(values) -> list[dict]:
    return [{"value": v, "low": v - 0.05, "high": v + 0.05} for v in values]


def test_a_curve_falls_if_no_step_rises_beyond_its_interval():
    assert falls(cells([0.9, 0.8, 0.82, 0.6])) and not falls(cells([0.9, 0.8, 0.86, 0.6])) and not falls(cells([0.7, 0.7]))


def test_a_study_from_roles_to_tables(tmp_path, monkeypatch, capsys, few_resamples, unlaid):
    """With roles of a few updates each: all is unreadable, and said to be."""
    from toy import roles

    monkeypatch.setattr(roles, "STEPS", {"policy": 2, "extractor": 2, "verifier": 1})
    monkeypatch.setattr(roles, "POOL", 40)
    monkeypatch.setattr(roles, "VERIFIERS", {"verifier": {"free": 4}})
    monkeypatch.setattr(roles, "response_of", lambda role, question, rng: "<think> </think><|im_end|>")
    monkeypatch.setattr(roles, "MAX_NEW_TOKENS", 4)
    monkeypatch.setattr(roles.Troupe, "verifier", lambda troupe: troupe.taught("policy", 2))
    monkeypatch.setattr(evpv, "VALIDATION", 2)
    assert evpv.main(["--out", str(tmp_path), "--questions", "2"]) == 0
    text = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["roles"]["conflict"]["unreadable"] == 1 and results["roles"]["conflict"]["unreadable facts"] == 1
    assert (tmp_path / "results.png").is_file() and "| trajectory |" in text and markdown(results) in text
    draw(results, tmp_path / "again.png")
