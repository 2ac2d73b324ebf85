"""Supervised fine-tuning: one loss and one loop, for every cold start.

    prompt, response, weights ─example─▶ ids, weights ─batch_of─▶ (B, L) ─language_loss─▶ Σ w · −log π(token) / Σ w
                                                                                  │
    parameters, batches, loss_of, steps, lr ──────────────train───────────────────┘

A response has few tokens that need the image (an answer, a count) among many that are form, so each token has a weight. A
verifier's loss is another function of a batch, and a tower's another: `train` takes any.

Steps are what a schedule counts, and a shared machine may not give them in time: a run that is cut off at a high learning rate
is worth little. With a `deadline` the schedule moves by whichever is further on, steps or seconds, so that training ends
annealed whenever it ends. On a machine that is fast enough the deadline changes nothing.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from models import Policy, Vision


# ── the loss ────────────────────────────────────────────────────────────────────────────────────────────────────────
def example(prompt: Tensor, response: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids (P + T,) of a prompt (P,) and a response (T,), and each position's loss weight: 0 on the prompt."""
    return torch.cat([prompt, response]), torch.cat([torch.zeros(len(prompt)), weights])


def batch_of(examples: Sequence[tuple[Tensor, Tensor]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Ids and weights of examples as (B, L) each, padded on the right, where nothing attends to the padding."""
    ids, weights = zip(*examples)
    return pad_sequence(ids, True, pad_id), pad_sequence(weights, True, 0.0)


def hidden_states(policy: Policy, vision: Vision | None, ids: Tensor) -> Tensor:
    """The last hidden states (B, L, D) of rows ids (B, L), each with one image, whose maps are (B, N, D), or none."""
    types, grids = (ids == policy.image_token).int(), vision.grid_thw.expand(len(ids), 3) if vision else None
    positions, _ = policy.trunk.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grids)
    maps = [list(m) for m in vision.features] if vision else []
    image = {"image": SimpleNamespace(pooler_output=maps[0], deepstack_features=maps[1:])} if maps else None
    return policy.trunk(input_ids=ids, position_ids=positions, mm_encoder_outputs=image, use_cache=False).last_hidden_state


def response_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted cross-entropy, (n, V), (n,), (n,) → (): Σ w · −log π(target) / Σ w."""
    return (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()


def language_loss(policy: Policy, vision: Vision, ids: Tensor, weights: Tensor) -> tuple[Tensor, dict[str, float]]:
    """`response_loss` of rows ids (B, L) with loss weights (B, L), and the share that is right of the heaviest tokens."""
    scored = weights[:, 1:] > 0
    hidden = hidden_states(policy, vision, ids)[:, :-1][scored]  # what predicts each scored token: (n, D)
    logits, targets, own = policy.head(hidden), ids[:, 1:][scored], weights[:, 1:][scored]
    right = (logits.argmax(-1) == targets)[own == own.max()].float().mean()
    return response_loss(logits, targets, own), {"right": float(right)}


# ── the loop ────────────────────────────────────────────────────────────────────────────────────────────────────────
def make_optimizer(parameters: Sequence[nn.Parameter], lr: float, steps: int):
    """AdamW with a warm-up over the first tenth and a cosine down to zero."""
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)


def train(
    parameters: Sequence[nn.Parameter],
    batches: Iterator[Any],
    loss_of: Callable[[Any], tuple[Tensor, dict[str, float]]],
    steps: int,
    lr: float,
    name: str,
    deadline: float = math.inf,
) -> int:
    """Fine-tunes the parameters, which need a gradient only meanwhile; returns how many updates were made, at most `steps`.

    loss_of gives a batch's loss and what the progress bar shows of it. deadline is in seconds.
    """
    parameters = [p.requires_grad_(True) for p in parameters]
    optimizer, schedule = make_optimizer(parameters, lr, steps)
    begun, at, updates = time.monotonic(), 0, 0
    with tqdm(total=steps, desc=name) as bar:
        while at < steps:
            loss, shown = loss_of(next(batches))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            due = int(steps * min(1.0, (time.monotonic() - begun) / deadline))  # where the clock wants the schedule
            for _ in range(ahead := max(1, due - at)):
                schedule.step()
            at, updates = at + ahead, updates + 1
            bar.update(ahead)
            bar.set_postfix({key: f"{value:.3f}" for key, value in ({"loss": loss.item()} | shown).items()})
    for p in parameters:
        p.requires_grad_(False)
    return updates
