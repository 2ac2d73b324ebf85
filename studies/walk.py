"""One question, step by step, with the real numbers: from a picture to a gradient, on the frozen embedded backbone.

python -m studies.walk [STAGE ...] [--out DIR]          all nine stages, in half a minute; or some, as `walk regions`

    question   a picture, its token grid, the evidence and the null regions      data, ced.audit_regions
    sample     the chains of a group, and which tokens are the answer            rollout.sample_group
    audit      Eqs. 1 and 2: a token before and after; s of every region         ced.intervene, ced.audit
    reward     Eqs. 3–5: s → m → g → R → A, and correctness beside it            ced, grpo.group_advantages
    what-if    other margins, other nulls, a wrong answer that costs             methods.rewards_of
    cost       tokens that the cached audit computes, and the naive one          models.Policy
    learn      loss, gradient, k3, the free reference, two ranks as one          train.learn, grpo.grpo_loss
    knobs      what the run does when one number changes                         studies.knobs
    yours      your own model, data, reward                                      one command or edit each

docs/tutorial.md is this output with prose between.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import answers
import ced
import grpo
import train
from config import Config, InputError, configure
from methods import rewards_of, unrouted_rewards
from reading import make_folder
from report import choose, example_of
from rollout import Group, Judgement, audit_answers, judge, regions_of, sample_group, seeded
from studies.speed import count_tokens
from support import pictures, ranks
from support.questions import load_samples
from toy import world

FAMILY = "counting"  # of the question walked through: the first of its family among the training questions
MANY = 5  # questions of each family behind a mean
MARGINS = (-1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0)


class Walk:
    """The question, and what the frozen backbone makes of it. Each part is computed when it is first looked at."""

    def __init__(self, scratch: Path):
        self.config = configure({"backbone": "tiny"})
        self.policy = train.load_trainable(self.config)  # an adapter that is still 0: the backbone itself
        self.samples, self.held_out = load_samples(self.config, self.policy, scratch, quiet=True)
        self.sample = next(s for s in self.samples if s.family == FAMILY)

    @cached_property
    def group(self) -> Group:
        """G answers to the question."""
        return self.group_of(self.sample)

    @cached_property
    def judgement(self) -> Judgement:
        """The group's audit and correctness."""
        return judge(self.policy, self.group, self.config)

    @cached_property
    def rewards(self) -> Tensor:
        """R (G,)."""
        return rewards_of(self.judgement, self.sample, self.config)

    @cached_property
    def pair(self) -> tuple[int, int]:
        """Two answers that say the same, the first of which looked and the second did not."""
        return pictures.two_alike(example_of(self.group, self.judgement, self.rewards, self.config))

    def group_of(self, sample: Any) -> Group:
        """G answers of the frozen backbone to a question."""
        draw = seeded(self.config.seed, "walk", sample.id, device=self.policy.device)
        return sample_group(self.policy, sample, self.config, self.config.group_size, draw)


# ── how a stage is printed ──────────────────────────────────────────────────────────────────────────────────────────
def table(*rows: Sequence[Any]) -> str:
    """Rows of cells, the first of them the head, in columns: words to the left, numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    left = [all(not c[:1].isdigit() and c[:1] not in "+-−.∞" for c in column) for column in zip(*cells[1:])]
    lines = ["  ".join(c.ljust(w) if first else c.rjust(w) for c, w, first in zip(row, widths, left)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign; round-off has none."""
    return f"{value:+.{digits}f}" if abs(value) >= 0.5 * 10**-digits else f"{0:.{digits}f}"


