"""Is the evidence signal real? The paper's signal tables, on a frozen backbone or on a run's adapter.

python -m studies.diagnose relevance --run runs/tiny-answer-ced-0
python -m studies.diagnose proposal --backbone qwen2.5-vl-7b --data path/to/coco_folder --answers given
python -m studies.diagnose audit --backbone tiny --image F --question Q --answer A [--box x,y,w,h]

    reward         what each formula pays, within a group and by chance      Table 1, A.8, A.9
    relevance      is s larger on the evidence, and is it so blindfolded?    4.1, A.4
    intervention   under mean, zero, noise, and at random tokens             4.3.3, A.5
    proposal       with wrong, shifted and rescaled boxes                    4.3.3, Fig. 5, A.7
    sensitivity    under other K, epsilon, tau and lambda; and of noise      A.6
    closure        bits that the reward holds about looking                  A.12
    confidence     does the margin know which answers are right?             on the conflict split
    audit          one question, region by region                            Fig. 3
    attribution    where right answers come from, without boxes              attribution.py
    guards         is such a region a circle?                                docs/evidence.md

Every table has N, the number of questions: answers to one question are alike, so 95 % intervals are bootstrapped over
questions. A diagnostic that finds evidence in noise is broken, so every statistic is held against chance, which is its mean
over all 1 + K regions of the same audit, each in turn in the evidence's role (`relevance`: with another question's evidence in
the place of this one's). `signal` means that the difference is above 0 with 97.5 % certainty for all rows of the table
together: of many tables about noise, one in forty says it somewhere.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageStat
from torch import Tensor
from tqdm import tqdm

import answers
import ced
import data
from config import Config, InputError, add_config_flags
from methods import unrouted_rewards
from models import Policy, Responses
from report import describe, example_of
from rollout import (
    Group,
    Judgement,
    attributions_of,
    eyes,
    given_group,
    judge,
    regions_of,
    right_rows,
    score_right,
    seeded,
    span_mask,
)
from studies.proposals import nulls_off_evidence, proposals, with_evidence_of_another
from studies.study import (
    Rows,
    Study,
    against_chance,
    answer,
    answer_sensitivities,
    beats_each,
    beats_mean,
    by_family,
    column,
    inspect,
    prepare,
    relabelled,
    verdicts,
)
from support import pictures, ranks, stats
from toy import world

FORMULAS = ("correctness", "additive", "answer-ced")
BINS = 8  # of a continuous reward, for its bits
SHUFFLES, TOLERANCE = 200, 1e-9  # of the labels; bits that differ by less are equal
SWEEPS = {
    "k": (1, 2, 3, 4, 8, 16),
    "eps_margin": (1e-6, 1e-4, 1e-2, 0.1, 0.5),
    "tau_g": (0.05, 0.1, 0.15, 0.2, 0.3, 0.5),
    "lam": (0.0, 0.05, 0.1, 0.2),
}
ROUND_OFF = {"float32": 1e-6, "bfloat16": 1e-2}  # nats, the sd of s when nothing but rounding differs
SIMULATED_GROUPS = 2000
STEPS = (1, 3, 6, 12, 24)  # of the path of `attribution`


# ── relevance: 4.1, A.4 ─────────────────────────────────────────────────────────────────────────────────────────────
def relevance(study: Study) -> tuple[Rows, Figure]:
    """Pr(s(Ω_ev) > μ(s_non)), and the blindfold: the same questions asked and audited on a blank image.

    A region that was found for the answer beats nearly every other, in noise too, so there the statistic is by how many nats.
    Chance is the same audit in another role (`rival`): with another question's evidence in the place of this one's, for places
    are not alike: "left" has its evidence on the left, and without an image that side alone may speak for it.
    """
    policy, config = study.policy, study.config
    boxed = config.evidence == "boxes"
    name, statistic = ("Pr(s_ev > mean s_non)", beats_mean) if boxed else ("s_ev − mean s_non", lambda s: s[0] - s[1:].mean(0))

    def look(group: Group) -> dict | None:
        other = rival(study, group)
        if other is None:
            return None
        masks = [regions_of(policy, one, config)[0] for one in (group, other)]
        own, others = (
            answer_sensitivities(policy, one, regions, config).double() for one, regions in zip((group, other), masks)
        )
        if not (own.numel() and others.numel()):
            return None
        value, chance = (float(statistic(s).mean()) for s in (own, others))
        return {name: value, f"chance {name}": chance,
                "s_ev": float(own[0].mean()), "s_non": float(own[1:].mean())}  # fmt: skip

    rows, seed = [], study.config.seed
    with tempfile.TemporaryDirectory() as scratch:
        blank = [blindfolded(sample, Path(scratch) / f"{i}.png") for i, sample in enumerate(study.samples)]
        seen = {"shown": inspect(study, look), "blank": inspect(replace(study, what="blindfold", samples=blank), look)}
    for image, found in seen.items():
        for family, part in by_family(found):
            cells = against_chance(name, part, seed)
            sides = {side: stats.mean_of(column(part, side), seed) for side in ("s_ev", "s_non")}
            rows.append({"image": image, "family": family, "N": len(part), **cells, **sides})
    return verdicts(rows), pictures.estimates(rows)


def rival(study: Study, group: Group) -> Group | None:
    """The group with what could as well be its evidence; None if the questions hold nothing of the kind.

    Boxes are those of another question. A region that was found for an answer is circular: it is chosen where the answer
    depends on the image, so noise has one too. It meets that of a wrong answer, found and audited in the same way: the answer
    to another question of the family stands where the right one stood. In noise neither is ahead of the other.
    """
    sample, config = group.sample, study.config
    if config.evidence == "boxes":
        other = with_evidence_of_another(sample, study.samples, study.policy.grid, config)
        return None if other is None else replace(group, sample=other)
    wrong = [s.answer for s in study.samples if s.family == sample.family and not answers.is_correct(
        f"{answers.OPEN}{s.answer}{answers.CLOSE}", sample.answer, sample.kind)]  # fmt: skip
    if sample.kind == "yesno":
        wrong = ["no" if answers.parse_yesno(sample.answer) == "yes" else "yes"]
    if not wrong:
        return None
    other = wrong[int(torch.randint(len(wrong), (), generator=seeded(config.seed, "a wrong answer", sample.id)))]
    right = [answers.is_correct(text, sample.answer, sample.kind) for text in group.texts]
    texts = [said_instead(text, other) if is_right else text for text, is_right in zip(group.texts, right)]
    return given_group(study.policy, replace(sample, answer=other), texts, config)


def said_instead(text: str, other: str) -> str:
    """A response with another answer."""
    before, _, after = text.rpartition(answers.answer_text(text) or "")
    return before + other + after


def blindfolded(sample: data.Sample, path: Path) -> data.Sample:
    """The sample with a blank image: its mean color, at its size, with its boxes."""
    color = tuple(round(c) for c in ImageStat.Stat(data.open_image(sample.image)).mean)
    Image.new("RGB", sample.size, color).save(path)
    return replace(sample, image=path)


# ── intervention: 4.3.3, A.5 ────────────────────────────────────────────────────────────────────────────────────────
def intervention(study: Study) -> tuple[Rows, Figure]:
    """The AUC P(s(Ω_ev) > s(Ω_k)) under each intervention, and under `mean` at as many random tokens of the whole image."""
    name = "AUC P(s_ev > s_non)"

    def look(group: Group) -> dict | None:
        masks, _ = regions_of(study.policy, group, study.config)
        where = seeded(study.config.seed, "random tokens", group.sample.id)
        control = ced.random_tokens(torch.ones_like(masks[0]), int(masks[0].sum()), where)
        values = {}
        for kind in ced.INTERVENTIONS:
            regions = torch.cat([masks, control[None]]) if kind == "mean" else masks
            s = answer_sensitivities(study.policy, group, regions, replace(study.config, intervention=kind))
            if not s.numel():
                return None
            values[kind] = relabelled(s[: len(masks)], beats_each)
            if kind == "mean":
                values["mean, at random tokens"] = relabelled(torch.cat([s[-1:], s[1 : len(masks)]]), beats_each)
        return {kind: {name: rate, f"chance {name}": chance} for kind, (rate, chance) in values.items()}

    seen, rows = inspect(study, look), []
    for kind in (*ced.INTERVENTIONS, "mean, at random tokens"):
        for family, part in by_family(seen):
            cells = against_chance(name, [values[kind] for values in part], study.config.seed)
            rows.append({"intervention": kind, "family": family, "N": len(part), **cells})
    return verdicts(rows), pictures.estimates(rows)


# ── proposal: 4.3.3, Fig. 5, A.7 ────────────────────────────────────────────────────────────────────────────────────
def proposal(study: Study) -> tuple[Rows, Figure]:
    """The margin with other boxes in the evidence's place (proposals.py): the whole pipeline, with K nulls of the proposal.

    `m` is as the pipeline has it; what is held against chance is the margin over nulls that avoid the true evidence too. The
    statistic moves with tokens, so `token IoU`, that of the two token regions, says how much of a pixel shift arrives there.
    """
    name, seed = "m, nulls off the evidence", study.config.seed
    rows, seen = [], inspect(study, lambda group: audit_proposals(study, group))
    for kind, _ in proposals(study.samples[0], study.policy.grid(study.samples[0].size), study.config):
        part = [values[kind] for _, values in seen if kind in values]
        means = {key: stats.mean_of(column(part, key), seed) for key in ("m", "gap", "Pr(s_ev > mean s_non)")}
        cells = against_chance(name, part, seed)
        token_iou = stats.mean_of(column(part, "token IoU"), seed)["value"]
        rows.append({"proposal": kind, "N": len(part), "token IoU": token_iou, **means, **cells})
    return verdicts(rows), pictures.estimates(rows)


def audit_proposals(study: Study, group: Group) -> dict | None:
    """What each proposal of a group's sample does, by name; proposals that the image has no place for are left out."""
    values = {}
    for kind, boxes in proposals(group.sample, group.vision.grid, study.config):
        if boxes is not None and (value := audit_proposal(study, group, boxes)):
            values[kind] = value
    return values or None


