"""VPPO, Visually-Perceptive Policy Optimization (arXiv 2510.09285): correctness, learnt from the tokens that see.

A token's visual dependency is how far its distribution moves when half of the image is black. The policy gradient then
keeps a response's most dependent tokens only, and counts a dependent response more than others of its group. Like PAPO's
perception term, dependency does not ask where in the image it comes from. It is a divergence, not read off attention, as the
Evidence-RL paper has it.

    symbol      code name             shape    meaning
    I, I'       prefix                         the image, and the image with random 14 × 14 pixel patches black; rows 0, 1
    S_t         token_dependency      (G, T)   KL(π(·|s_t, I) ‖ π(·|s_t, I')), over the whole vocabulary, nats
    TGF         token_filter          (G, T)   token gradient filter: 1 on a response's share `ratio` of highest S_t, else 0
    s_i         s                     (G,)     mean of S_t over response i
    ŝ_i         s_hat                 (G,)     s_i from 0 to 1 within the group
    TAS         trajectory_scale      (G,)     trajectory advantage shaping: β_min + ŝ_i (β_max − β_min), of mean 1

Here as in the paper: S_t is the full divergence. Departures of the released code and of this file:
* The released code takes k3 of the one sampled token for S_t, clamped to [0, 10].
* min and max of ŝ are those of the group (released: of the mini-batch on a rank).
* The denominator of the loss stays all tokens of a response, as released, so filtering also shrinks the step.
* With `--updates-per-step` above 1, later updates measure S_t on the policy as it is by then (released: before the first).
* The entropy penalty of the released scripts is left out, and so are DAPO's settings under them: all methods share one GRPO.
"""

import torch
from torch import Tensor

from config import Config
from models import LOGIT_CHUNK, Policy, Prefix, project
from related.papo import masked_vision
from rollout import Group, Judgement

MIN_RANGE = 1e-6  # nats, as released; dependencies that lie closer together differ by round-off


def divergence(logits: Tensor, temperature: float) -> Tensor:
    """KL(p ‖ q) of two distributions over the vocabulary, (2, …, V) → (…), p in row 0. In nats."""
    log_p, log_q = (logits / temperature).log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def token_dependency(policy: Policy, prefix: Prefix, ids: Tensor, temperature: float, max_rows: int) -> Tensor:
    """S_t of responses ids (G, T) after a prompt read with I and I', (G, T) float32.

    max_rows bounds how many rows (answers × 2) go through the model at a time (0: all); distributions are held for
    LOGIT_CHUNK positions at a time. Identical responses are measured once.
    """
    distinct, back = ids.unique(dim=0, return_inverse=True)
    parts = []
    for rows in distinct.split(max(1, max_rows // 2) if max_rows else len(distinct)):
        versions = torch.arange(2, device=ids.device).repeat_interleave(len(rows))
        hidden = policy.states(prefix.fork(versions), rows.repeat(2, 1))  # (2 · rows, T, D)
        chunks = hidden.unflatten(0, (2, -1)).flatten(1, 2).split(LOGIT_CHUNK // 2, dim=1)  # (2, positions, D) each
        parts += [divergence(project(chunk, policy.head.weight), temperature) for chunk in chunks]
    return torch.cat(parts).view(len(distinct), -1)[back]


def token_filter(dependency: Tensor, mask: Tensor, ratio: float) -> Tensor:
    """TGF: True on the ⌈ratio · length⌉ tokens of highest S_t of each response, (G, T), (G, T) → (G, T) bool."""
    keep = (mask.sum(-1, keepdim=True).double() * ratio).ceil()
    order = dependency.masked_fill(~mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    return order.argsort(-1) < keep  # the rank of each token


def trajectory_scale(dependency: Tensor, mask: Tensor, beta_min: float) -> Tensor:
    """TAS: what each response's advantage is multiplied by, (G, T), (G, T) → (G,). All 1 if no response stands out."""
    s = (dependency * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    spread = s.max() - s.min()
    if spread <= MIN_RANGE:
        return torch.ones_like(s)
    s_hat = (s - s.min()) / spread
    beta_max = beta_min + (1 - beta_min) / s_hat.mean()  # the mean scale is 1
    return beta_min + s_hat * (beta_max - beta_min)


@torch.no_grad()
def token_weights(policy: Policy, group: Group, judgement: Judgement, config: Config) -> Tensor:
    """The hook of `methods.METHODS`: TGF × TAS, (G, T). Scaling the surrogate's tokens is scaling their advantages."""
    masked = masked_vision(policy, group, "vppo", config.vppo_mask, config)
    both = group.vision.edited([torch.cat(pair) for pair in zip(group.vision.features, masked.features)])  # (2, N, D)
    ids, mask = group.responses.ids, group.responses.mask
    dependency = token_dependency(policy, policy.read(group.prompt, both), ids, config.temperature, config.audit_rows)
    scale = trajectory_scale(dependency, mask, config.vppo_beta_min)
    return token_filter(dependency, mask, config.vppo_ratio) * scale[:, None]
