"""Evidence proposals that are wrong on purpose: displaced, rescaled, on another object, or anywhere (Fig. 5, A.7).

A proposal is a set of boxes (n, 4) in the evidence's place. All of its boxes move together and stay inside the image; where
that cannot be done, or nothing of the kind exists, there is no proposal (None) for the question. "Another object" is the
paper's random object box (Fig. 5) and its wrong-category region (4.3.3) in one: a box of another class in the same image.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import ced
import data
from config import Config
from rollout import seeded

SHIFTS = (0.1, 0.25, 0.5)  # of the image's short side
SCALES = (0.5, 0.75, 1.5, 2.0)
IOUS = (0.9, 0.7, 0.5, 0.3, 0.1)
DIRECTIONS = 100  # tried for a shift
BISECTIONS = 20  # halvings of the distance: a thousandth of a pixel


def proposals(sample: data.Sample, grid: tuple[int, int], config: Config) -> Iterator[tuple[str, Tensor | None]]:
    """The proposals of a sample by name, the true one first; the random box is a null region on the grid (rows, columns)."""
    boxes, short = torch.tensor(sample.boxes, dtype=torch.float64), min(sample.size)
    yield "true box", boxes
    for iou in IOUS:
        yield f"IoU {iou}", shift_to_iou(boxes, sample.size, iou, draw(config, sample, f"IoU {iou}"))
    for share in SHIFTS:
        moved = shift(boxes, sample.size, share * short, draw(config, sample, f"shift {share}"))
        yield f"shifted by {share} of the short side", moved
    for factor in SCALES:
        yield f"scaled x{factor}", scale(boxes, sample.size, factor)
    yield "another object", other_object(sample, draw(config, sample, "object"))
    _, random = ced.audit_regions(boxes, sample.size, grid, 1, config.max_iou, draw(config, sample, "random"))
    yield "random box", random[0] if len(random) else None


def draw(config: Config, sample: data.Sample, name: str) -> torch.Generator:
    """The random numbers of one proposal of one sample."""
    return seeded(config.seed, "proposal", name, sample.id)


def shift(boxes: Tensor, size: tuple[int, int], distance: float, generator: torch.Generator) -> Tensor | None:
    """The boxes (n, 4) moved by a distance in pixels in the first random direction that keeps them inside the image."""
    found = (step for step in steps(generator) if reach(boxes, size, step) >= distance)
    return next((boxes + distance * step for step in found), None)


def shift_to_iou(boxes: Tensor, size: tuple[int, int], iou: float, generator: torch.Generator) -> Tensor | None:
    """The boxes (n, 4) moved in a random direction until the region's IoU with where it was is `iou`, found by bisection."""
    for step in steps(generator):
        near, far = 0.0, reach(boxes, size, step)
        if region_iou(boxes, boxes + far * step) > iou:
            continue  # the image ends before the overlap is small enough
        for _ in range(BISECTIONS):
            middle = (near + far) / 2
            near, far = (middle, far) if region_iou(boxes, boxes + middle * step) > iou else (near, middle)
        return boxes + near * step
    return None


def steps(generator: torch.Generator) -> Iterator[Tensor]:
    """What a box (x, y, width, height) gains by one pixel in a random direction, DIRECTIONS of them: (cos, sin, 0, 0)."""
    for angle in 2 * math.pi * torch.rand(DIRECTIONS, generator=generator, dtype=torch.float64):
        yield torch.stack([angle.cos(), angle.sin(), 0 * angle, 0 * angle])


def reach(boxes: Tensor, size: tuple[int, int], step: Tensor) -> float:
    """How many such steps boxes (n, 4) can go before one of them leaves the image of size (width, height)."""
    low, high, direction = boxes[:, :2], boxes[:, :2] + boxes[:, 2:], step[:2]
    room = torch.where(direction > 0, torch.tensor(size) - high, low)  # (n, 2)
    return max(0.0, float((room / direction.abs()).min()))