def audit_proposal(study: Study, group: Group, boxes: Tensor) -> dict | None:
    """The audit of boxes (n, 4) in the evidence's place; None if nothing can be audited, or no token is left outside them."""
    config, grid, k = study.config, group.vision.grid, study.config.k
    off = nulls_off_evidence(boxes, group.sample, grid, config)
    if off is None:
        return None
    proposed = replace(group, sample=replace(group.sample, boxes=tuple(map(tuple, boxes.tolist()))))
    masks, _ = regions_of(study.policy, proposed, replace(config, evidence="boxes"))
    s = answer_sensitivities(study.policy, group, torch.cat([masks, off]), config)  # (1 + 2 K, audited)
    if not s.numel():
        return None
    s, s_off = s[: 1 + k], torch.cat([s[:1], s[1 + k :]])
    m, chance = relabelled(s_off, lambda s: ced.evidence_margin(s, config.eps_margin))
    truth = ced.region_tokens(torch.tensor(group.sample.boxes), group.sample.size, grid)
    return {
        "token IoU": float((masks[0] & truth).sum() / (masks[0] | truth).sum()),
        "m": float(ced.evidence_margin(s, config.eps_margin).mean()),
        "gap": float((s_off[0] - s_off[1:].mean(0)).mean()),
        "Pr(s_ev > mean s_non)": float(beats_mean(s_off).mean()),
        "m, nulls off the evidence": m,
        "chance m, nulls off the evidence": chance,
    }


