"""Counterfactual Evidence Disentanglement (CED): Eqs. 1–5 of Evidence-RL (arXiv 2608.08021), as pure functions.

Question: does the likelihood of an answer y fall more when the visual tokens of the Evidence Region Ω_ev are replaced by
their neighbours' mean than when K area-matched other regions are? The answer to that question is the margin m.

    symbol      code name            shape          where in the paper
    Ω_ev, Ω_k   boxes                (n, 4)         3.1; A.2. n boxes (x, y, width, height) in pixels make one region
    T(Ω)        region_tokens        (N,) bool      3.1; A.2. visual tokens of a region, after spatial merging
    h, h̃        tokens, intervene    (N, D)         Eq. 1. the vision encoder's output, before and after the edit
    s(Ω)        sensitivity          (R, G, T)      Eq. 2. one row a region, row 0 is Ω_ev
    m           evidence_margin      (G,)           Eq. 3. in (−1, 1); positive: the answer depends on the evidence
    g(m)        evidence_gate        (G,)           Eq. 5. in (0, 1)
    R_train     evidence_reward      (G,)           Eq. 4

    G answers of a group · K non-evidence regions · R = 1 + K regions · N visual tokens · D width · T response tokens

`audit` runs Eqs. 1 and 2 on any policy: it is given one callable that scores answers under edited visual tokens.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

INTERVENTIONS = ("mean", "zero", "noise")


# ── regions ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def region_tokens(boxes: Tensor, image_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """T(Ω): the visual tokens of a region, as a mask (N,) over the merged grid in raster order.

    boxes (n, 4) are (x, y, width, height) in pixels of the original image of size (width, height); grid is (rows, columns)
    after merging. A token belongs to a box that contains the token's centre, so disjoint boxes own disjoint tokens; a box
    too small to contain any centre owns the token under its own centre. Never empty for boxes inside the image.
    """
    (width, height), (rows, columns) = image_size, grid
    scale = torch.tensor([columns / width, rows / height, columns / width, rows / height], dtype=torch.float64)
    x, y, w, h = (boxes.double() * scale).unbind(-1)  # in units of one token, each (n,)
    centre_x, centre_y = torch.arange(columns) + 0.5, torch.arange(rows) + 0.5
    in_x = (x[:, None] <= centre_x) & (centre_x < (x + w)[:, None])  # (n, columns)
    in_y = (y[:, None] <= centre_y) & (centre_y < (y + h)[:, None])  # (n, rows)
    inside = in_y[:, :, None] & in_x[:, None, :]  # (n, rows, columns)
    i, row, column = torch.arange(len(boxes)), (y + h / 2).long(), (x + w / 2).long()
    inside[i, row.clamp(0, rows - 1), column.clamp(0, columns - 1)] |= ~inside.flatten(1).any(1)
    return inside.any(0).flatten()  # (N,)


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of every box of a (n, 4) with every box of b (m, 4), both (x, y, width, height): (n, m)."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum((a[:, :2] + a[:, 2:])[:, None], (b[:, :2] + b[:, 2:])[None])
    overlap = (high - low).clamp(min=0).prod(-1)  # (n, m)
    return overlap / (a[:, 2:].prod(-1)[:, None] + b[:, 2:].prod(-1)[None] - overlap)


def union_area(boxes: Tensor) -> float:
    """Area in pixels² covered by boxes (n, 4), overlaps counted once."""
    x0, y0, w, h = boxes.double().unbind(-1)
    xs, ys = torch.cat([x0, x0 + w]).unique(), torch.cat([y0, y0 + h]).unique()  # the boxes' edges cut the plane into cells
    in_x = (x0[:, None] <= xs[:-1]) & (xs[:-1] < (x0 + w)[:, None])
    in_y = (y0[:, None] <= ys[:-1]) & (ys[:-1] < (y0 + h)[:, None])
    covered = (in_y[:, :, None] & in_x[:, None, :]).any(0).double()
    return float(ys.diff() @ covered @ xs.diff())


def non_evidence_boxes(
    boxes: Tensor, image_size: tuple[int, int], k: int, max_iou: float, tries: int, generator: torch.Generator
) -> Tensor:
    """Ω_1 … Ω_k: the evidence boxes (n, 4) moved together to k random places, (≤ k, n, 4): A.2.

    All n boxes of a region get the same shift, wrapped around the image, so sizes and arrangement match the evidence. A
    place counts if every moved box lies inside the image and has IoU ≤ max_iou with every evidence box. Fewer than k
    regions come back if `tries` shifts do not find them.
    """
    size = torch.tensor(image_size, dtype=torch.float64)
    boxes, placed = boxes.double(), []
    for _ in range(tries):
        if len(placed) == k:
            break
        shift = torch.rand(2, generator=generator, dtype=torch.float64) * size
        corner = (boxes[:, :2] + shift) % size
        moved = torch.cat([corner, boxes[:, 2:]], dim=1)
        if (corner + boxes[:, 2:] <= size).all() and box_iou(moved, boxes).max() <= max_iou:
            placed.append(moved)
    return torch.stack(placed) if placed else boxes.new_empty(0, *boxes.shape)


def random_tokens(candidates: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """A random set of at most `count` of the candidate tokens (N,) bool, as a mask (N,). Outside T(Ω_ev) it stands in
    for a box that could not be placed (A.2); over all tokens it is the global masking control (A.5)."""
    indices = candidates.nonzero().flatten()
    chosen = indices[torch.randperm(len(indices), generator=generator)[:count]]
    return torch.zeros_like(candidates).index_fill_(0, chosen, True)


def audit_regions(
    boxes: Tensor,
    image_size: tuple[int, int],
    grid: tuple[int, int],
    k: int,
    max_iou: float,
    tries: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """The token masks (1 + k, N) of an audit, row 0 the evidence, and the non-evidence boxes that could be placed.

    Rows without a box are random token sets of the evidence's size. Raises ValueError if the evidence covers every token,
    for then nothing is left to compare it with.
    """
    evidence = region_tokens(boxes, image_size, grid)
    if evidence.all():
        raise ValueError(f"the evidence region covers all {evidence.numel()} visual tokens: nothing is left outside it")
    placed = non_evidence_boxes(boxes, image_size, k, max_iou, tries, generator)
    masks = [region_tokens(b, image_size, grid) for b in placed]
    masks += [random_tokens(~evidence, int(evidence.sum()), generator) for _ in range(k - len(placed))]
    return torch.stack([evidence, *masks]), placed


# ── Eq. 1: the intervention ─────────────────────────────────────────────────────────────────────────────────────────
def neighbours(masks: Tensor, grid: tuple[int, int], ring: int) -> Tensor:
    """Tokens outside each region (R, N) and at most `ring` grid steps (Chebyshev) from it, as masks (R, N)."""
    field = masks.float().unflatten(-1, grid)[:, None]  # (R, 1, rows, columns)
    near = F.max_pool2d(field, kernel_size=2 * ring + 1, stride=1, padding=ring).flatten(1).bool()
    return near & ~masks


def intervene(tokens: Tensor, masks: Tensor, grid: tuple[int, int], kind: str, ring: int, generator: torch.Generator) -> Tensor:
    """Eq. 1: the visual tokens with each region neutralised, (N, D), (R, N) → (R, N, D). Other tokens stay bit-equal.

    kind `mean` fills a region with μ_T, the mean of its neighbours; `zero` with 0; `noise` with zero-mean Gaussian samples
    of the tokens' own standard deviation. `generator` (on the CPU) is used by `noise` alone.
    """
    if kind == "mean":
        near = neighbours(masks, grid, ring).to(tokens.device, torch.float32)  # (R, N); bfloat16 cannot count to 257
        mu = near @ tokens.float() / near.sum(-1, keepdim=True)  # μ_T of each region: (R, D)
        fill = mu.to(tokens.dtype)[:, None, :]
    elif kind == "zero":
        fill = tokens.new_zeros(1, 1, 1)
    elif kind == "noise":
        noise = torch.randn(len(masks), *tokens.shape, generator=generator)
        fill = noise.to(tokens) * tokens.std()
    else:
        raise ValueError(f"intervention: expected one of {', '.join(INTERVENTIONS)}; found {kind!r}")
    return torch.where(masks.to(tokens.device)[:, :, None], fill, tokens)  # Eq. 1


# ── Eq. 2: the sensitivity ──────────────────────────────────────────────────────────────────────────────────────────
def sensitivity(log_probs: Tensor, edited_log_probs: Tensor) -> Tensor:
    """Eq. 2: s(Ω) = log π(y | I, q) − log π(y | Ĩ∖Ω, q), (…), (R, …) → (R, …). In nats; per token or summed."""
    return log_probs - edited_log_probs  # Eq. 2


def audit(
    score: Callable[[list[Tensor]], Tensor],
    log_probs: Tensor,
    features: Sequence[Tensor],
    masks: Tensor,
    grid: tuple[int, int],
    kind: str,
    ring: int,
    generator: torch.Generator,
) -> Tensor:
    """Eqs. 1 and 2 on a policy: the per-token sensitivities s (R, G, T) of its answers to the regions masks (R, N).

    features are the maps (N, D) through which the language model sees the image: the merged visual tokens and, where the
    architecture has them, the DeepStack maps, which would leak what the first edit hides. score takes the same list with
    the R edited versions of each map, (R, N, D), and returns log π of the answers' tokens, (R, G, T); log_probs (G, T) is
    what they have under the image as it is.
    """
    edited = [intervene(tokens, masks, grid, kind, ring, generator) for tokens in features]
    return sensitivity(log_probs, score(edited))


# ── Eq. 3: the margin ───────────────────────────────────────────────────────────────────────────────────────────────
def evidence_margin(s: Tensor, eps: float) -> Tensor:
    """Eq. 3: m = tanh((s(Ω_ev) − μ(s_non)) / (σ(s_non) + ε)), (1 + K, …) → (…). σ is the population's (ddof 0).

    log π(y | I, q), which every s holds, cancels: m compares the edited images with one another, and how likely the answer was
    to begin with is nothing to it. ε, in nats, is no formality: with K = 3 pure noise of any size above ε has mean |m| = 0.70.
    """
    evidence, null = s[0], s[1:]
    return torch.tanh((evidence - null.mean(0)) / (null.std(0, correction=0) + eps))  # Eq. 3


def answer_margin(s: Tensor, span: Tensor, eps: float) -> Tensor:
    """Answer-CED: the margin of the final answer, per-token s (1 + K, G, T) and answer span (G, T) bool → (G,).

    log π is summed over the span first, so the chain of thought before it has no length to gain by.
    """
    return evidence_margin((s * span).sum(-1), eps)


def cot_margin(s: Tensor, mask: Tensor, eps: float) -> Tensor:
    """CoT-CED: the mean of the per-token margins over the trace, s (1 + K, G, T) and response mask (G, T) → (G,).

    A mean over a length that the policy controls: dropping tokens of low margin raises it (the collapse of A.11).
    """
    return (evidence_margin(s, eps) * mask).sum(-1) / mask.sum(-1).clamp(min=1)


# ── Eqs. 4 and 5: the reward ────────────────────────────────────────────────────────────────────────────────────────
def evidence_gate(m: Tensor, tau_g: float) -> Tensor:
    """Eq. 5: g(m) = ½ (1 + tanh(m / τ_g)). Half open at m = 0; τ_g is how much margin it takes to open it."""
    return 0.5 * (1 + torch.tanh(m / tau_g))  # Eq. 5


def evidence_reward(r_ans: Tensor, m: Tensor, tau_g: float, eps_tie: float) -> Tensor:
    """Eq. 4: R = R_ans · g(m) + ε_tie · m, all (G,). Among right answers the one that depends on the evidence wins."""
    return r_ans * evidence_gate(m, tau_g) + eps_tie * m  # Eq. 4


def additive_reward(r_ans: Tensor, m: Tensor, lam: float) -> Tensor:
    """The ungated alternative, R = R_ans + λ m, all (G,): A.6. λ = 0 is correctness alone."""
    return r_ans + lam * m
