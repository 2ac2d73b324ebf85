"""Counterfactual Evidence Disentanglement (CED): Eqs. 1–5 of Evidence-RL (arXiv 2608.08021), as pure functions.

Question: does the likelihood of an answer y fall more when the visual tokens of the Evidence Region Ω_ev are replaced by
their neighbours' mean than when those of K other regions, of exactly as many tokens, are? The answer is the margin m.

    symbol      code name            shape          where in the paper
    Ω_ev, Ω_k   boxes                (n, 4)         3.1; A.2. n boxes (x, y, width, height) in pixels make one region
    N(Ω)        region_tokens        (N,) bool      3.1; A.2 (there T). visual tokens of a region, after spatial merging
    Ω_1 … Ω_K   non_evidence_shifts  (S, 2)         A.2. K of the S places that the evidence can be moved to, in whole tokens
    h, h̃        tokens, intervene    (N, D)         Eq. 1. the vision encoder's output, before and after the edit
    s(Ω)        sensitivity          (E, G, T)      Eq. 2. one row a region, row 0 is Ω_ev
    m           evidence_margin      (G,)           Eq. 3. in (−1, 1); positive: the answer depends on the evidence
    g(m)        evidence_gate        (G,)           Eq. 5. in (0, 1)
    R_train     evidence_reward      (G,)           Eq. 4

    G answers of a group · K non-evidence regions · E = 1 + K edits · N visual tokens · D width · T response tokens

`audit` runs Eqs. 1 and 2 on any policy: it is given one callable that scores answers under edited visual tokens.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

INTERVENTIONS = ("mean", "zero", "noise")
# How far outside the image, as a share of its side, a box still counts as inside: a far edge, the sum of two coordinates in
# float32, is off by at most 1.2e-7 of it, and a box that touches the border must not lose its places to rounding.
EDGE = 1e-6


# ── regions ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def region_tokens(boxes: Tensor, image_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """N(Ω): the visual tokens of a region, as a mask (N,) over the merged grid in raster order.

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
    """Intersection over union of boxes (x, y, width, height), (…, 4) and (…, 4), which broadcast against each other."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = a.unbind(-1), b.unbind(-1)
    across = torch.minimum(ax + aw, bx + bw) - torch.maximum(ax, bx)
    down = torch.minimum(ay + ah, by + bh) - torch.maximum(ay, by)
    overlap = across.clamp(min=0) * down.clamp(min=0)
    return overlap / (aw * ah + bw * bh - overlap)


def union_area(boxes: Tensor) -> float:
    """Area in pixels² covered by boxes (n, 4), overlaps counted once."""
    x0, y0, w, h = boxes.double().unbind(-1)
    xs, ys = torch.cat([x0, x0 + w]).unique(), torch.cat([y0, y0 + h]).unique()  # the boxes' edges cut the plane into cells
    in_x = (x0[:, None] <= xs[:-1]) & (xs[:-1] < (x0 + w)[:, None])
    in_y = (y0[:, None] <= ys[:-1]) & (ys[:-1] < (y0 + h)[:, None])
    covered = (in_y[:, :, None] & in_x[:, None, :]).any(0).double()
    return float(ys.diff() @ covered @ xs.diff())


def shift_boxes(boxes: Tensor, shifts: Tensor, image_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Boxes (n, 4) moved together by each shift (Δrow, Δcolumn) of (S, 2), in whole tokens: (S, n, 4) in pixels, float64."""
    (width, height), (rows, columns) = image_size, grid
    pixels = shifts.flip(-1) * torch.tensor([width / columns, height / rows], dtype=torch.float64)  # (Δx, Δy)
    return boxes.double() + F.pad(pixels, (0, 2))[:, None]


def shift_tokens(mask: Tensor, shifts: Tensor, grid: tuple[int, int]) -> Tensor:
    """The tokens of a mask (N,) moved by each shift (Δrow, Δcolumn) of (S, 2) that keeps them on the grid: masks (S, N)."""
    row, column = (mask.view(grid).nonzero() + shifts[:, None]).unbind(-1)  # each (S, |N(Ω)|)
    return mask.new_zeros(len(shifts), len(mask)).scatter_(1, row * grid[1] + column, True)


def shifts_on_grid(mask: Tensor, grid: tuple[int, int]) -> Tensor:
    """All shifts (Δrow, Δcolumn) in whole tokens, (S, 2), that keep the tokens of a mask (N,) on the grid; (0, 0) is one."""
    tokens, (rows, columns) = mask.view(grid).nonzero(), grid  # (row, column) of each token
    (top, left), (bottom, right) = tokens.amin(0).tolist(), tokens.amax(0).tolist()
    return torch.cartesian_prod(torch.arange(-top, rows - bottom), torch.arange(-left, columns - right))


def non_evidence_shifts(boxes: Tensor, image_size: tuple[int, int], grid: tuple[int, int], max_iou: float) -> Tensor:
    """Every place that a non-evidence region can have: all shifts (Δrow, Δcolumn) in whole tokens, (S, 2), of the evidence
    boxes (n, 4) that leave each box inside the image and at IoU ≤ max_iou with each evidence box (A.2).

    The edit happens on tokens, so it is tokens that must match: moved by whole ones, a region keeps its place relative to the
    grid, and with it exactly as many of them. Shifts that differ give token sets that differ.
    """
    boxes, size = boxes.double(), torch.tensor(image_size, dtype=torch.float64)
    shifts = shifts_on_grid(region_tokens(boxes, image_size, grid), grid)
    moved = shift_boxes(boxes, shifts, image_size, grid)  # (S, n, 4)
    low, high = moved[..., :2], moved[..., :2] + moved[..., 2:]  # corners, each (S, n, 2)
    inside = ((low >= -EDGE * size) & (high <= (1 + EDGE) * size)).flatten(1).all(1)  # (S,)
    iou = torch.stack([box_iou(moved, box).amax(-1) for box in boxes])  # (n, S)
    return shifts[inside & (iou <= max_iou).all(0) & shifts.any(1)]  # Ω_ev where it is, is no null region


