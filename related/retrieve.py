"""Which pages does a question need? Retrieval with the backbone itself, as VisRAG does it (arXiv 2410.10594).

    symbol   code name     shape      meaning
    h        hidden        (B, L, D)  last hidden states of a page alone, or of a query alone
    e        pool          (B, D)     Σ_i i h_i / Σ_i i over the unpadded positions i = 1 …, then of length 1
    s        index @ e     (P,)       cosine of a query with each page
             info_nce      ()         −log of the right page's share of Σ exp(s / temperature)

A decoder's later positions have seen more, hence the weights. What is seen is an image in the chat template without a word, or
a query without an image. InfoNCE compares pages of one library: where two libraries may hold the same answer, the other one's
pages are no negatives.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import data
import sft
from models import Policy, Vision, chat_prompt

TEMPERATURE = 0.05  # of the cosines in InfoNCE (the released retriever: 0.02)
LIBRARIES, QUERIES = 4, 8  # of an update


def pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """The position-weighted mean of hidden states (B, L, D) where mask (B, L) is True, of length 1: (B, D) in float32."""
    weights = mask.cumsum(-1) * mask  # 1, 2, 3, …
    return F.normalize((hidden.float() * weights[..., None]).sum(1) / weights.sum(-1, keepdim=True), dim=-1)


def info_nce(queries: Tensor, pages: Tensor, positive: Tensor, temperature: float) -> Tensor:
    """Queries (Q, D) against all pages (P, D) of one library, of which positive (Q,) are right: ()."""
    return F.cross_entropy(queries @ pages.T / temperature, positive)


# ── what is seen ────────────────────────────────────────────────────────────────────────────────────────────────────
def embed_pages(policy: Policy, vision: Vision) -> Tensor:
    """Embeddings (B, D) of pages of one size: vision holds their maps (B, N, D)."""
    rows, n = vision.features[0].shape[:2]
    ids = torch.tensor(chat_prompt(policy.tokenizer, [n], policy.image_token, True), device=policy.device).expand(rows, -1)
    return pool(sft.hidden_states(policy, vision, ids), torch.ones_like(ids))


def embed_queries(policy: Policy, queries: Sequence[str]) -> Tensor:
    """Embeddings (Q, D) of texts. They are padded on the right, where nothing that counts attends to the padding."""
    rows = [torch.tensor(chat_prompt(policy.tokenizer, [text], policy.image_token, True)) for text in queries]
    ids = pad_sequence(rows, batch_first=True, padding_value=policy.pad_id).to(policy.device)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(policy.device)
    return pool(sft.hidden_states(policy, None, ids), mask)


def index_pages(policy: Policy, visions: Sequence[Vision]) -> Tensor:
    """The index (P, D) of pages of any size, each (1, N, D)."""
    with torch.inference_mode():
        return torch.cat([embed_pages(policy, vision) for vision in visions])


# ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def ranking(policy: Policy, index: Tensor, queries: Sequence[str]) -> Tensor:
    """The pages (Q, P) of an index (P, D) for each query, the best first."""
    with torch.inference_mode():
        return (embed_queries(policy, queries) @ index.T).argsort(dim=-1, descending=True, stable=True)


def top_k(policy: Policy, index: Tensor, query: str, k: int) -> list[int]:
    """The k pages of an index (P, D) that fit a query best, the best first. Raises ValueError if there are fewer."""
    if not 1 <= k <= len(index):
        raise ValueError(f"k: expected 1 to {len(index)}, the pages of the index; found {k}")
    return ranking(policy, index, [query])[0, :k].tolist()


def recall(ranked: Tensor, positive: Tensor, k: int) -> Tensor:
    """Whether each query's right page (Q,) is among the first k of its ranking (Q, P): (Q,) bool."""
    return (ranked[:, :k] == positive[:, None]).any(-1)


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Library:
    """Pages of one size, and queries whose right page is known."""

    vision: Vision  # maps (P, N, D)
    asks: list[tuple[str, int]]


def library_of(policy: Policy, images: Sequence[Path], asks: list[tuple[str, int]]) -> Library:
    """A library of image files, seen once."""
    visions = [policy.encode(data.open_image(path)) for path in images]
    return Library(visions[0].edited([torch.cat(maps) for maps in zip(*(v.features for v in visions))]), asks)


def lessons(libraries: Sequence[Library], rng: random.Random) -> Iterator[list[Library]]:
    """Endless batches of some libraries with some of their queries."""
    while True:
        yield [Library(one.vision, rng.sample(one.asks, QUERIES)) for one in rng.sample(libraries, LIBRARIES)]


def loss_of(policy: Policy, batch: Sequence[Library]) -> tuple[Tensor, dict[str, float]]:
    """The mean InfoNCE of libraries, and the share of queries whose right page comes first."""
    losses, first = [], []
    for one in batch:
        queries, positive = zip(*one.asks)
        found, wanted = embed_queries(policy, queries), torch.tensor(positive, device=policy.device)
        pages = embed_pages(policy, one.vision)
        losses.append(info_nce(found, pages, wanted, TEMPERATURE))
        first.append(float(((found @ pages.T).argmax(-1) == wanted).float().mean()))
    return torch.stack(losses).mean(), {"first": fmean(first)}


def teach(policy: Policy, libraries: Sequence[Library], updates: int, lr: float, seed: int) -> None:
    """Fine-tunes the whole language model to retrieve; the vision tower stays frozen."""
    source = lessons(libraries, random.Random(f"retrieve {seed}"))
    sft.train(list(policy.trunk.language_model.parameters()), source, partial(loss_of, policy), updates, lr, "retriever")


def measure(policy: Policy, libraries: Sequence[Library], ks: Sequence[int]) -> dict[int, Tensor]:
    """Recall@k of all queries of the libraries, one (Q,) bool for each k."""
    hits: dict[int, list[Tensor]] = {k: [] for k in ks}
    for one in libraries:
        queries, positive = zip(*one.asks)
        with torch.inference_mode():
            ranked = ranking(policy, embed_pages(policy, one.vision), queries)
        for k in ks:
            hits[k].append(recall(ranked.cpu(), torch.tensor(positive), k))
    return {k: torch.cat(parts) for k, parts in hits.items()}