# ── the stages ──────────────────────────────────────────────────────────────────────────────────────────────────────
def question(walk: Walk) -> str:
    """The picture, its token grid, the evidence and the null regions."""
    sample, vision = walk.sample, walk.group.vision
    masks, nulls = regions_of(walk.policy, walk.group, walk.config)
    boxes = [sample.boxes, *nulls.tolist()]
    rows = [("region", "boxes (x, y, width, height) in pixels", "tokens |N(Ω)|", "which")]
    for k, mask in enumerate(masks):
        where = "; ".join(", ".join(f"{v:g}" for v in box) for box in boxes[k]) if k < len(boxes) else "random tokens"
        rows.append(("Ω_ev" if k == 0 else f"Ω_{k}", where, int(mask.sum()), brief(mask.nonzero()[:, 0].tolist())))
    width, height = sample.size
    (rows_, columns), (_, n, d) = vision.grid, vision.features[0].shape
    return "\n".join([
        f"{sample.question}   (right: {sample.answer}, family {sample.family})   data.load",
        f"picture {width} × {height} px → {rows_} × {columns} = N = {n} visual tokens of D = {d}   models.Policy.encode",
        f"and {len(vision.features) - 1} DeepStack map (N, D); map i is added to the hidden states after decoder layer i",
        "",
        "ced.audit_regions: the evidence, and K = 3 of the places it can be moved to, in whole tokens",
        table(*rows),
    ])  # fmt: skip


def brief(numbers: Sequence[int], most: int = 12) -> str:
    """Token numbers, the first few of them."""
    return " ".join(map(str, numbers[:most])) + (" …" if len(numbers) > most else "")


def sample(walk: Walk) -> str:
    """The distinct chains of the group, with their counts, and the answer's tokens."""
    group, policy = walk.group, walk.policy
    tokens = [[policy.decode([i]).strip() for i in ids[:n]] for ids, n in zip(group.responses.ids.tolist(), lengths(group))]
    marked = [" ".join(f"[{t}]" if span and span[0] <= i < span[1] else t for i, t in enumerate(row))
              for row, span in zip(tokens, group.spans)]  # fmt: skip
    counts = Counter(zip(group.texts, marked)).most_common()
    rows = [("times", "chain", "tokens of the response, [ ] around the answer's")]
    rows += [(n, "look" if world.looks(text) else "prior", line.replace("<|im_end|>", "⏎")) for (text, line), n in counts]
    g, t = group.responses.ids.shape
    return "\n".join([
        f"prompt of P = {len(group.prompt)} tokens: picture, question, instruction; read once, then forked G = {g} times",
        f"responses (G, T) = ({g}, {t}), ids and log π of each   rollout.sample_group, models.Policy.sample",
        "which tokens are the answer   answers.answer_span",
        table(*rows),
    ])  # fmt: skip


def lengths(group: Group) -> list[int]:
    """Tokens of each response."""
    return group.responses.mask.sum(-1).tolist()


def audit(walk: Walk) -> str:
    """Eq. 1 on one token, and Eq. 2 for a look chain and a prior chain."""
    group, judgement, config = walk.group, walk.judgement, walk.config
    tokens = group.vision.features[0][0]  # (N, D)
    edited = ced.intervene(tokens, judgement.masks, group.vision.grid, config.intervention, config.ring, seeded(0))
    i = int(judgement.masks[0].nonzero()[0])
    near = ced.neighbours(judgement.masks, group.vision.grid, config.ring)[0]
    look, prior = walk.pair
    rows = [("s(Ω) in nats", *(("Ω_ev" if k == 0 else f"Ω_{k}") for k in range(len(judgement.s))), "the answer")]
    rows += [(name, *(signed(s) for s in judgement.s[:, j].tolist()), answers.answer_text(group.texts[j]))
             for name, j in (("look chain", look), ("prior chain", prior))]  # fmt: skip
    return "\n".join([
        "Eq. 1   h̃_i = μ_Ω for i in N(Ω), the mean of the neighbours within 2 grid steps   ced.intervene",
        table(("token", "its first four numbers", "", "", ""),
              (f"h_{i}", *(signed(v, 2) for v in tokens[i, :4].tolist())),
              (f"h̃_{i}", *(signed(v, 2) for v in edited[0, i, :4].tolist()))),
        f"μ_Ω of Ω_ev is the mean of {int(near.sum())} neighbours; all of N(Ω) get it; every other token stays bit-equal",
        "",
        "Eq. 2   s(Ω) = log π(y | I, q) − log π(y | Ĩ∖Ω, q), summed over the answer's tokens   ced.audit",
        table(*rows),
        "the same answer twice: one was read off the picture, the other would have been given without it",
    ])  # fmt: skip