# ── reward: Table 1, A.8, A.9 ───────────────────────────────────────────────────────────────────────────────────────
def worth(group: Group, judgement: Judgement, formula: str, config: Config) -> dict:
    """What a formula pays a judged group, without the router, and its within-group statistics; K and ε are config's.

    `chance R` is what it pays with another region in the evidence's role: noise makes rewards differ too, but not larger.
    """
    s = judgement.s[: 1 + config.k]

    def pay(s: Tensor) -> Tensor:
        return unrouted_rewards(replace(judgement, m=ced.evidence_margin(s, config.eps_margin)), formula, config)

    reward, chance = relabelled(s, pay)
    return describe(group, judgement, pay(s), config) | {"R": reward, "chance R": chance}


def reward(study: Study) -> tuple[Rows, Figure]:
    """The three formulas side by side on the same answers: within-group statistics, then biases and shortcuts."""

    def look(group: Group) -> dict | None:
        judgement = judge(study.policy, group, study.config)
        if not judgement.audited.any():
            return None
        said = [answers.parse_yesno(answers.answer_text(text) or "") for text in group.texts]
        return {
            "worth": {formula: worth(group, judgement, formula, study.config) for formula in FORMULAS},
            "paid": {formula: unrouted_rewards(judgement, formula, study.config).numpy() for formula in FORMULAS},  # (G,)
            "said": np.array(said if group.sample.family == "presence" else [None] * len(said)),
            "area": np.full(len(said), float(judgement.masks[0].float().mean())),
            "length": group.responses.mask.sum(-1).cpu().numpy(),
        }

    seen = inspect(study, look)
    rows = [
        {"formula": formula, "family": family, **within_group([values["worth"][formula] for values in part], study.config.seed)}
        for formula in FORMULAS
        for family, part in by_family(seen)
    ]
    rows = verdicts(rows) + [{"formula": formula, **shortcuts(seen, formula, study.config.seed)} for formula in FORMULAS]
    return rows, pictures.estimates(rows)


