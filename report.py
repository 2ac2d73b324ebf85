"""Step 4 of the loop, and both ends of a run: a row of log.jsonl a step; scores of held-out questions before and after; a table
and two pictures that show what was learned."""

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from torch import Tensor
from tqdm import tqdm

import ced
import data
from answers import answer_text
from config import Config
from methods import rewards_of
from models import Policy
from related.rs_grpo import CHANNELS, Scoped
from rollout import Group, Judgement, evidence_boxes, judge, sample_group, sample_groups, seeded
from support import pictures, ranks
from support.checkpoint import write_whole
from support.stats import wilson
from toy import world


# ── a step's row of the log ─────────────────────────────────────────────────────────────────────────────────────────
def describe(group: Group, judgement: Judgement, rewards: Tensor | Scoped, config: Config) -> dict:
    """What one group's answers were worth, the within-group statistics of Table 1 and A.8, and what its null regions were:
    how many of the K are the evidence moved (`placed`), and their tokens relative to the evidence's (`null_tokens`).

    Between margin and gradient stand the mean gate g(m) of the audited answers and the number of distinct texts: a group of
    one text teaches nothing, however many answers it holds.
    """
    channels = dict(zip(CHANNELS, rewards.rewards.mean(1).tolist())) if isinstance(rewards, Scoped) else {}
    rewards = rewards.mean() if isinstance(rewards, Scoped) else rewards
    constant, m = bool(rewards.max() == rewards.min()), judgement.m[judgement.audited]
    return {
        "family": group.sample.family,
        "margin": fmean(m.tolist()) if len(m) else None,
        "gate": float(ced.evidence_gate(m, config.tau_g).mean()) if len(m) else None,
        "distinct": float(len(set(group.texts))),
        "reward": float(rewards.mean()),
        "r_ans": float(judgement.r_ans.mean()),
        "accuracy": float(judgement.correct.float().mean()),
        "zero_variance": float(constant),
        "non_constant": float(not constant),
        "same_answer_different_reward": float(tells_apart(group.texts, rewards)),
        "inversions": inversions(judgement.correct, rewards),
        "placed": float(len(judgement.null_boxes)),
        "null_tokens": float(judgement.masks[1:].sum(-1).float().mean() / judgement.masks[0].sum().clamp(min=1)),
        "unparsed": float((~judgement.parsed).float().mean()),
        "response_length": float(group.responses.mask.sum(-1).float().mean()),
        "look_share": fmean(map(world.looks, group.texts)),
        **channels,
    }


def means(rows: Sequence[dict]) -> dict:
    """The means of a step's groups, of those that have the quantity; margins by family."""
    margins = defaultdict(list)
    for row in rows:
        if row["margin"] is not None:
            margins[row["family"]].append(row["margin"])
    names = [name for name in rows[0] if name not in ("family", "margin")]
    found = {name: [row[name] for row in rows if row[name] is not None] for name in names}
    means = {name: fmean(values) if values else None for name, values in found.items()}
    return means | {"margin": {f: fmean(m) for f, m in margins.items()}}


def waits(seconds: Sequence[dict[str, float]]) -> dict:
    """Each rank's seconds of a step by part, `wait` being part of `learn`; and the share of all ranks' time that it is."""
    if len(seconds) == 1:
        return {"idle": 0.0}
    spent = sum(s for own in seconds for part, s in own.items() if part != "wait")
    return {"idle": sum(own["wait"] for own in seconds) / spent, "ranks": list(seconds)}


def mean_idle(out: Path) -> float:
    """The mean over a run's steps of the share of time that its ranks waited for the slowest."""
    rows = [json.loads(line) for line in (out / "log.jsonl").open()]
    return fmean(row["idle"] for row in rows if "idle" in row)  # rows of older code have none


def tells_apart(texts: Sequence[str], rewards: Tensor) -> bool:
    """Whether a group holds two responses with the same final answer and different rewards."""
    seen = defaultdict(set)
    for text, reward in zip(texts, rewards.tolist()):
        seen[answer_text(text)].add(reward)
    return any(len(values) > 1 for answer, values in seen.items() if answer is not None)


def inversions(correct: Tensor, rewards: Tensor) -> float:
    """The share of (right, wrong) pairs of a group in which the wrong answer earns at least as much (Eq. 4's edge)."""
    right, wrong = rewards[correct], rewards[~correct]
    return float((right[:, None] <= wrong[None]).float().mean()) if len(right) and len(wrong) else 0.0


def progress(row: dict, config: Config) -> dict[str, str]:
    """What the progress bar shows of a step's row. Tokens are those that all ranks have sampled."""
    tokens = row["response_length"] * config.group_size * config.prompts_per_step
    shown = {name: f"{row[name]:.2f}" for name in ("reward", "accuracy", "look_share", "kl")}
    return shown | {"tokens/s": f"{tokens / sum(row['seconds'].values()):.0f}"}


