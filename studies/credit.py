"""When can it pay to reward each token only for what it decides? A policy of two decisions, in exact REINFORCE.

python -m studies.credit [--runs N] [--seed S]      the table of docs/evisrag.md, in half a minute

    decision   probability   what it decides
    look       σ(a)          whether the evidence is right: with the eyes' probability if it looks, as habit is if it does not
    follow     σ(b)          whether the answer is right: as the evidence is if it follows, as habit is if it does not

Habit is right or wrong of a whole question, so all of a group's G responses share it. p and d say whether evidence and answer
are right; a method is what advantage each decision gets from them (Eqs. 7–9; format is constant here). The gradient of a group
is mean_i A_i (decision_i − its probability): two logits, no network, no baseline but the group's mean.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from support import ranks

GROUP = 16
LR = 1.0  # of both logits
GOAL = 0.9  # of both probabilities
LONGEST = 3000  # updates
EPS_ADV = 1e-4
ALPHA = 0.1  # what `step` pays for the right key steps


class Case(NamedTuple):
    """Where a policy begins, and how often habit and eyes are right; how often each reward is read wrongly, for each response
    alone, as a judge's is."""

    look: float
    follow: float
    habit: float = 0.33
    eyes: float = 0.95
    noise_p: float = 0.0
    noise_d: float = 0.0


CASES = (
    Case(0.5, 0.5), Case(0.2, 0.9), Case(0.9, 0.2), Case(0.2, 0.2), Case(0.5, 0.5, 0.7, 0.8),
    Case(0.5, 0.5, noise_p=0.3), Case(0.5, 0.5, noise_d=0.3), Case(0.2, 0.2, noise_p=0.3), Case(0.2, 0.2, noise_d=0.3),
)  # fmt: skip
METHODS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {  # p, d (runs, G) → rewards of look, of follow
    "rs": lambda p, d: (p, d),
    "mixed": lambda p, d: (p + d, p + d),
    "step": lambda p, d: (d + ALPHA * p, d + ALPHA * p),
    "outcome": lambda p, d: (d, d),
}


# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────
def advantages(rewards: Tensor) -> Tensor:
    """Group-normalised rewards, (runs, G) → (runs, G); exactly 0 where they are equal."""
    spread = rewards - rewards.mean(-1, keepdim=True)
    varied = rewards.amax(-1, keepdim=True) > rewards.amin(-1, keepdim=True)
    return varied * spread / (rewards.std(-1, correction=0, keepdim=True) + EPS_ADV)


def gradients(method: str, case: Case, logits: Tensor, draw: torch.Generator) -> Tensor:
    """One group's gradient of each logit (2, runs), at logits (2, runs) of independent runs."""
    runs = logits.shape[1]

    def flip(p: Tensor | float, n: int = GROUP) -> Tensor:
        return torch.rand(runs, n, generator=draw) < p

    chance = logits.sigmoid()[..., None]  # (2, runs, 1)
    look, follow = flip(chance[0]), flip(chance[1])  # (runs, G)
    habit = flip(case.habit, 1)  # (runs, 1): one question
    evidence = torch.where(look, flip(case.eyes), habit)
    answer = torch.where(follow, evidence, habit)
    p, d = (evidence ^ flip(case.noise_p)).float(), (answer ^ flip(case.noise_d)).float()
    credit = torch.stack([advantages(rewards) for rewards in METHODS[method](p, d)])
    return (credit * (torch.stack([look, follow]).float() - chance)).mean(-1)


def start(case: Case, runs: int) -> Tensor:
    """The logits (2, runs) at which a case begins."""
    return torch.tensor([case.look, case.follow]).logit()[:, None].repeat(1, runs)


def updates_needed(method: str, case: Case, runs: int, seed: int) -> Tensor:
    """After how many updates both probabilities first exceed GOAL, (runs,); LONGEST where they do not."""
    draw, logits = torch.Generator().manual_seed(seed), start(case, runs)
    needed = torch.full((runs,), float(LONGEST))
    for update in range(1, LONGEST):
        logits = logits + LR * gradients(method, case, logits, draw)
        arrived = (logits.sigmoid() > GOAL).all(0) & (needed == LONGEST)
        needed[arrived] = update
        if (needed < LONGEST).all():
            break
    return needed


def signal_to_noise(method: str, case: Case, groups: int, seed: int) -> list[float]:
    """Mean over standard deviation of one group's gradient where a case begins: of look and of follow."""
    found = gradients(method, case, start(case, groups), torch.Generator().manual_seed(seed))
    return (found.mean(-1) / found.std(-1)).tolist()


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────────
def row_of(case: Case, runs: int, seed: int) -> dict:
    """Mean updates and their standard error, and the two signals, by method."""
    row = {}
    for method in METHODS:
        needed = updates_needed(method, case, runs, seed)
        look, follow = signal_to_noise(method, case, 50 * runs, seed)
        error = float(needed.std() / runs**0.5)
        row[method] = {"updates": float(needed.mean()), "error": error, "look": look, "follow": follow}
    return row


def table(rows: dict[Case, dict]) -> str:
    """The rows in Markdown."""
    signals = [f"SNR {of}, rs / mixed" for of in ("look", "follow")]
    heads = ["look, follow", "habit right", "eyes right", "noise of p, d", *METHODS, *signals]
    lines = [heads, ["---"] * len(heads)]
    for case, row in rows.items():
        snr = [f"{row['rs'][of]:.2f} / {row['mixed'][of]:.2f}" for of in ("look", "follow")]
        updates = [f"{cell['updates']:.1f} ± {cell['error']:.1f}" for cell in row.values()]
        start, noise = f"{case.look}, {case.follow}", f"{case.noise_p}, {case.noise_d}"
        lines.append([start, str(case.habit), str(case.eyes), noise, *updates, *snr])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def act(args: argparse.Namespace) -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    print(f"updates until both probabilities exceed {GOAL}: mean ± standard error of {args.runs} runs, G = {GROUP}\n")
    print(table({case: row_of(case, args.runs, args.seed) for case in CASES}))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    parser = argparse.ArgumentParser("python -m studies.credit", description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=400, help="independent runs of each case and method (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return ranks.command("studies.credit", partial(act, parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
