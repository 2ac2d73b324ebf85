"""CED's margin of a look, as a score of solutions and as the gate of its steps: EVPV without a claim that is read.

The margin (Eq. 3) asks whether the words of a look lose more likelihood when the column that its class stands in is blanked out
than when K other regions are. The column is the one that the extractor's `side` fact names: no annotation is used. A look whose
place is not known has m = 0, a gate half open. The final answer's margin would say nothing: it is copied from the conclusion.
"""

import random
from collections.abc import Sequence
from functools import partial

import torch
from tqdm import tqdm

import ced
import sft
from config import Config
from models import seeded
from related.evpv import Triple
from studies.evpv_cases import GROUP, Case, cell, picked, ranked, rewards_of, spoiled
from support import stats
from toy import roles, steps, world

SIZE = (world.CELL * world.CELLS,) * 2
Looks = list[list[float]]  # of each solution, one value a look; none if it cannot be read


def column(facts: Sequence[Triple], name: str) -> torch.Tensor | None:
    """The box (1, 4) of the column in which a class stands, by the facts; None if they do not tell."""
    side = next((value for predicate, subject, value in facts if (predicate, subject) == ("side", name)), None)
    if side not in steps.COLUMNS:
        return None
    return torch.tensor([[world.CELL * steps.COLUMNS.index(side), 0, world.CELL, SIZE[1]]])


def look_margins(policy: roles.Policy, case: Case, vision: roles.Vision, config: Config) -> tuple[Looks, Looks]:
    """The margins m of each solution's two looks, and their log-likelihoods in nats."""
    readable = [one.ids for one in case.responses if one.labels]
    m, log_p = ([[] for _ in case.responses] for _ in range(2))
    if not readable:
        return m, log_p
    prompt = roles.prompt_of(policy, "policy", case.question)
    ends = torch.stack([roles.step_ends(policy, ids) for ids in readable])  # (G, 3)
    ids, _ = sft.batch_of([(row, torch.zeros(len(row))) for row in readable], policy.pad_id)
    ids = ids[:, : int(ends[:, 1].max()) + 1]  # up to the second look
    at = torch.arange(ids.shape[1])
    begins = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :1] + 1], 1)  # the first look begins behind <think>

    def score(pages: list[list[torch.Tensor]]) -> torch.Tensor:
        return policy.log_probs(policy.read(prompt, vision.edited(*pages)), ids, 1.0)

    rows = [i for i, one in enumerate(case.responses) if one.labels]
    maps = [feature[0] for feature in vision.features]
    with torch.inference_mode():
        plain = score([[feature[:1] for feature in vision.features]])[0]  # (G, T)
        for j, name in enumerate(case.question.names):
            span = (begins[:, j, None] + (j == 0) <= at) & (at < ends[:, j, None])  # (G, T)
            boxes, margins = column(case.facts or [], name), torch.zeros(len(rows))
            if boxes is not None:
                draw = seeded(config.seed, case.question.text, case.row, j)
                masks, _ = ced.audit_regions(boxes, SIZE, vision.grid, config.k, config.max_iou, draw)
                s = ced.audit(score, plain, [(maps, vision.grid)], masks, config.intervention, config.ring, draw)
                margins = ced.answer_margin(s, span, config.eps_margin)
            for i, margin, total in zip(rows, margins.tolist(), (plain * span).sum(-1).tolist()):
                m[i].append(margin)
                log_p[i].append(total)
    return m, log_p


def gated(rewards: list[list[list[float]]], margins: Sequence[Looks], tau_g: float) -> list[list[list[float]]]:
    """The rewards with those of the looks times g(m), Eq. 5."""
    g = [[ced.evidence_gate(torch.tensor(own), tau_g).tolist() + [1.0] for own in looks] for looks in margins]
    return [[[x * y for x, y in zip(own, gates)] for own, gates in zip(*pair)] for pair in zip(rewards, g)]


def ced_table(policy: roles.Policy, splits: dict[str, list[Case]], visions: dict[str, roles.Vision]) -> dict:
    """Best of 16 by CED, by EVPV and by both; and by either when the facts (not the places) are perturbed."""
    config, rows, auroc = Config(backbone="tiny"), {}, {}
    for split, cases in splits.items():
        looked = [look_margins(policy, case, roles.view(visions[split], [case.row]), config)
                  for case in tqdm(cases, f"CED of looks, {split}")]  # fmt: skip
        margins, log_p = zip(*looked)
        by_truth: dict[int, list[float]] = {1: [], -1: []}
        for case, looks in zip(cases, margins):
            for one, own in zip(case.responses, looks):
                for label, m in zip(one.labels, own):
                    by_truth[label].append(m)
        auroc[split] = stats.auc(by_truth[1], by_truth[-1])

        def add(name: str, scores: Sequence, split: str = split, cases: Sequence[Case] = cases) -> None:
            best = {of: cell(picked(cases, scores, GROUP, of)) for of in ("right", "sound")}
            rows.setdefault(name, {})[split] = {f"{of} of 16": value for of, value in best.items()}

        add("log-likelihood of the looks", [[sum(own) if own else -torch.inf for own in looks] for looks in log_p])
        add("CED alone (sum of margins)", [[sum(own) if own else -torch.inf for own in looks] for looks in margins])
        for how in ("base", "trajectory", "direct"):
            rewards = rewards_of(cases, how)
            add(how, ranked(rewards))
            add(f"{how} × g(m)", ranked(gated(rewards, margins, config.tau_g)))
        for rate in (0.25, 0.5, 0.75):
            spoil = partial(spoiled, kind="perturb", rate=rate, rng=random.Random(f"perturb {rate}"))
            add(f"trajectory, facts perturbed at {rate}", ranked(rewards_of(cases, "trajectory", spoil)))
    return {"best of 16": rows, "AUROC of true against false looks": auroc}