def within_group(part: Sequence[dict], seed: int) -> dict:
    """Table 1's statistics of a family's groups."""
    return {
        "N": len(part),
        "non-constant": stats.share(column(part, "non_constant")),
        "zero variance": float(column(part, "zero_variance").mean()),
        "same answer, different reward": stats.share(column(part, "same_answer_different_reward")),
        **against_chance("R", part, seed),
    }


def shortcuts(seen: Sequence[tuple[str, dict]], formula: str, seed: int) -> dict:
    """A.8: how far the reward of presence answers depends on saying yes, and the reward of all on region size and length."""
    stacked = {name: np.stack([values[name] for _, values in seen]) for name in ("said", "area", "length")}  # each (N, G)
    paid = np.stack([values["paid"][formula] for _, values in seen])  # (N, G)

    def gap(rows: np.ndarray) -> float:
        yes, no = (paid[rows][stacked["said"][rows] == word] for word in ("yes", "no"))
        return float(abs(yes.mean() - no.mean())) if len(yes) and len(no) else math.nan

    def correlation(name: str) -> Callable[[np.ndarray], float]:
        return lambda rows: stats.pearson(stacked[name][rows].ravel(), paid[rows].ravel())

    measures = {"yes/no gap": gap, "r(area, R)": correlation("area"), "r(length, R)": correlation("length")}
    everything = np.arange(len(paid))
    cells = {name: stats.estimate(f(everything), stats.bootstrap(len(paid), f, seed)) for name, f in measures.items()}
    return {"N": len(paid), **cells}


# ── sensitivity: A.6 ────────────────────────────────────────────────────────────────────────────────────────────────
def sensitivity(study: Study) -> tuple[Rows, Figure]:
    """Other K, ε, τ_g (answer-ced) and λ (additive) on one audit with the largest K, whose first K nulls are those of any
    smaller K; then a simulation of what the formula pays for noise."""
    config, seed = study.config, study.config.seed
    variants = [(knob, value, replace(config, **{knob: value})) for knob, values in SWEEPS.items() for value in values]
    widest = replace(config, k=max(config.k, *SWEEPS["k"]))
    sides = ("look", "prior") if config.data == "toy" else ("right", "wrong")

    def look(group: Group) -> dict | None:
        judgement = judge(study.policy, group, widest)
        if not judgement.audited.any():
            return None
        first = torch.tensor([world.looks(t) for t in group.texts]) if config.data == "toy" else judgement.correct
        values = {}
        for knob, value, variant in variants:
            m = ced.evidence_margin(judgement.s[: 1 + variant.k], variant.eps_margin)
            halves = [m[judgement.audited & side] for side in (first, ~first)]
            values[knob, value] = worth(group, judgement, "additive" if knob == "lam" else "answer-ced", variant) | {
                **{f"m, {name}": float(half.mean()) for name, half in zip(sides, halves)},
                "g": float(ced.evidence_gate(m, variant.tau_g)[judgement.audited].mean()),
            }
        return values

    seen, rows = inspect(study, look), []
    for knob, value, _ in variants:
        part = [values[knob, value] for _, values in seen]
        means = {name: stats.mean_of(column(part, name), seed)["value"] for name in (f"m, {sides[0]}", f"m, {sides[1]}", "g")}
        rows.append({"knob": knob, "value": f"{value:g}", **within_group(part, seed), **means})
    return verdicts(rows) + noise_rewards(config), pictures.estimates(rows)


