"""Eqs. 1–5 against hand-worked numbers, double loops and a policy whose evidence is known."""

import itertools
import math
import random

import pytest
import torch

import ced
from ced import answer_margin, audit, cot_margin, evidence_gate, evidence_margin, evidence_reward, intervene, region_tokens


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ── regions ──
@pytest.mark.parametrize(
    "size, grid", [((84, 84), (6, 6)), ((640, 427), (15, 23)), ((427, 640), (20, 13)), ((1000, 9), (1, 36))]
)
def test_region_tokens_equal_a_double_loop(size, grid):
    generator = seeded(1)
    for _ in range(200):
        wh = torch.rand(2, generator=generator) * torch.tensor(size) * 0.6 + 1
        xy = torch.rand(2, generator=generator) * (torch.tensor(size) - wh).clamp(min=0)
        x, y, w, h = box = [*xy.tolist(), *wh.tolist()]
        rows, columns = grid
        expected = {
            r * columns + c
            for r in range(rows)
            for c in range(columns)
            if x <= (c + 0.5) * size[0] / columns < x + w and y <= (r + 0.5) * size[1] / rows < y + h
        }
        expected = expected or {int((y + h / 2) * rows / size[1]) * columns + int((x + w / 2) * columns / size[0])}
        assert set(region_tokens(torch.tensor([box]), size, grid).nonzero().flatten().tolist()) == expected


def test_a_region_of_several_boxes_is_their_union():
    boxes = torch.tensor([[0.0, 0, 28, 28], [56.0, 56, 28, 28]])
    both = region_tokens(boxes, (84, 84), (6, 6))
    assert torch.equal(both, region_tokens(boxes[:1], (84, 84), (6, 6)) | region_tokens(boxes[1:], (84, 84), (6, 6)))
    assert both.sum() == 8


def test_union_area_counts_overlaps_once():
    assert ced.union_area(torch.tensor([[0.0, 0, 10, 10], [5.0, 5, 10, 10], [40.0, 0, 1, 2]])) == 175 + 2


def random_case(seed: int) -> tuple[torch.Tensor, tuple[int, int], tuple[int, int]]:
    """Boxes, image size and grid: from specks to most of the image, some at its border, some cells of the grid."""
    draw = random.Random(seed)
    width, height = size = draw.randint(20, 900), draw.randint(20, 900)
    rows, columns = grid = draw.randint(2, 12), draw.randint(2, 12)
    boxes = []
    for _ in range(draw.randint(1, 4)):
        share = draw.choice([1e-5, 0.1, 0.3, 0.8])
        w, h = draw.uniform(0, share) * width + 1e-3, draw.uniform(0, share) * height + 1e-3
        x, y = draw.choice([0, 1, draw.random()]) * (width - w), draw.choice([0, 1, draw.random()]) * (height - h)
        if draw.random() < 0.2:
            w, h = width / columns, height / rows
            x, y = draw.randrange(columns) * w, draw.randrange(rows) * h
        boxes.append([x, y, w, h])
    return torch.tensor(boxes, dtype=draw.choice([torch.float32, torch.float64])), size, grid


def tokens_by_hand(boxes: torch.Tensor, size, grid) -> set[tuple[int, int]]:
    """N(Ω) as (row, column) pairs."""
    return {divmod(int(i), grid[1]) for i in region_tokens(boxes, size, grid).nonzero()}


def iou_by_hand(a, b) -> float:
    w = max(0.0, min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0]))
    h = max(0.0, min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1]))
    return w * h / (a[2] * a[3] + b[2] * b[3] - w * h)


def places_by_hand(boxes: torch.Tensor, size, grid, max_iou: float) -> set[tuple[int, int]]:
    """The shifts (down, right) of a non-evidence region, by loops over all of them and all pairs of boxes."""
    (width, height), (rows, columns), tokens = size, grid, tokens_by_hand(boxes, size, grid)
    found = set()
    for down in range(-rows, rows + 1):
        for right in range(-columns, columns + 1):
            moved = [(x + right * width / columns, y + down * height / rows, w, h) for x, y, w, h in boxes.tolist()]
            near = 1e-6 * max(size)  # the boxes may be rounded to float32
            if (
                (down, right) != (0, 0)
                and all(0 <= r + down < rows and 0 <= c + right < columns for r, c in tokens)
                and all(-near <= x and x + w <= width + near and -near <= y and y + h <= height + near for x, y, w, h in moved)
                and all(iou_by_hand(a, b) <= max_iou for a in moved for b in boxes.tolist())
            ):
                found.add((down, right))
    return found


