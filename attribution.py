"""Where a right answer comes from: evidence without boxes, by integrated gradients (Sundararajan et al., arXiv 1703.01365).

Question: an answer's log-likelihood is higher with the image than with an image of nothing; which visual tokens is that owed
to? The path from one to the other is walked in a straight line, and every token is credited with what its own change brings.

    symbol    code name              shape     meaning
    h         maps                   (N, D)    what the language model sees of the image: visual tokens, and DeepStack maps
    h'        baselines              (D,)      the image of nothing: the mean of its tokens
    F         score                  ()        log π(right answer | chain of thought, h, q), summed over a group's chains
    α_j       (j − ½) / M                      the M points of the path at which ∂F/∂h is taken: the midpoint rule
    a         integrated_gradients   (N,)      a_i = Σ_d (h − h')_id · 1/M Σ_j ∂F/∂h_id at h' + α_j (h − h'), in nats
    Ω_ev      region_of              (N,)      the smallest set of tokens that holds most of what is positive of a

    N visual tokens · D width · M steps

Relation to the paper: s(Ω) of Eq. 2 is, to first order, Σ_{i∈Ω} (h − μ)_i · ∂F/∂h_i, the gradient at the end of the path
alone. Where the model is sure of its answer that gradient has vanished; averaged along the path it has not, and then the a_i
add up, without error but that of the M steps, to s of the whole image: Σ_i a_i = F(h) − F(h') (completeness).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def integrated_gradients(
    score: Callable[[list[Tensor]], Tensor], maps: Sequence[Tensor], baselines: Sequence[Tensor], steps: int, at_once: int
) -> Tensor:
    """a: what each visual token adds to the score, (N,) float32, in the score's unit.

    maps are the feature maps (N, D) of one image, baselines what each is compared with, (D,) or (N, D). score is a callable as
    `ced.audit` takes: given n versions of each map, (n, N, D), it returns log π of the answers' tokens, (n, …), here with a
    gradient; F is their sum. The path is walked `at_once` points at a time, which bounds memory, and in float32 whatever the
    maps are.
    """
    ways = [h.float() - b for h, b in zip(maps, baselines)]  # h − h', each (N, D)
    slopes = [torch.zeros_like(way) for way in ways]
    for alpha in ((torch.arange(steps, device=maps[0].device) + 0.5) / steps).split(at_once):
        points = [(h - (1 - alpha)[:, None, None] * way).requires_grad_() for h, way in zip(maps, ways)]  # each (n, N, D)
        with torch.enable_grad():
            f = score([point.to(h.dtype) for point, h in zip(points, maps)]).sum()
        for slope, gradient in zip(slopes, torch.autograd.grad(f, points)):
            slope += gradient.sum(0) / steps  # the mean of ∂F/∂h over the path
    return sum((way * slope).sum(-1) for way, slope in zip(ways, slopes))


def region_of(attributions: Tensor, mass: float, least: int, most: int) -> Tensor:
    """Ω_ev: the fewest tokens that hold a share `mass` of the positive attributions (N,), as a mask (N,) bool.

    What speaks against the answer is left out. The region has at least `least` tokens and, which goes first, at most `most`:
    the next in order fill it up, also where nothing is positive. Of equal tokens the first goes first.
    """
    values, order = attributions.double().sort(descending=True, stable=True)
    held = values.clamp(min=0).cumsum(0)  # by the first 1, 2, … tokens: (N,)
    fewest = 1 + int((held < mass * held[-1]).sum())
    region = torch.zeros_like(attributions, dtype=torch.bool)
    return region.index_fill_(0, order[: min(max(fewest, least), most)], True)
