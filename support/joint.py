"""The regions of an audit that lie on several pages: what `ced` does on one image, over all pages of a prompt together.

    N(Ω)       joint_tokens    (Σ N,) bool       each page's tokens, in the order of the pages
    Ω_1 … Ω_K  joint_regions   (1 + K, Σ N)      each page's boxes moved together, to any of the pages
"""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import ced

Page = tuple[tuple[int, int], tuple[int, int]]  # the size (width, height) of an image in pixels, and its grid (rows, columns)


def joint_tokens(boxes: Sequence[Tensor], sizes: Sequence[tuple[int, int]], grids: Sequence[tuple[int, int]]) -> Tensor:
    """N(Ω) of a region that lies on several pages: each page's `ced.region_tokens`, in page order, as one mask (Σ N,).

    boxes has (n, 4) for each page, (0, 4) where nothing of the region lies.
    """
    return torch.cat([ced.region_tokens(*page) for page in zip(boxes, sizes, grids)])


def page_places(boxes: Tensor, here: Page, there: Tensor, other: Page, max_iou: float) -> Tensor:
    """Every place on another page that the region of boxes (n, 4) on page `here` can have, as its tokens there: (S, |N(Ω)|).

    In whole tokens, as `ced.non_evidence_shifts`: each box stays inside the page and at IoU ≤ max_iou with each of the evidence
    boxes (m, 4) that are there. The page may be the same one, and its grid a smaller one, where a region may have no place.
    """
    (rows, columns), tokens = other[1], ced.region_tokens(boxes, *here).view(here[1]).nonzero()  # (row, column) of each token
    (top, left), (bottom, right) = tokens.amin(0).tolist(), tokens.amax(0).tolist()
    down, across = torch.arange(-top, max(-top, rows - bottom)), torch.arange(-left, max(-left, columns - right))
    shifts = torch.cartesian_prod(down, across)  # (S, 2): none where the region is larger than the page
    moved = in_tokens(boxes, *here) + F.pad(shifts.flip(-1), (0, 2))[:, None]  # (S, n, 4)
    edge = torch.tensor([columns, rows])
    low, high = moved[..., :2], moved[..., :2] + moved[..., 2:]  # corners, each (S, n, 2)
    inside = ((low >= -ced.EDGE * edge) & (high <= (1 + ced.EDGE) * edge)).flatten(1).all(1)
    apart = ced.box_iou(moved[:, :, None], in_tokens(there, *other)).flatten(1).le(max_iou).all(1)  # (S,)
    row, column = (tokens + shifts[inside & apart][:, None]).unbind(-1)  # each (S, |N(Ω)|)
    return row * columns + column


def in_tokens(boxes: Tensor, image_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Boxes (n, 4) in pixels as boxes in units of one token, float64."""
    return boxes.double() * torch.tensor([grid[1] / image_size[0], grid[0] / image_size[1]] * 2, dtype=torch.float64)


def joint_regions(
    boxes: Sequence[Tensor], pages: Sequence[Page], k: int, max_iou: float, generator: torch.Generator
) -> tuple[Tensor, int]:
    """`ced.audit_regions` over several pages: the masks (1 + k, Σ N), row 0 the evidence, and how many nulls have a place.

    A null region is the evidence moved to other places, each page's boxes together, on any of the pages: drawn uniformly and
    without replacement. Where places run out, or what two pages' boxes moved to overlaps, random tokens stand in. Raises
    ValueError if there is no evidence, or if it covers every token.
    """
    evidence = joint_tokens(boxes, *zip(*pages))
    if evidence.all() or not evidence.any():
        raise ValueError(f"the evidence region covers {int(evidence.sum())} of all {evidence.numel()} visual tokens")
    starts = [0, *itertools.accumulate(math.prod(grid) for _, grid in pages)]
    moved = torch.zeros(k, len(evidence), dtype=torch.bool)
    for own, here in zip(boxes, pages):
        if len(own):
            on_each = [page_places(own, here, there, other, max_iou) for there, other in zip(boxes, pages)]
            places = torch.cat([first + tokens for first, tokens in zip(starts, on_each)])  # (S, |N(Ω)| of this page)
            drawn = places[torch.randperm(len(places), generator=generator)[:k]]
            moved[: len(drawn)].scatter_(1, drawn, True)
    size = int(evidence.sum())
    whole = moved.sum(-1) == size
    nulls = [null if placed else ced.random_tokens(~evidence, size, generator) for null, placed in zip(moved, whole.tolist())]
    return torch.stack([evidence, *nulls]), int(whole.sum())
