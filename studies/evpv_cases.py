"""Questions, solutions and facts of `studies.evpv`, the rewards of every solution, and what they are worth."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from related import evpv
from related.evpv import Triple, best_of_n, corrupt, step_rewards, support, trajectory_score
from support import stats
from toy import roles, steps

GROUP = 16  # solutions of a question
Facts = Sequence[Triple]
Rewards = list[list[list[float]]]  # of each question's solutions' steps; none where a solution cannot be read


@dataclass(frozen=True)
class Judged:
    """One response. Labels, claims and u are of its steps, and empty if it cannot be read."""

    ids: torch.Tensor  # (T,)
    answer: str
    labels: list[int]
    claims: list[list[Triple | None]]
    u: list[float]
    right: bool

    @property
    def sound(self) -> bool:
        """Whether every step is right."""
        return min(self.labels, default=-1) == 1


@dataclass(frozen=True)
class Case:
    """A question, its image's row in the split's maps, what the extractor saw, and the policy's responses."""

    question: steps.Question
    row: int
    facts: list[Triple] | None  # None: unreadable
    responses: list[Judged]


# ── questions, facts, solutions ─────────────────────────────────────────────────────────────────────────────────────
def claims_of(texts: Sequence[str]) -> list[list[Triple | None]]:
    """Each step's claims; [None] for one that cannot be read."""
    return [triples_or(text, [None]) if text else [] for text in texts]


def triples_or(text: str, otherwise: list | None) -> list[Triple] | list | None:
    """The triples of a text, or what stands for those that cannot be read."""
    try:
        return evpv.triples(text)
    except ValueError:
        return otherwise


def extract(extractor: roles.Policy, questions: Sequence[steps.Question], vision: roles.Vision, key: str) -> list[Facts | None]:
    """C of each question's image, greedily; None where it cannot be read."""
    said = roles.respond(extractor, "extractor", questions, vision, 1, 0.0, key)
    return [triples_or(extractor.decode(rows[0]), None) for rows in said]


def judge(cast: dict, question: steps.Question, vision: roles.Vision, rows: Sequence[torch.Tensor]) -> list[Judged]:
    """The responses to one question, with labels and the verifier's u."""
    read = [roles.read(cast["policy"], ids) for ids in rows]
    prompt = roles.prompt_of(cast["verifier"], "verifier", question)
    u = iter(roles.step_probabilities(cast["verifier"], vision, prompt, [ids for ids, one in zip(rows, read) if one]))
    out = []
    for ids, one in zip(rows, read):
        if one is None:
            out.append(Judged(ids, "", [], [], [], False))
        else:
            labels = steps.label_steps(question, one)
            out.append(Judged(ids, one.answer, labels, claims_of(one.claims), next(u), one.answer == question.answer))
    return out


def ask(cast: dict, mode: str, n: int, group: int, key: str, blind: bool = False) -> tuple[list[Case], roles.Vision]:
    """n questions about fresh images, and `group` solutions to each. blind: the verifier sees every image's mean features."""
    scenes, vision = roles.draw_scenes(cast["policy"], mode, n, key)
    questions = [steps.ask(scene, random.Random(f"{key} {mode} {i}")) for i, scene in enumerate(scenes)]
    facts = extract(cast["extractor"], questions, vision, f"{key} {mode}")
    said = roles.respond(cast["policy"], "policy", questions, vision, group, 1.0, f"{key} {mode}")
    seen = roles.blinded(vision) if blind else vision
    bar = enumerate(tqdm(questions, f"judging, {mode}", leave=False))
    judged = [judge(cast, question, roles.view(seen, [i]), said[i]) for i, question in bar]
    return [Case(q, i, facts[i], judged[i]) for i, q in enumerate(questions)], vision