def noise_rewards(config: Config) -> Rows:
    """A simulation: what right answers of a policy that cannot see earn, when s is Gaussian round-off alone (in nats)."""
    rows = []
    for name, sd in ROUND_OFF.items():
        for eps in SWEEPS["eps_margin"]:
            draw = seeded(config.seed, "round-off", name)
            s = sd * torch.randn(1 + config.k, SIMULATED_GROUPS, config.group_size, generator=draw, dtype=torch.float64)
            m = ced.evidence_margin(s, eps)  # (SIMULATED_GROUPS, G)
            paid = ced.evidence_reward(torch.full_like(m, config.r_correct), m, config.tau_g, config.eps_tie)
            rows.append({"simulated s": f"{name}, sd {sd:g}", "eps_margin": f"{eps:g}", "mean \\|m\\|": float(m.abs().mean()),
                         "R of a right answer": float(paid.mean()), "best of G": float(paid.amax(-1).mean())})  # fmt: skip
    return rows


# ── closure: A.12 ───────────────────────────────────────────────────────────────────────────────────────────────────
def closure(study: Study) -> tuple[Rows, Figure]:
    """I(S; G | Y, Q): what the reward S says of the grounding label G, the toy's look or prior chain, beyond question and
    final answer; against the same with G shuffled among the answers of equal question and text.

    S of correctness is a function of question and answer, so it must have 0 bits; outside the toy there is no label.
    """

    def look(group: Group) -> dict | None:
        judgement = judge(study.policy, group, study.config)
        if not judgement.audited.any():
            return None
        paid = {formula: unrouted_rewards(judgement, formula, study.config).numpy() for formula in FORMULAS}
        return paid | {"said": [answers.answer_text(t) for t in group.texts], "g": [world.looks(t) for t in group.texts]}

    seen = [values for _, values in inspect(study, look)]
    g = np.concatenate([values["g"] for values in seen]).astype(int)
    strata: dict[tuple, int] = {}
    z = np.array([strata.setdefault((q, text), len(strata)) for q, values in enumerate(seen) for text in values["said"]])
    sizes = {"N": len(seen), "answers": len(g), "strata": len(strata)}
    rows = []
    for formula in FORMULAS:
        s = stats.equal_frequency_bins(np.concatenate([values[formula] for values in seen]), BINS)
        shuffle = np.random.default_rng(study.config.seed)
        null = np.array([
            stats.conditional_mutual_information(s, stats.shuffled(g, z, shuffle), z) for _ in range(SHUFFLES)
        ])  # fmt: skip
        bits = stats.conditional_mutual_information(s, g, z)
        p = (1 + int((null >= bits - TOLERANCE).sum())) / (1 + SHUFFLES)
        low, high = stats.interval(null)
        said = "signal" if p <= stats.doubt(len(FORMULAS)) else "no signal"
        cells = {"bits [95 % of shuffles]": {"value": bits, "low": low, "high": high}, "p": p}
        rows.append({"S": formula, **sizes, **cells, "verdict": said if np.ptp(g) else "no signal: no grounding label"})
    return rows, pictures.estimates(rows)