def random_tokens(candidates: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """A random set of at most `count` of the candidate tokens (N,) bool, as a mask (N,). Outside N(Ω_ev) it stands in
    for a region that has no place (A.2); over all tokens it is the global masking control (A.5)."""
    indices = candidates.nonzero().flatten()
    chosen = indices[torch.randperm(len(indices), generator=generator)[:count]]
    return torch.zeros_like(candidates).index_fill_(0, chosen, True)


def with_nulls(
    evidence: Tensor, places: Tensor, grid: tuple[int, int], k: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The token masks (1 + k, N) of an audit, row 0 the evidence (N,), and the shifts (≤ k, 2) of the nulls that have a place.

    Null regions are the evidence at k of its other places (S, 2), drawn uniformly and without replacement. Where fewer than k
    exist the last rows are random tokens outside the evidence, as many as it has or, if it owns more than half, all that are
    left. Raises ValueError if the evidence covers every token, for then nothing is left to compare it with.
    """
    if evidence.all():
        raise ValueError(f"the evidence region covers all {evidence.numel()} visual tokens: nothing is left outside it")
    drawn = places[torch.randperm(len(places), generator=generator)[:k]]
    stand_ins = [random_tokens(~evidence, int(evidence.sum()), generator) for _ in range(k - len(drawn))]
    return torch.stack([evidence, *shift_tokens(evidence, drawn, grid), *stand_ins]), drawn


def audit_regions(
    boxes: Tensor, image_size: tuple[int, int], grid: tuple[int, int], k: int, max_iou: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The token masks (1 + k, N) of an audit whose evidence is boxes (n, 4), and the boxes (≤ k, n, 4) of the null regions
    that have some: see `with_nulls`."""
    places = non_evidence_shifts(boxes, image_size, grid, max_iou)
    masks, drawn = with_nulls(region_tokens(boxes, image_size, grid), places, grid, k, generator)
    return masks, shift_boxes(boxes, drawn, image_size, grid)


def audit_tokens(
    evidence: Tensor, grid: tuple[int, int], k: int, max_overlap: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The token masks (1 + k, N) of an audit whose evidence is tokens (N,), and the shifts (≤ k, 2) of the null regions that
    have some: see `with_nulls`. A null region shares at most max_overlap of its tokens with the evidence."""
    shifts = shifts_on_grid(evidence, grid)
    shared = (shift_tokens(evidence, shifts, grid) & evidence).sum(-1)  # (S,) tokens
    places = shifts[(shared <= max_overlap * evidence.sum()) & shifts.any(1)]
    return with_nulls(evidence, places, grid, k, generator)


# ── Eq. 1: the intervention ─────────────────────────────────────────────────────────────────────────────────────────
def neighbours(masks: Tensor, grid: tuple[int, int], ring: int) -> Tensor:
    """Tokens outside each region (E, N) and at most `ring` grid steps (Chebyshev) from it, as masks (E, N)."""
    field = masks.float().unflatten(-1, grid)[:, None]  # (E, 1, rows, columns)
    near = F.max_pool2d(field, kernel_size=2 * ring + 1, stride=1, padding=ring).flatten(1).bool()
    return near & ~masks


def intervene(tokens: Tensor, masks: Tensor, grid: tuple[int, int], kind: str, ring: int, generator: torch.Generator) -> Tensor:
    """Eq. 1: the visual tokens with each region neutralised, (N, D), (E, N) → (E, N, D). Other tokens stay bit-equal.

    kind `mean` fills a region with μ_Ω, the mean of its neighbours; `zero` with 0; `noise` with zero-mean Gaussian samples
    of the tokens' own standard deviation. `generator` (on the CPU) is used by `noise` alone.
    """
    if kind == "mean":
        near = neighbours(masks, grid, ring).to(tokens.device, torch.float32)  # (E, N); bfloat16 cannot count to 257
        # μ_Ω of each region: (E, D). One that has no neighbours, having no token on this page or all of them, has μ_Ω = 0.
        mu = near @ tokens.float() / near.sum(-1, keepdim=True).clamp(min=1)
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
    """Eq. 2: s(Ω) = log π(y | I, q) − log π(y | Ĩ∖Ω, q), (…), (E, …) → (E, …). In nats; per token or summed."""
    return log_probs - edited_log_probs  # Eq. 2


def audit(
    score: Callable[[list[list[Tensor]]], Tensor],
    log_probs: Tensor,
    pages: Sequence[tuple[Sequence[Tensor], tuple[int, int]]],
    masks: Tensor,
    kind: str,
    ring: int,
    generator: torch.Generator,
) -> Tensor:
    """Eqs. 1 and 2 on a policy: the per-token sensitivities s (E, G, T) of its answers to the regions masks (E, Σ N).

    A page, of which one image has one, is given by the maps (N, D) through which the language model sees it, and its grid:
    the merged visual tokens and, where the architecture has them, the DeepStack maps, which would leak what the first edit
    hides. score takes the E edited versions of each page's maps, (E, N, D), and returns log π of the answers' tokens,
    (E, G, T); log_probs (G, T) is what they have under the pages as they are. Each page is edited on its own: the neighbours
    of a region at its edge are not those on the next page.
    """
    slices = masks.split([math.prod(grid) for _, grid in pages], dim=-1)
    edited = [
        [intervene(tokens, own, grid, kind, ring, generator) for tokens in maps] for (maps, grid), own in zip(pages, slices)
    ]
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