# ── what a policy scores ────────────────────────────────────────────────────────────────────────────────────────────
def measure(policy: Policy, splits: dict[str, list[data.Sample]], config: Config, name: str) -> dict[str, dict[str, dict]]:
    """Scores by split and family ("all": the mean of the families): n questions, accuracy and its 95 % interval, the share
    of look chains, the mean margin. config.eval_prompts questions of each family, config.eval_group sampled answers each.
    """
    scores = {}
    chosen = {split: choose(samples, config.eval_prompts, config.seed) for split, samples in splits.items()}
    total = sum(len(ranks.share(samples)) for samples in chosen.values())
    with tqdm(total=total, desc=f"evaluating {name}", disable=ranks.rank() > 0) as bar:
        for split, samples in chosen.items():
            rows, mine = [], ranks.share(samples)
            draws = [seeded(config.seed, "evaluate", s.id, device=policy.device) for s in mine]
            for group in sample_groups(policy, mine, config, config.eval_group, draws):
                rows.append((group.sample.family, score_of(policy, group, config)))
                bar.update()
            by_family = defaultdict(list)
            for family, row in ranks.gather(rows):
                by_family[family].append(row)
            families = {family: summary(values) for family, values in by_family.items()}
            scores[split] = families | {"all": average(list(families.values()))}
    return scores


def measure_base(policy: Policy, splits: dict[str, list[data.Sample]], config: Config, out: Path) -> dict:
    """The frozen base's scores on every rank, measured once a run: a run that goes on reads what it has written down."""
    path = out / "before.json"
    (known,) = ranks.gather([json.loads(path.read_text()) if ranks.rank() == 0 and path.is_file() else None])[:1]
    if known is not None:
        return known
    with policy.reference():
        before = measure(policy, splits, config, "before")
    if ranks.rank() == 0:
        write_whole(path, json.dumps(before).encode())
    return before


def score_of(policy: Policy, group: Group, config: Config) -> tuple[float, float, float]:
    """Accuracy, share of look chains and mean margin of the answers to one question."""
    judgement = judge(policy, group, config)
    margin = float(judgement.m[judgement.audited].mean()) if judgement.audited.any() else 0.0
    return float(judgement.correct.float().mean()), fmean(map(world.looks, group.texts)), margin


def choose(samples: Sequence[data.Sample], n: int, seed: int) -> list[data.Sample]:
    """n samples of each family, at random."""
    chosen = []
    for family in data.FAMILIES + data.CONTEXTS:
        of_family = [s for s in samples if s.family == family]
        chosen += random.Random(f"choose {seed} {family}").sample(of_family, min(n, len(of_family)))
    return chosen


def summary(rows: Sequence[tuple[float, float, float]]) -> dict:
    """One family's scores from its questions' (accuracy, look share, margin)."""
    accuracy, look_share, margin = (fmean(column) for column in zip(*rows))
    interval = wilson(accuracy, len(rows))
    return {"n": len(rows), "accuracy": accuracy, "interval": interval, "look_share": look_share, "margin": margin}


def average(families: Sequence[dict]) -> dict:
    """The mean of the families' scores; the interval is that of their pooled questions."""
    n = sum(f["n"] for f in families)
    scores = {key: fmean(f[key] for f in families) for key in ("accuracy", "look_share", "margin")}
    return {"n": n, **scores, "interval": wilson(scores["accuracy"], n)}


# ── a run's pictures and table ──────────────────────────────────────────────────────────────────────────────────────
def draw(policy: Policy, samples: list[data.Sample], config: Config, out: Path) -> None:
    """Draws the run's two pictures into its directory: the curves of its log, and audits of what the policy answers now."""
    pictures.learning_curves([json.loads(line) for line in (out / "log.jsonl").open()], out / "learning_curves.png")
    if examples := audit_examples(policy, samples, config):
        pictures.audit_sheet(examples, out / "audit_sheet.png")


def audit_examples(policy: Policy, samples: list[data.Sample], config: Config) -> list[pictures.Example]:
    """One group of each family, with the two answers of it to show: alike in what they say, furthest apart in reward. Of
    questions about several pages none is shown."""
    examples = []
    for family in data.FAMILIES:
        for sample in [s for s in samples if s.family == family][:1]:
            draw = seeded(config.seed, "sheet", sample.id, device=policy.device)
            group = sample_group(policy, sample, config, config.group_size, draw)
            judgement = judge(policy, group, config)
            examples.append(example_of(group, judgement, rewards_of(judgement, sample, config), config))
    return examples


def example_of(group: Group, judgement: Judgement, rewards: Tensor, config: Config) -> pictures.Example:
    """A judged group as the pictures show it."""
    j = judgement
    return pictures.Example(
        replace(group.sample, boxes=evidence_boxes(group.sample, config)), group.vision.grid, j.masks, j.null_boxes,
        group.texts, j.correct, j.audited, j.s, j.m, ced.evidence_gate(j.m, config.tau_g), rewards,
    )  # fmt: skip


def markdown(before: dict, after: dict) -> str:
    """Accuracy before → after by split and family, as a Markdown table."""
    lines = ["| split | family | N | accuracy before | after | 95 % interval | look share | margin |", "|---" * 8 + "|"]
    for split, families in after.items():
        for family, a in families.items():
            b = before[split][family]
            low, high = a["interval"]
            lines.append(
                f"| {split} | {family} | {a['n']} | {b['accuracy']:.2f} | {a['accuracy']:.2f} | {low:.2f}–{high:.2f} "
                f"| {b['look_share']:.2f} → {a['look_share']:.2f} | {b['margin']:.2f} → {a['margin']:.2f} |"
            )
    return "\n".join(lines)