def scale(boxes: Tensor, size: tuple[int, int], factor: float) -> Tensor | None:
    """Each box (n, 4) scaled about its centre and clipped to the image."""
    corner = boxes[:, :2] + boxes[:, 2:] * (1 - factor) / 2
    clipped = [data.clip(box, size) for box in torch.cat([corner, boxes[:, 2:] * factor], 1).tolist()]
    return None if None in clipped else torch.tensor(clipped, dtype=torch.float64)


def region_iou(a: Tensor, b: Tensor) -> float:
    """Intersection over union of the areas that two sets of boxes (n, 4), (m, 4) cover."""
    union = ced.union_area(torch.cat([a, b]))
    return (ced.union_area(a) + ced.union_area(b) - union) / union


def other_object(sample: data.Sample, generator: torch.Generator) -> Tensor | None:
    """A random annotated box (1, 4) of the sample's image, of a class that the evidence does not show."""
    annotated = annotations(sample)
    classes = {name for name, box in annotated if box in sample.boxes}
    others = [box for name, box in annotated if name not in classes]
    if not others:
        return None
    return torch.tensor([others[int(torch.randint(len(others), (), generator=generator))]], dtype=torch.float64)


def with_evidence_of_another(
    sample: data.Sample, samples: Sequence[data.Sample], grid_of: Callable, config: Config
) -> data.Sample | None:
    """The sample with the evidence of a random other one, on another image, at the same place relative to the image: of the
    same family and answer, if there is one. None if there is no other that leaves a visual token outside (`grid_of`)."""
    others = [other for other in samples if other.image_id != sample.image_id]

    def alike(other: data.Sample) -> tuple[bool, bool]:
        return other.family == sample.family, other.answer == sample.answer

    for level in sorted(set(map(alike, others)), reverse=True):
        moved = [moved_here(other, sample) for other in others if alike(other) == level]
        moved = [one for one in moved if data.region_size(torch.tensor(one.boxes), one.size, grid_of)]
        if moved:
            return moved[int(torch.randint(len(moved), (), generator=draw(config, sample, "another question")))]
    return None


def moved_here(other: data.Sample, sample: data.Sample) -> data.Sample:
    """The sample with the boxes of another, at the same place relative to the image."""
    x, y = sample.size[0] / other.size[0], sample.size[1] / other.size[1]
    return replace(sample, boxes=tuple((a * x, b * y, w * x, h * y) for a, b, w, h in other.boxes))


def annotations(sample: data.Sample) -> list[tuple[str, tuple[float, ...]]]:
    """Class and clipped box of every single object annotated in the sample's image; none for data without annotations."""
    folder = next((p for p in sample.image.parents[:2] if (p / "instances.json").is_file()), None)
    if folder is None:
        return []
    objects = read(folder).annotations.get(sample.image_id, [])
    boxes = [(a["category_id"], data.clip(a["bbox"], sample.size)) for a in objects if not a["iscrowd"]]
    return [(name, box) for name, box in boxes if box]


@cache
def read(folder: Path) -> data.Coco:
    """A folder's annotations, read once."""
    return data.read_coco(folder)


def nulls_off_evidence(boxes: Tensor, sample: data.Sample, grid: tuple[int, int], config: Config) -> Tensor | None:
    """K null regions (K, N) of a proposal (n, 4) that own no token of the true evidence either; None if no token is left.

    The pipeline's own nulls avoid the proposal alone. Where a wrong proposal lets one of K = 3 fall on the true evidence, that
    null's support falls, and m = tanh(-1 / sqrt(2)) = -0.61 says more of the null than of the proposal.
    """
    where = seeded(config.seed, "nulls off the evidence", sample.id)
    proposal, truth = (ced.region_tokens(b, sample.size, grid) for b in (boxes, torch.tensor(sample.boxes)))
    free = ~(proposal | truth)
    if not free.any():
        return None
    places = ced.shift_tokens(proposal, ced.non_evidence_shifts(boxes, sample.size, grid, config.max_iou), grid)  # (S, N)
    places = places[~(places & truth).any(1)]
    drawn = places[torch.randperm(len(places), generator=where)[: config.k]]
    stand_ins = [ced.random_tokens(free, int(proposal.sum()), where) for _ in range(config.k - len(drawn))]
    return torch.stack([*drawn, *stand_ins])
