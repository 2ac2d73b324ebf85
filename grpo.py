"""Group Relative Policy Optimization (GRPO, arXiv 2402.03300), as pure functions of tensors.

    symbol     code name            shape     meaning
    R_i        rewards              (G,)      one reward a response of the group
    A_i        group_advantages     (G,)      (R_i − μ) / (σ + ε_adv), over the group
    ρ_t        ratio                (G, T)    π_θ / π_old of a token
    k3         k3                   (G, T)    estimate of KL(π_θ ‖ π_ref) at a token
    L          grpo_loss            ()        clipped surrogate + β k3, averaged over tokens and group

    G responses of a group · T response tokens

Four questions people ask of every GRPO code, answered here. The loss starts at 0: advantages sum to 0 and every ratio is 1;
its gradient does not vanish. The clip fraction is 0: with one update a batch no ratio ever leaves 1. A group of equal
rewards gives advantage exactly 0: it teaches nothing (but β k3 still acts). σ is the population's (ddof 0).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

AVERAGES = ("response", "token")


def group_advantages(rewards: Tensor, eps_adv: float) -> Tensor:
    """A_i = (R_i − μ) / (σ + ε_adv) over the group, (G,) → (G,). Equal rewards give exactly 0. Raises below G = 2."""
    if len(rewards) < 2:
        raise ValueError(f"a group needs at least 2 responses to compare; found {len(rewards)}")
    advantages = (rewards - rewards.mean()) / (rewards.std(correction=0) + eps_adv)
    return advantages * (rewards.max() > rewards.min())  # the mean of equal floats may be off by an ulp


def response_mask(ids: Tensor, eos_ids: Tensor) -> Tensor:
    """True up to and including the first EOS, (G, T) → (G, T) bool. A response without an EOS was truncated: all True.

    Built from positions, never from the padding id, which may equal an EOS.
    """
    is_eos = torch.isin(ids, eos_ids)
    return is_eos.cumsum(-1) - is_eos.long() == 0  # no EOS strictly before this position


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(π_θ ‖ π_ref) per token: r − log r − 1 with r = π_ref / π_θ. ≥ 0, and 0 iff equal."""
    log_r = ref_log_probs - log_probs
    return log_r.exp() - log_r - 1


def clipped_surrogate(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """−min(ρ A, clip(ρ, 1 − clip_low, 1 + clip_high) A) per token, and where the clip is what counts: both (G, T).

    advantages are one a response, (G,), or one a token, (G, T).
    """
    ratio = (log_probs - old_log_probs).exp()  # ρ_t: (G, T)
    advantages = advantages if advantages.dim() == 2 else advantages[:, None]
    free = ratio * advantages
    bound = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -torch.minimum(free, bound), bound < free


def token_shares(mask: Tensor, average: str) -> Tensor:
    """What each token counts in the loss, (G, T) summing to 1. `response`: the mean of each response's mean (GRPO as
    published); `token`: all tokens of the group alike (DAPO). An empty response counts nothing.

    Shares belong to the whole group, so its rows can be summed a few at a time and the loss stays the same.
    """
    if average == "response":
        return mask / mask.sum(-1, keepdim=True).clamp(min=1) / len(mask)
    return mask / mask.sum().clamp(min=1)


def grpo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    ref_log_probs: Tensor,
    advantages: Tensor,
    shares: Tensor,
    clip_low: float,
    clip_high: float,
    beta: float,
    token_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a group or of some rows of it, and its statistics `kl` and `clip_fraction`; all of them add up over rows.

    log-probabilities and shares are (rows, T), advantages (rows,) or (rows, T). token_weights (rows, T) scale the surrogate,
    not the KL.
    """
    surrogate, clipped = clipped_surrogate(log_probs, old_log_probs, advantages, clip_low, clip_high)
    if token_weights is not None:
        surrogate = surrogate * token_weights
    kl = k3(log_probs, ref_log_probs)
    loss = ((surrogate + beta * kl) * shares).sum()
    return loss, {"kl": float((kl.detach() * shares).sum()), "clip_fraction": float((clipped * shares).sum())}


def lora_targets(model: nn.Module, layers: int) -> list[str]:
    """Names of every linear projection in the last `layers` decoder layers of the language model, and nothing else."""
    depth = model.config.get_text_config().num_hidden_layers
    if not 1 <= layers <= depth:
        raise ValueError(f"LoRA on the last {layers} decoder layers: the model has {depth}")
    last: Sequence[str] = tuple(f".language_model.layers.{i}." for i in range(depth - layers, depth))
    return [name for name, m in model.named_modules() if isinstance(m, nn.Linear) and any(part in name for part in last)]


def add_lora(model: nn.Module, layers: int, rank: int, alpha: int) -> nn.Module:
    """Injects LoRA (r = rank, scale α / r, no dropout) into the model, in place. B starts at 0: the policy is unchanged."""
    from peft import LoraConfig, get_peft_model  # here: it takes seconds to import, and `AVERAGES` is read by every program

    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=lora_targets(model, layers))
    return get_peft_model(model, config)