# ── confidence ──────────────────────────────────────────────────────────────────────────────────────────────────────
def confidence(study: Study) -> tuple[Rows, Figure]:
    """Which answers are right: does the margin know, and does it know better than the answer's own likelihood? AUROC, and
    the area under the risk-coverage curve, over all answers that can be audited."""
    names, seed = ("margin m", "log-probability"), study.config.seed

    def look(group: Group) -> dict | None:
        judgement = judge(study.policy, group, study.config)
        a = judgement.audited
        if not a.any():
            return None
        spans = span_mask(group.spans, group.responses.ids.shape[1])
        log_p = (group.responses.unit_log_probs.cpu() * spans).sum(-1)  # log π of the final answers: (G,)
        return {"right": judgement.correct[a].numpy(), "margin m": judgement.m[a].numpy(), "log-probability": log_p[a].numpy()}

    seen = [values for _, values in inspect(study, look)]
    right = np.concatenate([values["right"] for values in seen])
    rows = [{"confidence": name, "N": len(seen), "answers": len(right), **ranks_right(seen, name, seed)} for name in names]
    rows[1]["verdict"] = "the yardstick"  # words alone can be likelier where they are right
    if right.all() or not right.any():
        rows = [row | {"verdict": f"n/a: all answers are {'right' if right.all() else 'wrong'}"} for row in rows]
    curves = {name: stats.risk_coverage(np.concatenate([values[name] for values in seen]), right) for name in names}
    return verdicts(rows), pictures.risk_coverage(curves)


def ranks_right(seen: Sequence[dict], name: str, seed: int) -> dict:
    """How well one confidence puts right answers before wrong ones; the draws are those of AUROC − ½."""

    def auroc(c: np.ndarray, right: np.ndarray) -> float:
        return stats.auc(c[right], c[~right])

    def area(c: np.ndarray, right: np.ndarray) -> float:
        return float(stats.risk_coverage(c, right).mean())

    def over(questions: Sequence[int], measure: Callable) -> float:
        return measure(*(np.concatenate([seen[q][key] for q in questions]) for key in (name, "right")))

    cells = {}
    for title, measure in {"accuracy": lambda c, right: right.mean(), "AUROC": auroc, "area under risk-coverage": area}.items():
        draws = stats.bootstrap(len(seen), partial(over, measure=measure), seed)
        cells[title] = stats.estimate(over(range(len(seen)), measure), draws)
        if measure is auroc:
            cells["draws"] = draws - 0.5
    return cells


# ── audit ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def audit(study: Study) -> tuple[Rows, Figure]:
    """One question and one answer: s of every region, then m, g and R, if the answer is right."""
    (sample,) = study.samples
    group = answer(study, sample)
    judgement = judge(study.policy, group, study.config)
    rewards = unrouted_rewards(judgement, "answer-ced", study.config)
    gates = ced.evidence_gate(judgement.m, study.config.tau_g)
    names = ["evidence", *(f"null {k}" for k in range(1, len(judgement.s)))]
    rows = [{"region": name, "tokens": int(mask.sum()), "s (nats)": float(s)}
            for name, mask, s in zip(names, judgement.masks, judgement.s[:, 0])]  # fmt: skip
    rows.append({"answer": sample.answer, "m": float(judgement.m), "g": float(gates), "R if it is right": float(rewards)})
    return rows, pictures.one_audit(example_of(group, judgement, rewards, study.config))


# ── attribution ─────────────────────────────────────────────────────────────────────────────────────────────────────
def attribution(study: Study) -> tuple[Rows, Figure]:
    """Where right answers come from, by steps of the path: how far the attributions are from adding up to what the image brings
    (completeness), and how well their region overlaps the annotated one; and a picture of one question of each family."""
    given = study.config.evidence.startswith("attributed")
    config = study.config if given else replace(study.config, evidence="attributed")
    seen: dict[int, list[dict]] = {steps: [] for steps in sorted({*STEPS, config.evidence_steps})}
    shown: dict[str, tuple] = {}
    for sample in tqdm(study.samples, desc=study.what):
        group = answer(study, sample)
        for steps, part in seen.items():
            part.append(attributed(study.policy, group, replace(config, evidence_steps=steps)))
        if sample.family not in shown:
            judgement = judge(study.policy, group, config)
            rewards = unrouted_rewards(judgement, "answer-ced", config)
            found = attributions_of(study.policy, group, config)
            shown[sample.family] = example_of(group, judgement, rewards, config), found
    rows = [
        {"steps": steps, "N": len(part), **{name: stats.mean_of(column(part, name), config.seed) for name in part[0]}}
        for steps, part in seen.items()
    ]
    return rows, pictures.attributions(*zip(*shown.values()))


