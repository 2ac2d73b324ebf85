"""PAPO, Perception-Aware Policy Optimization (arXiv 2507.06448): correctness, and a loss that wants the image to matter.

The policy is pushed away from what it would say if much of the image were black. Nothing asks *where* the image matters: a
token that any part of the image supports earns as much as one that the evidence supports, and so does gibberish that is
likely under one image and not under the other. Two entropies are kept low against that collapse.

    symbol            code name           shape      meaning
    I, I_mask         vision              (1, N, D)  the image, and the image with random 14 × 14 pixel patches black
    log π(o_t|I)      log_probs           (G, T)     of the sampled tokens
    log π(o_t|I_mask) masked_log_probs    (G, T)     of the same tokens
    KL_prcp           k3                  (G, T)     KL(π(·|I) ‖ π(·|I_mask)), estimated on the sampled tokens; maximised
    H_ori, H_mask                         ()         −mean log π of the sampled tokens with I and with I_mask; minimised
    γ, η              gamma, eta                     their weights

    L = L_GRPO − γ KL_prcp + η (H_ori + H_mask)

Here as in the paper: gradient flows through both images. Departures of the released code and of this file:
* The released code computes log π(o_t|I_mask) once, without gradient, so its H_mask moves nothing: `--papo-detach`.
* −mean log π of what was sampled has the value of the entropy, but not its gradient: lowering it makes likelier whatever was
  drawn. So in paper and code, and here.
* k3 grows without end where it is maximised. As released, no token counts more than 10 (`bound`).
* The mask is drawn anew at each visit of a prompt, but is one for all of its answers (released: one a prompt as well).
* The reward is R_ans alone (released: 0.9 accuracy + 0.1 format).
"""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import data
import grpo
from config import Config
from models import Policy, Vision
from rollout import Group, seeded


def blacken(image: Image.Image, patch: int, p: float, generator: torch.Generator) -> Image.Image:
    """The image with each patch × patch pixel square black with probability p. Squares start at the top left corner."""
    pixels = np.array(image)  # (height, width, 3)
    rows, columns = (-(-side // patch) for side in pixels.shape[:2])
    black = torch.rand(rows, columns, generator=generator) < p
    black = black.repeat_interleave(patch, 0).repeat_interleave(patch, 1).numpy()  # (≥ height, ≥ width)
    pixels[black[: pixels.shape[0], : pixels.shape[1]]] = 0
    return Image.fromarray(pixels)


def masked_vision(policy: Policy, group: Group, name: str, p: float, config: Config) -> Vision:
    """I_mask of a group. Its draw is a function of the run's seed, the sample and the answers, so every visit of a prompt
    has its own mask, and every rank and chunk of rows the same."""
    draw = seeded(config.seed, name, group.sample.id, *group.texts)
    return policy.encode(blacken(data.open_image(group.sample.image), config.mask_patch, p, draw))


def papo_loss(log_probs: Tensor, masked_log_probs: Tensor, shares: Tensor, gamma: float, eta: float, bound: float) -> Tensor:
    """−γ KL_prcp + η (H_ori + H_mask) of a group or of some rows of it, all (rows, T) → (): it adds up over rows."""
    nearer = torch.minimum(masked_log_probs, log_probs + bound)  # exp cannot overflow, and k3 > bound stays so
    perception = grpo.k3(log_probs, nearer).clamp(max=bound)  # KL_prcp: (rows, T)
    entropies = -log_probs - masked_log_probs  # H_ori + H_mask: (rows, T)
    return ((eta * entropies - gamma * perception) * shares).sum()


def extra_loss(policy: Policy, group: Group, rows: Tensor, log_probs: Tensor, shares: Tensor, config: Config) -> Tensor:
    """The hook of `methods.METHODS`: reads the prompt with I_mask and scores these rows of the group's answers."""
    vision = masked_vision(policy, group, "papo", config.papo_mask, config)
    with torch.set_grad_enabled(not config.papo_detach):
        prefix = policy.read(group.prompt, vision)
        ids, mask = group.responses.ids[rows], group.responses.mask[rows]
        masked = policy.log_probs(prefix, ids, config.temperature, mask)[0]  # (rows, T)
    return papo_loss(log_probs, masked, shares, config.papo_gamma, config.papo_eta, config.papo_bound)
