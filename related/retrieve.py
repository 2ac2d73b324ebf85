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

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import sft
from models import Policy, Vision, chat_prompt


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


def retrieval_loss(policy: Policy, libraries: Sequence[tuple[Vision, Sequence[str], Tensor]], temperature: float) -> Tensor:
    """The mean InfoNCE of libraries: the maps of its pages (P, N, D), its queries, and which page (Q,) each of them needs."""
    losses = [
        info_nce(embed_queries(policy, queries), embed_pages(policy, vision), positive, temperature)
        for vision, queries, positive in libraries
    ]
    return torch.stack(losses).mean()