def attributed(policy: Policy, group: Group, config: Config) -> dict:
    """What the image brings to the right answer, what the attributions' sum misses of it, both in nats a chain of thought; and
    the IoU and precision of their region with the boxes, in tokens (NaN where there are none)."""
    ids, spans = right_rows(policy, group)
    ends = [torch.stack([m[0], m[0].mean(0).expand_as(m[0])]) for m in group.vision.features]  # the image, and nothing
    with torch.no_grad(), eyes(policy, config):
        with_image, without = score_right(policy, group, ids, spans, ends).sum((1, 2)).tolist()
    missed = abs(float(attributions_of(policy, group, config).sum()) - (with_image - without))
    region, sample = regions_of(policy, group, config)[0][0], group.sample
    truth = ced.region_tokens(torch.tensor(sample.boxes or [(0.0,) * 4]), sample.size, group.vision.grid)
    both = int((region & truth).sum()) if sample.boxes else math.nan
    return {"log π(I) − log π(nothing)": (with_image - without) / len(ids), "error": missed / len(ids),
            "IoU": both / int((region | truth).sum()), "precision": both / int(region.sum())}  # fmt: skip


# ── guards ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def guards(study: Study) -> tuple[Rows, Figure]:
    """An attributed region is chosen where the answer depends on the image, and the audit then asks whether it does: is that a
    circle? The margin when the reference chooses, as in training; when the policy itself does; when one half of the answers
    chooses for the other, both ways (cross-fitting); and when the image is blank. `change` is that of one answer's margin."""
    if study.chain is not None:
        raise InputError("guards: expected --answers sampled: one given answer has no other half")
    config = replace(study.config, evidence="attributed")
    seen: dict[str, list[dict]] = {name: [] for name in ("reference", "policy", "other half", "blank image")}
    with tempfile.TemporaryDirectory() as scratch:
        for i, sample in enumerate(tqdm(study.samples, desc=study.what)):
            group = answer(study, sample)
            blank = answer(study, blindfolded(sample, Path(scratch) / f"{i}.png"))
            own = chosen_by(study.policy, group, group, config)
            values = {
                "reference": own,
                "policy": chosen_by(study.policy, group, group, replace(config, evidence="attributed-policy")),
                "other half": crossed(study.policy, group, config),
                "blank image": chosen_by(study.policy, blank, blank, config),
            }
            for name, (region, m) in values.items():
                if len(m) and len(own[1]):
                    iou = float((region & own[0]).sum(-1).div((region | own[0]).sum(-1)).mean())
                    change = float((m - own[1]).abs().mean()) if name != "blank image" else math.nan
                    seen[name].append({"m": float(m.mean()), "change": change, "IoU": iou})
    rows = [
        {"the region is chosen by": name, "N": len(part), "m": stats.mean_of(column(part, "m"), config.seed),
         **{f"{key} from the reference's": float(column(part, key).mean()) for key in ("change", "IoU")}}
        for name, part in seen.items() if part
    ]  # fmt: skip
    if not rows:
        raise InputError("no answer could be audited: the policy's own answers lack <answer> … </answer>")
    return rows, pictures.estimates(rows)


def chosen_by(policy: Policy, chooser: Group, judged: Group, config: Config) -> tuple[Tensor, Tensor]:
    """The region (N,) that one group's answers choose, and the margins (audited,) of another's there."""
    masks = regions_of(policy, chooser, config)[0]
    return masks[0], ced.evidence_margin(answer_sensitivities(policy, judged, masks, config), config.eps_margin)


def crossed(policy: Policy, group: Group, config: Config) -> tuple[Tensor, Tensor]:
    """The regions (2, N) that the halves of a group choose for each other, and the margins (audited,) of its answers there."""
    middle = len(group.texts) // 2
    halves = part_of(group, slice(middle)), part_of(group, slice(middle, None))
    regions, margins = zip(*(chosen_by(policy, *pair, config) for pair in (halves[::-1], halves)))
    return torch.stack(regions), torch.cat(margins)


def part_of(group: Group, rows: slice) -> Group:
    """Some of a group's answers."""
    r = group.responses
    responses = Responses(r.ids[rows], r.mask[rows], r.log_probs[rows], r.unit_log_probs[rows])
    return replace(group, responses=responses, texts=group.texts[rows], spans=group.spans[rows])


