"""The controlled comparison on one screen: every method is a row that states only what it changes.

    row           reward R                        in the loss
    correctness   R_ans
    additive      R_ans + λ m
    papo          R_ans                           − γ KL(π(·|I) ‖ π(·|I_mask)) + η (two entropies)     related/papo.py
    vppo          R_ans                           tokens weighted by their visual dependency          related/vppo.py
    answer-ced    R_ans · g(m) + ε_tie · m
    cot-ced       the same, m averaged over the response
    correct-only  the same as answer-ced, but g(m) multiplies a positive R_ans alone: another where r_wrong < 0

    rs-grpo       format, perception, derivation  each on the tokens that it speaks about                  related/rs_grpo.py
    rs-ced        format, g(m), derivation        the same, without gold evidence
    mixed         the mean of rs-grpo's three
    outcome       the mean of format and derivation
    step          derivation + α · share of right records + format

The last five ask about several pages. Data, steps, seeds, sampling, the router and everything else are those of train.py for
all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

import ced
import data
import grpo
from config import Config, InputError
from models import Policy
from related import papo, rs_grpo, vppo
from related.rs_grpo import Scoped
from rollout import Group, Judgement

MARGINS = 2001  # at which a method's pay for a wrong answer is looked at, from -1 to 1


class Method(NamedTuple):
    """A row: its reward, and what else it changes in the loss.

    reward(judgement, config) → (G,), or Scoped: rewards that speak about some tokens each
    token_weights(policy, group, judgement, config) → (G, T), without gradient
    extra_loss(policy, group, rows, log_probs, shares, config) → (), adding up over rows (`grpo.token_shares`)
    """

    reward: Callable[[Judgement, Config], Tensor | Scoped]
    token_weights: Callable[..., Tensor] | None = None
    extra_loss: Callable[..., Tensor] | None = None
    pages: bool = False  # it judges answers in four stages, about pages


METHODS = {
    "correctness": Method(lambda j, c: j.r_ans),
    "additive": Method(lambda j, c: ced.additive_reward(j.r_ans, j.m, c.lam)),
    "papo": Method(lambda j, c: j.r_ans, extra_loss=papo.extra_loss),
    "vppo": Method(lambda j, c: j.r_ans, token_weights=vppo.token_weights),
    "answer-ced": Method(lambda j, c: ced.evidence_reward(j.r_ans, j.m, c.tau_g, c.eps_tie)),
    "cot-ced": Method(lambda j, c: ced.evidence_reward(j.r_ans, j.m_cot, c.tau_g, c.eps_tie)),
    "correct-only": Method(
        lambda j, c: ced.evidence_reward(j.r_ans.clamp(min=0), j.m, c.tau_g, c.eps_tie) + j.r_ans.clamp(max=0)
    ),
    "rs-grpo": Method(rs_grpo.rewards, pages=True),
    "rs-ced": Method(rs_grpo.ced_rewards, pages=True),
    "mixed": Method(rs_grpo.mixed, pages=True),
    "outcome": Method(rs_grpo.outcome, pages=True),
    "step": Method(rs_grpo.step, pages=True),
}
COMPARED = ["correctness", "additive", "papo", "vppo", "answer-ced", "cot-ced"]  # the paper's Table 3


def method_of(config: Config) -> Method:
    """The row that a configuration names. Raises InputError if there is none of that name."""
    if config.method not in METHODS:
        raise InputError(f"--method: expected one of {', '.join(METHODS)}; found {config.method!r}")
    return METHODS[config.method]


def check_samples(samples: Sequence[data.Sample | data.PagedSample], config: Config) -> None:
    """Raises InputError for questions that are not what the method asks."""
    method, paged = method_of(config), isinstance(samples[0], data.PagedSample)
    if method.pages != paged and (method.pages or method.token_weights or method.extra_loss):
        kinds = ("questions about one image", "questions about pages, as of a folder with questions.jsonl and pages/")
        raise InputError(f"--method {config.method}: expected {kinds[method.pages]}; found {kinds[paged]}")
    if config.method == "rs-ced" and not any(page.boxes for sample in samples for page in sample.pages):
        raise InputError("--method rs-ced: expected evidence_boxes of some pages, whose effect it rewards; found none")


def advantages_of(policy: Policy, group: Group, rewards: Tensor | Scoped, config: Config) -> Tensor:
    """The advantages within a group: one a response, (G,), or one a token, (G, T), of rewards that are scoped."""
    if isinstance(rewards, Scoped):
        return rs_grpo.advantages(policy, group, rewards, config.eps_adv)
    return grpo.group_advantages(rewards, config.eps_adv)


def rewards_of(judgement: Judgement, sample: data.Sample, config: Config) -> Tensor | Scoped:
    """R: the method's reward, or correctness alone for presence samples (the router: two actions bound the variance)."""
    return unrouted_rewards(judgement, "correctness" if sample.family == "presence" else config.method, config)


def unrouted_rewards(judgement: Judgement, method: str, config: Config) -> Tensor | Scoped:
    """R by the method's formula, whatever the family. An answer that cannot be found has no margin; it gets the floor. Where
    the format has a reward of its own, that is its floor."""
    if METHODS[method].pages:
        return METHODS[method].reward(judgement, config)
    return torch.where(judgement.parsed, METHODS[method].reward(judgement, config), floor_of(judgement, method, config))


def floor_of(judgement: Judgement, method: str, config: Config) -> float:
    """What an unreadable answer earns: r_wrong − ε_tie or, if that is less, the least that the method pays a wrong one."""
    m = torch.linspace(-1, 1, MARGINS)
    wrong = replace(judgement, r_ans=torch.full_like(m, config.r_wrong), m=m, m_cot=m)
    return min(config.r_wrong - config.eps_tie, float(METHODS[method].reward(wrong, config).min()))