# ── rewards and what they are worth ─────────────────────────────────────────────────────────────────────────────────
def rewards_of(
    cases: Sequence[Case],
    how: str,
    facts: Callable[[Case], Facts | None] = lambda case: case.facts,
    claims: Callable[[Case, Judged], list[list[Triple | None]]] = lambda case, one: one.claims,
) -> Rewards:
    """R_t of every solution under one row of `evpv.HOW`, with these facts and claims."""
    out = []
    for case in cases:
        seen, own = facts(case) or [], []
        for one in case.responses:
            supports = [[support(claim, seen) for claim in step] for step in claims(case, one)]
            own.append(released(one.u, supports) if how == "released" else step_rewards(one.u, supports, how))
        out.append(own)
    return out


def released(u: Sequence[float], supports: Sequence[Sequence[float]]) -> list[float]:
    """The released code's gate: ±1 a step, and looks' positive ones times 1 − ½ · contradictions, at least 0."""
    p_score = max(0.0, 1 - 0.5 * sum(p == 0 for own in supports for p in own))
    signs = [1.0 if u_t > 0.5 else -1.0 for u_t in u]
    return [sign * p_score if own and sign > 0 else sign for sign, own in zip(signs, supports)]


def outcomes(cases: Sequence[Case], rewards: Rewards, kappa: float, looks: bool = False) -> np.ndarray:
    """(n, 4) a question: right steps that are called so, 2 × F1's denominator of right; the same of wrong ones."""
    rows = np.zeros((len(cases), 4))
    for row, case, own in zip(rows, cases, rewards):
        for one, values in zip(case.responses, own):
            for label, value, claims in zip(one.labels, values, one.claims):
                if claims or not looks:
                    called = 1 if value > kappa else -1
                    row += [n for side in (1, -1) for n in (label == called == side, (label == side) + (called == side))]
    return rows


def f1(rows: np.ndarray) -> float:
    """Macro-F1 of pooled `outcomes`: `evpv.macro_f1`, from counts."""
    a, b, c, d = rows.sum(0)
    return (2 * a / max(b, 1) + 2 * c / max(d, 1)) / 2


def tune(cases: Sequence[Case], rewards: Rewards) -> float:
    """κ of these questions' steps."""
    pairs = [pair for case, own in zip(cases, rewards) for one, r in zip(case.responses, own) for pair in zip(r, one.labels)]
    return evpv.threshold([r for r, _ in pairs], [label for _, label in pairs])


def spoiled(case: Case, kind: str, rate: float, rng: random.Random) -> Facts:
    """A case's facts, corrupted."""
    return corrupt(case.facts or [], kind, rate, steps.OPTIONS, rng)


def picked(cases: Sequence[Case], scores: Sequence[Sequence[float]], n: int, of: str) -> np.ndarray:
    """(questions,): the expected `right` or `sound` of the best of the first n solutions."""
    return np.array([best_of_n(own[:n], [getattr(one, of) for one in case.responses[:n]]) for case, own in zip(cases, scores)])


def ranked(rewards: Rewards) -> list[list[float]]:
    """Score(S) of every solution."""
    return [[trajectory_score(values) for values in own] for own in rewards]


def votes(cases: Sequence[Case], n: int) -> list[list[float]]:
    """How many of the first n solutions give each one's answer: the score of a majority vote. Unreadable ones have no vote."""
    out = []
    for case in cases:
        counts = Counter(one.answer for one in case.responses[:n])
        out.append([counts[one.answer] if one.answer else 0 for one in case.responses])
    return out


def cell(values: np.ndarray, of: Callable[[np.ndarray], float] = np.mean) -> dict:
    """A statistic of one value (or row of counts) a question, and its interval over questions."""
    return stats.estimate(of(values), stats.bootstrap(len(values), lambda rows: of(values[rows]), 0))


def gain(before: np.ndarray, after: np.ndarray, of: Callable[[np.ndarray], float] = np.mean) -> dict:
    """A paired difference and its interval over questions."""
    draws = stats.bootstrap(len(before), lambda rows: of(after[rows]) - of(before[rows]), 0)
    return stats.estimate(of(after) - of(before), draws)