@pytest.mark.parametrize("seed", range(300))
def test_null_regions_are_the_evidence_elsewhere(seed):
    """All its other places, no other ones, each at most once, and exactly its tokens; random tokens where places run out."""
    boxes, size, grid = random_case(seed)
    places, tokens, k = places_by_hand(boxes, size, grid, 0.05), tokens_by_hand(boxes, size, grid), 1 + seed % 5
    shifts = ced.non_evidence_shifts(boxes, size, grid, 0.05).tolist()
    assert len(shifts) == len(places) and set(map(tuple, shifts)) == places
    if len(tokens) == grid[0] * grid[1]:
        return
    masks, placed = ced.audit_regions(boxes, size, grid, k, 0.05, seeded(seed))
    assert masks.shape == (1 + k, grid[0] * grid[1]) and placed.shape == (min(k, len(places)), len(boxes), 4)
    sets = [{divmod(int(i), grid[1]) for i in mask.nonzero()} for mask in masks]
    assert sets[0] == tokens
    expected = {frozenset((r + down, c + right) for r, c in tokens) for down, right in places}
    nulls = {frozenset(null) for null in sets[1 : 1 + len(placed)]}
    assert len(nulls) == len(placed) and nulls <= expected
    for stand_in in sets[1 + len(placed) :]:
        assert len(stand_in) == min(len(tokens), grid[0] * grid[1] - len(tokens)) and not stand_in & tokens
    for region, null in zip(placed, sets[1:]):
        assert torch.equal(region[:, 2:], boxes[:, 2:].double())
        assert all(iou_by_hand(a, b) <= 0.05 for a in region.tolist() for b in boxes.tolist())
        assert tokens_by_hand(region, size, grid) == null


def test_every_place_is_equally_likely():
    """Pearson's X² of n draws over S places has mean S − 1 and variance 2 (S − 1): at most five deviations above."""
    boxes, size, grid, n = torch.tensor([[14.0, 28, 28, 14]]), (84, 84), (6, 6), 1500
    places, generator = ced.non_evidence_shifts(boxes, size, grid, 0.05), seeded()
    index = {tuple((boxes + torch.tensor([14 * c, 14 * r, 0, 0]))[0].tolist()): i for i, (r, c) in enumerate(places.tolist())}
    counts = torch.zeros(3, len(places))
    for _ in range(n):
        for row, (box,) in zip(counts, ced.audit_regions(boxes, size, grid, 3, 0.05, generator)[1].tolist()):
            row[index[tuple(box)]] += 1
    s, expected = len(places), n / len(places)
    assert s > 20 and ((counts - expected) ** 2 / expected).sum(-1).max() < s - 1 + 5 * math.sqrt(2 * (s - 1))