def reward(walk: Walk) -> str:
    """s → m → g → R → A, answer by answer, and what correctness alone makes of them."""
    group, j, config = walk.group, walk.judgement, walk.config
    gates = ced.evidence_gate(j.m, config.tau_g)
    advantages = grpo.group_advantages(walk.rewards, config.eps_adv)
    plain = grpo.group_advantages(unrouted_rewards(j, "correctness", config), config.eps_adv)
    lines = Counter(
        ("look" if world.looks(text) else "prior", answers.answer_text(text), signed(float(j.s[0, i]), 2),
         signed(float(j.m[i])), f"{float(gates[i]):.3f}", f"{float(j.r_ans[i]):g}", signed(float(walk.rewards[i])),
         signed(float(advantages[i]), 2), signed(float(plain[i]), 2))
        for i, text in enumerate(group.texts)
    )  # fmt: skip
    rows = [("times", "chain", "answer", "s(Ω_ev)", "m", "g(m)", "R_ans", "R", "A", "A of correctness")]
    saturated = float((j.m[torch.tensor([world.looks(t) for t in group.texts])] == 1).float().mean())
    return "\n".join([
        "Eq. 3   m = tanh((s(Ω_ev) − μ(s_non)) / (σ(s_non) + ε))    ε = 0.1 nat   ced.answer_margin",
        "Eq. 5   g(m) = ½ (1 + tanh(m / τ_g))                       τ_g = 0.2     ced.evidence_gate",
        "Eq. 4   R = R_ans · g(m) + ε_tie · m                       ε_tie = 0.1   ced.evidence_reward",
        "        A = (R − mean) / (σ + 1e-4), over the group                      grpo.group_advantages",
        table(*rows, *((n, *line) for line, n in lines.most_common())),
        f"m is exactly 1 in float32 for {saturated:.0%} of the look answers: their rewards tie. A divides by σ, so",
        "that it matters which answers earn more, and hardly how much more",
    ])  # fmt: skip


def what_if(walk: Walk) -> str:
    """R against m; nulls of other sizes; a wrong answer that costs something."""
    config = walk.config
    m = torch.tensor(MARGINS)
    kinds = {"right": config.r_correct, "wrong": config.r_wrong}
    rows: list[tuple] = [("R at m =", *(signed(v, 1) for v in MARGINS))]
    for name, r_ans in kinds.items():
        paid = ced.evidence_reward(torch.full_like(m, r_ans), m, config.tau_g, config.eps_tie)
        rows.append((name, *(signed(v) for v in paid.tolist())))
    for r_wrong in (-0.25, 0.5):
        paid = ced.evidence_reward(torch.full_like(m, r_wrong), m, config.tau_g, config.eps_tie)
        rows.append((f"wrong, r_wrong {r_wrong:+}", *(signed(v) for v in paid.tolist())))
    sizes = null_sizes(walk)
    return "\n".join([
        "what an answer earns, by its margin   ced.evidence_reward",
        table(*rows),
        f"below m = {crossing(config):.3f} a right answer earns less than a wrong one can, {config.eps_tie} at m = 1",
        f"an answer that cannot be read earns the floor, {floor(walk):.3f}   methods.floor_of",
        "with r_wrong < 0 Eq. 4 prefers the wrong answer that did not look: the gate lifts its punishment",
        "",
        f"why area-matched: mean m of look answers to {MANY} questions of each family, by the size of the nulls",
        table(*sizes),
        "a larger null blanks more, so that the evidence no longer stands out: the margin would measure area",
    ])  # fmt: skip


def crossing(config: Config) -> float:
    """The margin at which a right answer earns what the best wrong one does."""
    m = torch.linspace(-1, 1, 200_001, dtype=torch.float64)
    right = ced.evidence_reward(torch.full_like(m, config.r_correct), m, config.tau_g, config.eps_tie)
    best = float(ced.evidence_reward(torch.full_like(m, config.r_wrong), m, config.tau_g, config.eps_tie).max())
    return float(m[right >= best].min())


def floor(walk: Walk) -> float:
    """What an unreadable answer earns."""
    nobody = replace(walk.judgement, parsed=torch.zeros_like(walk.judgement.parsed))
    return float(unrouted_rewards(nobody, walk.config.method, walk.config)[0])