DIAGNOSTICS = {
    "reward": reward,
    "relevance": relevance,
    "intervention": intervention,
    "proposal": proposal,
    "sensitivity": sensitivity,
    "closure": closure,
    "confidence": confidence,
    "audit": audit,
    "attribution": attribution,
    "guards": guards,
}


# ── reports ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def cell(value: Any) -> str:
    """A value as a cell of a Markdown table: estimates as `0.97 [0.95, 0.99]`."""
    if isinstance(value, dict):
        return f"{cell(value['value'])} [{cell(value['low'])}, {cell(value['high'])}]"
    if isinstance(value, float):
        return "n/a" if math.isnan(value) else f"{value:.3f}"
    return str(value)


def markdown(rows: Rows) -> str:
    """The rows as Markdown; a new table begins where the columns change."""
    tables = []
    for names, part in groupby(rows, key=tuple):
        lines = [names, ["---"] * len(names), *([cell(value) for value in row.values()] for row in part)]
        tables.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(tables)


def plain(value: Any) -> Any:
    """A value without NaN, which JSON does not know: null."""
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def report(study: Study, out: Path, as_json: bool) -> None:
    """Runs the diagnostic, writes its picture and its numbers, and prints the numbers."""
    rows, figure = DIAGNOSTICS[study.what](study)
    how = "sampled" if study.chain is None else f"given: {study.chain} <answer> right answer </answer>"
    result = {"diagnostic": study.what, "answers": how, "rows": [plain(row) for row in rows], "config": asdict(study.config)}
    out.mkdir(parents=True, exist_ok=True)
    pictures.save(figure, out / f"{study.what}.png")
    (out / f"{study.what}.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result) if as_json else f"{markdown(rows)}\n\nwrote {out}/: {study.what}.json, {study.what}.png")


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────
def folder(run: Path | None, given: dict, config: Config) -> Path:
    """Where numbers and pictures go."""
    if "out" in given:
        return Path(given["out"])
    return run / "diagnose" if run else Path("runs") / f"{Path(config.backbone).name}-diagnose"


def make_parser() -> argparse.ArgumentParser:
    """The command line: what to diagnose, of which policy, and every field of Config."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies.diagnose", description=__doc__, formatter_class=raw)
    parser.add_argument("what", choices=DIAGNOSTICS, metavar="WHAT", help=f"one of {', '.join(DIAGNOSTICS)}")
    parser.add_argument(
        "--run", type=Path, help="diagnose this run's adapter, under its configuration; else the frozen backbone"
    )
    parser.add_argument(
        "--split", help="of the data, or all (default: toy: held out; else val of a run's data, all of a backbone's)"
    )
    parser.add_argument("--prompts", type=int, dest="eval_prompts", default=argparse.SUPPRESS, help="same as --eval-prompts")
    parser.add_argument("--answers", choices=("sampled", "given"), default="sampled", help="the policy's own, or the right one")
    parser.add_argument("--chain", default="", help="what stands before a given answer")
    one = parser.add_argument_group("audit, and attribution of one's own question")
    one.add_argument("--image", type=Path, help="the image of the question")
    one.add_argument("--question", help="the question")
    one.add_argument("--answer", help="the answer whose evidence is audited")
    one.add_argument("--box", action="append", metavar="X,Y,W,H", help="a box of the evidence, in pixels; may be repeated; "
                     "without any, --evidence attributed")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--debug", action="store_true", help="show where an error of the input was met")
    add_config_flags(parser)
    return parser


def diagnose(args: argparse.Namespace) -> None:
    """Runs a diagnostic and reports it. Raises InputError."""
    given = {f.name: getattr(args, f.name) for f in fields(Config) if hasattr(args, f.name)}
    with tempfile.TemporaryDirectory() as scratch:
        study = prepare(args, given, Path(scratch))
        report(study, folder(args.run, given, study.config), args.json)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    args = make_parser().parse_args(argv)
    return ranks.command("studies.diagnose", lambda: diagnose(args), args.debug)


if __name__ == "__main__":
    sys.exit(main())