def test_the_draw_is_a_function_of_the_generator():
    case = torch.tensor([[10.0, 20, 60, 50]]), (640, 427), (15, 23), 3, 0.05
    a, b, c = (ced.audit_regions(*case, seeded(seed))[0] for seed in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_iou_of_boxes_of_two_sizes_by_hand():
    large, small = torch.tensor([0.0, 0, 10, 10]), torch.tensor([8.0, 6, 4, 2])  # they share 2 x 2 of 100 + 8
    assert float(ced.box_iou(large, small)) == float(ced.box_iou(small, large)) == pytest.approx(4 / 104)
    corners = torch.tensor([[10.0, 0, 4, 4], [12.0, 12, 4, 4], [8.0, 8, 4, 4]])
    torch.testing.assert_close(ced.box_iou(corners, large), torch.tensor([0, 0, 4 / 112]))


def test_a_large_box_may_cover_a_small_one_as_their_iou_says():
    """Moved by the one shift that has room, the box of sixteen tokens covers that of one: an IoU of 1/16, not of 1."""
    boxes = torch.tensor([[0.0, 0, 40, 40], [50.0, 0, 10, 10]])
    assert ced.non_evidence_shifts(boxes, (100, 40), (4, 10), 1 / 16).tolist() == [[0, 4]]
    assert not len(ced.non_evidence_shifts(boxes, (100, 40), (4, 10), 0.06))


def test_a_box_at_the_border_keeps_its_places():
    box = torch.tensor([[0.1, 0, 639.9, 40]])  # 0.1 + 639.9 is above 640 in float32
    assert box[0, 0].double() + box[0, 2].double() > 640
    assert ced.non_evidence_shifts(box, (640, 160), (4, 16), 0.05).tolist() == [[1, 0], [2, 0], [3, 0]]


def test_the_evidence_itself_is_no_null_region():
    assert [0, 0] not in ced.non_evidence_shifts(torch.tensor([[0.0, 0, 14, 14]]), (84, 84), (6, 6), 1.0).tolist()


def test_random_tokens_stand_in_where_no_place_is_left():
    boxes = torch.tensor([[0.0, 0, 80, 60]])  # 24 of 36 tokens: no room for them elsewhere, and 12 are all that is left
    masks, placed = ced.audit_regions(boxes, (84, 84), (6, 6), 3, 0.05, seeded())
    assert placed.shape == (0, 1, 4) and masks.sum(-1).tolist() == [24, 12, 12, 12]
    assert torch.equal(masks[1:], ~masks[:1].expand(3, -1))


@pytest.mark.parametrize("rows, columns", [(1, 2), (1, 3), (1, 9), (2, 1), (9, 1), (2, 2), (2, 3)])
def test_on_the_narrowest_grids_every_region_has_neighbours_and_every_edit_is_finite(rows, columns):
    """All boxes of whole tokens but the one that is the whole image."""
    tokens = torch.randn(rows * columns, 4, generator=seeded())
    corners = itertools.product(range(columns), range(rows), range(1, columns + 1), range(1, rows + 1))
    boxes = [box for box in corners if box[0] + box[2] <= columns and box[1] + box[3] <= rows and box[2] * box[3] < len(tokens)]
    for box in boxes:
        region = torch.tensor([box], dtype=torch.float32) * 28
        masks, _ = ced.audit_regions(region, (28 * columns, 28 * rows), (rows, columns), 3, 0.05, seeded())
        assert len(masks) == 4 and masks.any(1).all() and not masks.all(1).any()
        assert ced.neighbours(masks, (rows, columns), 1).any(1).all()
        assert intervene(tokens, masks, (rows, columns), "mean", 1, seeded()).isfinite().all()


def test_evidence_that_covers_everything_is_refused():
    with pytest.raises(ValueError, match="all 36 visual tokens"):
        ced.audit_regions(torch.tensor([[0.0, 0, 84, 84]]), (84, 84), (6, 6), 3, 0.05, seeded())


@pytest.mark.parametrize("seed", range(60))
def test_nulls_of_tokens_are_the_tokens_elsewhere(seed):
    """Every place by loops; all of them are drawn before any random tokens stand in."""
    draw, generator = random.Random(seed), seeded(seed)
    rows, columns = grid = draw.randint(2, 9), draw.randint(2, 9)
    evidence = torch.rand(rows * columns, generator=generator) < draw.choice([0.05, 0.2, 0.5])
    evidence[draw.randrange(rows * columns)] = True
    evidence[draw.randrange(rows * columns)] = False
    if not evidence.any():
        evidence[0] = True
    tokens, overlap = {divmod(int(i), columns) for i in evidence.nonzero()}, draw.choice([0.0, 0.1, 1.0])
    expected = set()
    for down in range(-rows, rows + 1):
        for right in range(-columns, columns + 1):
            moved = {(r + down, c + right) for r, c in tokens}
            on_grid = all(0 <= r < rows and 0 <= c < columns for r, c in moved)
            if (down, right) != (0, 0) and on_grid and len(moved & tokens) <= overlap * len(tokens):
                expected.add((down, right))
    masks, shifts = ced.audit_tokens(evidence, grid, len(expected) + 2, overlap, generator)
    assert set(map(tuple, shifts.tolist())) == expected and len(shifts) == len(expected)
    assert torch.equal(masks[0], evidence)
    for mask, (down, right) in zip(masks[1:], shifts.tolist()):
        assert {divmod(int(i), columns) for i in mask.nonzero()} == {(r + down, c + right) for r, c in tokens}
    free = int((~evidence).sum())
    for stand_in in masks[len(shifts) + 1 :]:
        assert not (stand_in & evidence).any() and int(stand_in.sum()) == min(free, len(tokens))


# ── Eq. 1 ──
@pytest.mark.parametrize("kind", ced.INTERVENTIONS)
def test_eq1_leaves_every_other_token_bit_equal(kind):
    tokens, masks = torch.randn(30, 8, generator=seeded()), torch.rand(4, 30, generator=seeded(1)) < 0.3
    edited = intervene(tokens, masks, (5, 6), kind, 2, seeded())
    assert edited.shape == (4, 30, 8)
    for row, mask in zip(edited, masks):
        assert torch.equal(row[~mask], tokens[~mask])
        assert not (row[mask] == tokens[mask]).any()


def test_eq1_mean_equals_a_double_loop():
    rows, columns, ring = 5, 6, 2
    tokens, mask = torch.randn(30, 8, generator=seeded()), torch.zeros(30, dtype=torch.bool)
    mask[[7, 8, 13]] = True
    inside = [divmod(int(i), columns) for i in mask.nonzero()]
    near = [
        tokens[r * columns + c]
        for r in range(rows)
        for c in range(columns)
        if (r, c) not in inside and min(max(abs(r - a), abs(c - b)) for a, b in inside) <= ring
    ]
    edited = intervene(tokens, mask[None], (rows, columns), "mean", ring, seeded())
    torch.testing.assert_close(edited[0, 7], torch.stack(near).mean(0))
    assert torch.equal(edited[0, 7], edited[0, 13])


def test_eq1_mean_of_bfloat16_tokens_is_the_rounded_mean():
    tokens, mask = torch.randn(400, 8, generator=seeded()).bfloat16() + 3, torch.zeros(1, 400, dtype=torch.bool)
    mask[0, 0] = True
    edited = intervene(tokens, mask, (20, 20), "mean", 20, seeded())  # 399 neighbours
    assert torch.equal(edited[0, 0], tokens[1:].float().mean(0).bfloat16())
    assert torch.equal(edited[0, 1:], tokens[1:])


def test_zero_and_noise_siblings():
    tokens, mask = 3 * torch.randn(400, 8, generator=seeded()), torch.ones(1, 400, dtype=torch.bool)
    assert intervene(tokens, mask, (20, 20), "zero", 1, seeded()).abs().max() == 0
    noise = intervene(tokens, mask, (20, 20), "noise", 1, seeded())
    assert abs(float(noise.mean())) < 0.15 and abs(float(noise.std() / tokens.std()) - 1) < 0.05
    with pytest.raises(ValueError, match="mean, zero, noise; found 'blur'"):
        intervene(tokens, mask, (20, 20), "blur", 1, seeded())


# ── Eqs. 2 and 3 on a policy whose evidence is known ──
def reads_one_token(token: int, original: list[torch.Tensor]):
    """A policy whose only answer is the less likely, the further one visual token is from what it was; it sees every map."""

    def score(pages):
        change = sum((m[:, token] - o[token]).norm(dim=-1) for m, o in zip(*pages, original))
        return -change[:, None, None]  # (E, G = 1, T = 1)

    return score


def margin_of(token: int, masks: torch.Tensor, maps: int = 1) -> float:
    features = [torch.randn(36, 8, generator=seeded(i)) for i in range(maps)]
    s = audit(reads_one_token(token, features), torch.zeros(1, 1), [(features, (6, 6))], masks, "mean", 2, seeded())
    return float(evidence_margin(s.sum(-1), 0.1))


@pytest.mark.parametrize("maps", [1, 3])
def test_a_policy_that_reads_one_token_depends_on_the_region_that_holds_it(maps):
    masks, _ = ced.audit_regions(torch.tensor([[28.0, 28, 28, 28]]), (84, 84), (6, 6), 3, 0.05, seeded())
    token = int(masks[0].nonzero()[0])
    assert margin_of(token, masks, maps) > 0.99
    assert margin_of(token, masks[[1, 0, 2, 3]], maps) < 0


def test_a_policy_that_reads_nothing_has_margin_exactly_zero():
    masks, _ = ced.audit_regions(torch.tensor([[28.0, 28, 28, 28]]), (84, 84), (6, 6), 3, 0.05, seeded())
    blind, maps = torch.full((2, 4), -1.7), [torch.randn(36, 8)]
    s = audit(lambda f: blind.expand(len(f[0][0]), 2, 4), blind, [(maps, (6, 6))], masks, "mean", 2, seeded())
    assert s.shape == (4, 2, 4) and (s == 0).all() and (evidence_margin(s, 0.1) == 0).all()


def test_the_margin_does_not_depend_on_the_unedited_likelihood():
    edited = torch.randn(4, 3, generator=seeded())
    margins = [evidence_margin(ced.sensitivity(torch.tensor(clean), edited), 0.1) for clean in (-0.5, -9.0)]
    torch.testing.assert_close(*margins, atol=1e-5, rtol=0)


def test_eq3_by_hand():
    s = torch.tensor([2.0, 0.1, 0.4, 0.7])  # mean 0.4; population std √0.06
    assert float(evidence_margin(s, 0.1)) == pytest.approx(math.tanh(1.6 / (math.sqrt(0.06) + 0.1)), abs=1e-6)


def test_one_null_region_is_finite():
    assert float(evidence_margin(torch.tensor([0.3, 0.1]), 0.1)) == pytest.approx(math.tanh(2.0), abs=1e-6)


def test_epsilon_is_no_formality():
    """K = 3 null regions of pure noise: mean |m| is 0.70 at any scale above ε, and small below it."""
    noise = torch.randn(4, 20000, generator=seeded())
    assert float(evidence_margin(noise, 1e-6).abs().mean()) == pytest.approx(0.70, abs=0.01)
    assert float(evidence_margin(1e-3 * noise, 1e-6).abs().mean()) == pytest.approx(0.70, abs=0.01)
    assert float(evidence_margin(1e-3 * noise, 0.1).abs().mean()) < 0.02


def test_answer_margin_sums_over_the_span():
    s = torch.randn(4, 3, 7, generator=seeded())
    span = torch.zeros(3, 7, dtype=torch.bool)
    span[0, 4:6] = span[1, 2:3] = True  # the third response has no answer
    m = answer_margin(s, span, 0.1)
    for g, (a, b) in enumerate([(4, 6), (2, 3)]):
        torch.testing.assert_close(m[g], evidence_margin(s[:, g, a:b].sum(-1), 0.1))
    assert m[2] == 0


def test_cot_margin_rises_when_low_margin_tokens_are_deleted_and_answer_margin_does_not():
    strong, weak = torch.tensor([3.0, 0.1, 0.2, 0.0]), torch.zeros(4)
    long = torch.stack([weak, weak, weak, strong], -1)[:, None]  # (1 + K, G = 1, T = 4)
    short = long[..., 2:]
    full = lambda s: torch.ones(1, s.shape[-1], dtype=torch.bool)  # noqa: E731
    last = lambda s: torch.arange(s.shape[-1])[None] == s.shape[-1] - 1  # noqa: E731
    assert cot_margin(short, full(short), 0.1) > cot_margin(long, full(long), 0.1) + 0.2
    assert answer_margin(short, last(short), 0.1) == answer_margin(long, last(long), 0.1)


# ── Eqs. 4 and 5 ──
def test_golden_case_of_figure_3():
    m = torch.tensor([-0.152, 0.8])
    gate, reward = evidence_gate(m, 0.2), evidence_reward(torch.tensor([0.7, 0.7]), m, 0.2, 0.1)
    assert [round(x, 2) for x in gate.tolist()] == [0.18, 1.00]
    assert [round(x, 2) for x in reward.tolist()] == [0.11, 0.78]
    assert reward[1] / reward[0] == pytest.approx(7, abs=0.3)


def test_reward_orderings():
    m = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    right = evidence_reward(torch.ones_like(m), m, 0.2, 0.1)
    wrong = evidence_reward(torch.zeros_like(m), m, 0.2, 0.1)
    assert (right.diff() > 0).all() and (wrong.diff() > 0).all()
    edge = float(m[right > wrong.max()].min())  # a right answer beats every wrong one only above this margin
    assert edge == pytest.approx(-0.199, abs=0.001)
    assert float(wrong.max()) == pytest.approx(0.10) and float(right.min()) == pytest.approx(-0.10, abs=1e-3)
    released = evidence_reward(torch.full_like(m, -0.25), m, 0.2, 0.1)  # R_wrong = −0.25 is not monotone in m
    assert float(released.max()) == pytest.approx(-0.042, abs=1e-3) and float(released.min()) > -0.25 - 0.1


def test_additive_reward():
    assert ced.additive_reward(torch.tensor([1.0]), torch.tensor([-0.5]), 0.1).item() == pytest.approx(0.95)