def null_sizes(walk: Walk) -> list[tuple]:
    """The mean margin of look answers under random nulls of other sizes than the evidence's."""
    found: dict[str, list[float]] = {}
    asked = [s for s in choose(walk.samples, MANY, walk.config.seed) if s.family != "presence"]
    for sample in asked:
        group = walk.group_of(sample)
        looked = torch.tensor([world.looks(text) for text in group.texts])
        evidence = regions_of(walk.policy, group, walk.config)[0][0]
        draw, n = seeded(walk.config.seed, "sizes", sample.id), int(evidence.sum())
        for name, size in {"1 token": 1, "the evidence's": n, "4 times": 4 * n, "all other tokens": len(evidence)}.items():
            nulls = [ced.random_tokens(~evidence, size, draw) for _ in range(walk.config.k)]
            s, spans, audited = audit_answers(walk.policy, group, torch.stack([evidence, *nulls]), walk.config)
            m = ced.answer_margin(s, spans, walk.config.eps_margin)
            found.setdefault(name, []).extend(m[looked & audited].tolist())
    return [("size of a null", *found), ("mean m", *(f"{fmean(values):.3f}" for values in found.values()))]


def cost(walk: Walk) -> str:
    """Tokens through the language model: the cached audit's, and the naive one's."""
    group, config = walk.group, walk.config
    g, t, p, versions = len(group.texts), group.responses.ids.shape[1], len(group.prompt), 1 + config.k
    masks = regions_of(walk.policy, group, config)[0]
    with count_tokens(walk.policy) as counter:
        audit_answers(walk.policy, group, masks, config)
    naive, distinct = g * (versions + 1) * (p + t), len(set(group.texts))
    rows = [
        ("audit of the group", "tokens", ""),
        ("naive", naive, "G · (2 + K) · (P + T): every answer under each of 2 + K pictures"),
        ("cached", counter["tokens"], f"(1 + K) · P, and {distinct} distinct answers (T − 1) under each"),
    ]
    return "\n".join([
        f"G = {g}, P = {p}, T = {t}, K = {config.k}   rollout.audit_answers, models.Policy.fork",
        table(*rows),
        f"the naive audit computes {naive / counter['tokens']:.0f} times as many. Under the picture as it is the answers were",
        "scored when they were sampled; and the vision tower ran once, since Eq. 1 edits what it made",
    ])  # fmt: skip


def learn(walk: Walk) -> str:
    """Loss, gradient and k3 of one update; the reference; and two ranks as one."""
    policy, config, group = walk.policy, walk.config, walk.group
    parameters = [p for p in policy.adapter.parameters() if p.requires_grad]
    rows = torch.arange(len(group.texts))
    advantages = grpo.group_advantages(walk.rewards, config.eps_adv)
    shares = grpo.token_shares(group.responses.mask, config.average)
    with torch.no_grad():
        before = train.log_probs_of(policy, group, rows, config)
    loss = grpo.grpo_loss(
        before, before, before, advantages, shares, config.clip_low, config.clip_high, config.beta
    )[0]  # fmt: skip
    halves = [gradient(walk, [s], 2) for s in walk.samples[:2]]
    whole = gradient(walk, walk.samples[:2], 2)
    off = float((halves[0] + halves[1] - whole).abs().max() / whole.abs().max())
    train.learn(policy, group, walk.judgement, walk.rewards, config, update=0, n=1)
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
    norm = train.descend(optimizer, config.grad_clip)
    with torch.no_grad():
        after = train.log_probs_of(policy, group, rows, config)
        with policy.reference():
            reference = train.log_probs_of(policy, group, rows, config)
    k3 = float((grpo.k3(after, reference) * shares).sum())
    look, prior = walk.pair
    moved = [float((after - before)[i].sum()) for i in (look, prior)]
    return "\n".join([
        "one update on this group alone   train.learn, grpo.grpo_loss, train.descend",
        table(("what", "value", "because"),
              ("loss", f"{abs(float(loss)):.3f}", "advantages sum to 0 and every ratio is 1"),
              ("gradient norm", f"{norm:.2f}", f"not 0: loss is a surrogate; clipped to {config.grad_clip:g}"),
              ("k3 to the reference, after", f"{k3:.4f}", "nats a token; exactly 0 before"),
              ("log π of the look chain", signed(moved[0], 2), "A > 0: likelier by so many nats"),
              ("log π of the prior chain", signed(moved[1], 2), "A < 0"),
              ("reference − before", f"{float((reference - before).abs().max()):.0e}", "the adapter off: free"),
              ("two ranks − one", f"{off:.0e}", "each adds 1/n of its prompts' gradients; the sum is the mean")),
    ])  # fmt: skip


