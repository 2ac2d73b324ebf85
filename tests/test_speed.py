"""The speed comparison compares what is the same: the naive audit's numbers are the audit's, and tokens are counted."""

import json
from dataclasses import replace

import pytest
import torch
from helpers import random_policy

import rollout
from studies import speed, trl
from support import pictures

PARTS = ("prompt", "sample", "audit", "reference and update")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A group of four answers of at most 9 tokens to a question about a small image."""
    policy = random_policy("qwen2_5_vl")
    policy.eos_ids = torch.tensor([len(policy.tokenizer)])  # as in the measured model, no answer ends early
    policy.add_lora(2, 4, 8)
    sample = speed.make_sample(tmp_path_factory.mktemp("speed"), (96, 64))
    return speed.make_bench(policy, sample, speed.settings_of(4, t=9))


@pytest.mark.parametrize("keep", [False, True])
def test_the_naive_audit_computes_what_the_audit_does(bench, keep):
    s, spans, _ = rollout.audit_answers(bench.policy, bench.group, bench.masks, bench.config)
    naive = speed.naive_audit(bench, keep)
    assert spans.sum(-1).tolist() == [speed.ANSWER] * 4 and s.abs().max() > 1e-3
    torch.testing.assert_close(s * spans, naive * spans, atol=1e-5, rtol=0)
    trace = rollout.audit_answers(bench.policy, bench.group, bench.masks, replace(bench.config, method="cot-ced"))[0]
    torch.testing.assert_close(trace, naive, atol=1e-5, rtol=0)


def test_tokens_computed_stay_below_the_bound(bench):
    p, g, versions, t = len(bench.group.prompt), 4, 5, 9
    tokens = speed.tokens_of(bench)
    assert tokens["sample and audit"] == versions * p + g * versions * (t - 1)  # the last token of an answer predicts nothing
    assert tokens["bound"] == versions * p + g * versions * t and tokens["naive audit"] == g * versions * (p + t)
    half = speed.half_duplicates(bench)
    assert half.group.responses.ids.unique(dim=0).shape[0] == 2
    assert speed.tokens_of(half)["sample and audit"] < tokens["sample and audit"]


def test_attribution_follows_every_answer_of_the_group(bench):
    """As the bench marks them, though they say nothing: the rows end with the answers' tokens."""
    with speed.count_tokens(bench.policy) as counter:
        found = speed.attribution(bench)
    p, row = len(bench.group.prompt), 9 - speed.AFTER - 1  # the last token of a row predicts nothing
    assert counter["tokens"] == bench.config.evidence_steps * (p + 4 * row) and found.abs().sum() > 0


def test_a_step_moves_the_adapter(bench):
    parameters = [p for p in bench.policy.adapter.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in parameters]
    speed.step(bench, torch.optim.AdamW(parameters, lr=1e-3))
    assert any((a - b).abs().max() > 0 for a, b in zip(before, parameters))
    with torch.no_grad():
        for p, b in zip(parameters, before):
            p.copy_(b)


def test_tables_and_picture(tmp_path):
    ratios = dict.fromkeys(speed.RATIOS, 0.125) | {"step_vs_trl": None}
    result = {"seconds": {"audit": 1.5}, "memory": {"step": 1.0}, "tokens": {"bound": 3165}, **ratios}
    table = speed.comparison_table({8: result})
    assert "| audit, s | 1.50 |" in table and "| tokens, bound | 3,165 |" in table and "**0.125** (1/8.0)" in table
    assert "| step with audits / TRL step without | – |" in table
    rows = {axis: [{axis: x, **dict.fromkeys(PARTS, float(x))} for x in (1, 2)] for axis in ("G", "K")}
    assert "| K | 2 | 2.00 | 2.00 | 2.00 | 2.00 |" in speed.growth_table(rows)
    pictures.growth(rows, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 5000


def test_trl_that_is_asked_for_must_be_there(monkeypatch, capsys):
    monkeypatch.setattr(trl, "installed", lambda: False)
    assert speed.main(["--vs", "trl"]) == 2
    assert "--vs trl: TRL is not installed" in capsys.readouterr().err


def test_json_is_one_object(monkeypatch, capsys):
    ratios = dict.fromkeys(speed.RATIOS, 0.1)
    monkeypatch.setattr(speed, "compare", lambda *_: {"seconds": {}, "memory": {}, "tokens": {}, **ratios})
    assert speed.main(["--json", "--quick", "--vs", "none"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert {"audit_vs_naive", "step_vs_trl", "peak_memory_vs_trl", "tokens", "seconds"} <= content.keys()
