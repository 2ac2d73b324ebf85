"""Regions over several pages: each page on its own, nulls on any of them."""

import pytest
import torch

from ced import audit, audit_regions, intervene
from support.joint import joint_regions, joint_tokens


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BOX = torch.tensor([[2.0, 2, 24, 24]])
NONE = torch.zeros(0, 4)


def test_the_joint_region_is_page_by_page():
    mask = joint_tokens([NONE, BOX, NONE], [(84, 84)] * 3, [(6, 6)] * 3)
    assert mask.shape == (108,) and mask.nonzero().flatten().tolist() == [36, 37, 42, 43]


def test_no_page_is_edited_by_its_neighbour():
    """The first page's last row and the second page's first are neighbours in no picture: each page is what it is alone."""
    maps = [torch.randn(36, 4, generator=seeded(i)) for i in range(2)]
    mask = joint_tokens([torch.tensor([[0.0, 60, 84, 24]]), torch.tensor([[0.0, 0, 30, 30]])], [(84, 84)] * 2, [(6, 6)] * 2)
    seen = []
    audit(lambda pages: seen.extend(pages) or torch.zeros(1, 1, 1), torch.zeros(1, 1), [([m], (6, 6)) for m in maps],
          mask[None], "mean", 2, seeded())  # fmt: skip
    for (edited,), m, own in zip(seen, maps, mask.split(36)):
        assert torch.equal(edited, intervene(m, own[None], (6, 6), "mean", 2, seeded()))
    stacked = intervene(torch.cat(maps), mask[None], (12, 6), "mean", 2, seeded())
    assert not torch.equal(stacked[0], torch.cat([edited[0] for (edited,) in seen]))


def test_a_page_without_a_region_stays_as_it_is():
    tokens = torch.randn(36, 4, generator=seeded())
    edited = intervene(tokens, torch.zeros(2, 36, dtype=torch.bool), (6, 6), "mean", 2, seeded())
    assert torch.equal(edited, tokens.expand(2, 36, 4))


def test_null_regions_lie_on_any_page_and_off_its_evidence():
    """Pages of three sizes, evidence on the first two; each null has as many tokens as the evidence, and no token of it."""
    pages = [((84, 84), (6, 6)), ((112, 84), (6, 8)), ((28, 28), (2, 2))]
    boxes = [torch.tensor([[14.0, 14, 28, 14]]), torch.tensor([[0.0, 0, 28, 28], [28.0, 28, 14, 14]]), NONE]
    evidence = joint_tokens(boxes, *zip(*pages))
    on, moved = torch.zeros(3), 0
    for seed in range(30):
        masks, placed = joint_regions(boxes, pages, 3, 0.0, seeded(seed))
        moved += placed  # the rest, where the boxes of both pages moved to one place, is random tokens
        assert torch.equal(masks[0], evidence) and (masks.sum(-1) == 7).all() and not (masks[1:] & evidence).any()
        on += torch.stack([part.any(-1) for part in masks[1:].split([36, 48, 4], -1)]).sum(-1)
    assert moved > 60 and (on > 0).all()  # the pair of tokens fits on the smallest page too


def test_one_page_of_several_has_the_places_of_one():
    one, _ = audit_regions(BOX, (84, 84), (6, 6), 3, 0.05, seeded(3))
    joint, placed = joint_regions([BOX], [((84, 84), (6, 6))], 3, 0.05, seeded(3))
    assert torch.equal(one, joint) and placed == 3


def test_a_joint_region_of_nothing_or_of_everything_is_refused():
    for boxes in ([NONE], [torch.tensor([[0.0, 0, 84, 84]])]):
        with pytest.raises(ValueError, match="of all 36 visual tokens"):
            joint_regions(boxes, [((84, 84), (6, 6))], 3, 0.05, seeded())
    masks, placed = joint_regions([torch.tensor([[0.0, 0, 84, 70]])], [((84, 84), (6, 6))], 2, 0.05, seeded())
    assert placed == 0 and masks.sum(-1).tolist() == [30, 6, 6]  # no place: what is left outside stands in