def gradient(walk: Walk, samples: Sequence, n: int) -> Tensor:
    """The summed gradient of 1/n of each question's loss, flat."""
    parameters = [p for p in walk.policy.adapter.parameters() if p.requires_grad]
    for sample in samples:
        group = walk.group_of(sample)
        judgement = judge(walk.policy, group, walk.config)
        train.learn(walk.policy, group, judgement, rewards_of(judgement, sample, walk.config), walk.config, 0, n)
    flat = torch.cat([p.grad.flatten() for p in parameters])
    for p in parameters:
        p.grad = None
    return flat


def knobs(walk: Walk) -> str:
    """What single numbers make of this group's rewards and advantages, before any training."""
    look, prior = walk.pair
    rows = [("setting", "R look", "R prior", "A look", "A prior")]
    for change in ({}, {"tau_g": 0.05}, {"tau_g": 0.5}, {"eps_tie": 0.0}, {"eps_tie": 0.5}, {"method": "additive"},
                   {"method": "correctness"}):  # fmt: skip
        config = replace(walk.config, **change)
        r = rewards_of(walk.judgement, walk.sample, config)
        a = grpo.group_advantages(r, config.eps_adv)
        name = ", ".join(f"{key} {value}" for key, value in change.items()) or "as it is"
        rows.append((name, *(signed(float(x[i]), 2) for x in (r, a) for i in (look, prior))))
    return "\n".join([
        "one number changed, the same answers   config.Config, methods.METHODS",
        table(*rows),
        "A divides by σ, so that most knobs hardly move it",
        "what a whole run makes of them: python -m studies.knobs",
    ])  # fmt: skip


def yours(walk: Walk) -> str:
    """One command or one edit each for an own model, own data, an own reward."""
    return table(
        ("your own", "what to write"),
        ("model", "python train.py --backbone path/to/a/qwen-vl/directory --data samples.jsonl"),
        ("data", "python data.py --coco path/to/coco_folder --out samples.jsonl"),
        ("one picture", "python -m studies.diagnose audit --image F --question Q --answer A --box x,y,w,h"),
        ("reward", 'a row of methods.METHODS: "mine": Method(lambda j, c: j.r_ans * (j.m > 0))'),
        ("loop", "ced.py alone, which needs torch and nothing else: copy the file"),
    )


STAGES: dict[str, Callable[[Walk], str]] = {
    "question": question,
    "sample": sample,
    "audit": audit,
    "reward": reward,
    "what-if": what_if,
    "cost": cost,
    "learn": learn,
    "knobs": knobs,
    "yours": yours,
}


def told(names: Sequence[str], walk: Walk) -> dict[str, str]:
    """What the stages of these names print."""
    return {name: f"── {1 + list(STAGES).index(name)} {name} ".ljust(100, "─") + "\n" + STAGES[name](walk) for name in names}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies.walk", description=__doc__, formatter_class=raw)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("runs/walk"), help="where the pictures go (default: %(default)s)")
    args = parser.parse_args(argv)
    return ranks.command("studies.walk", lambda: tell(args))


def tell(args: argparse.Namespace) -> None:
    """Prints the stages and draws the two pictures. Raises InputError for a stage that does not exist."""
    if unknown := [name for name in args.stages if name not in STAGES]:
        raise InputError(f"STAGE: expected some of {', '.join(STAGES)}; found {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as scratch:
        walk = Walk(Path(scratch))
        for name in args.stages or STAGES:
            print(*told([name], walk).values(), "", sep="\n", flush=True)
        if not args.stages:
            make_folder(args.out, "--out")
            example = example_of(walk.group, walk.judgement, walk.rewards, walk.config)
            advantages = grpo.group_advantages(walk.rewards, walk.config.eps_adv)
            pictures.flow(example, advantages, walk.group.vision.features[0].shape[-1], args.out / "flow.png")
            pictures.audit_sheet([example], args.out / "audit.png")
            print(f"wrote {args.out}/: flow.png, audit.png")


if __name__ == "__main__":
    sys.exit(main())
