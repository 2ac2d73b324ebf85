"""Retrieval by the backbone: the formulas by hand, embeddings against a naive forward in three families, and that it learns."""

import math
import random

import pytest
import torch
from helpers import FAMILIES, random_image, random_policy

from models import chat_prompt
from related import retrieve
from related.retrieve import Library, info_nce, pool, recall
from toy import pages, reader


# ── by hand ──
def test_later_positions_weigh_more_and_padding_nothing():
    hidden = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]], [[9.0, 9.0], [2.0, 0.0], [0.0, 2.0]]])
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])  # padded on the right, and on the left
    expected = torch.tensor([1.0, 2.0]) / math.sqrt(5)
    assert torch.allclose(pool(hidden, mask), expected.expand(2, 2))
    assert pool(hidden.bfloat16(), mask).dtype == torch.float32


def test_info_nce_by_hand():
    queries, book = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    first = -math.log(math.exp(2) / (math.exp(2) + math.exp(1.2)))
    second = -math.log(math.exp(1.6) / (1 + math.exp(1.6)))
    assert float(info_nce(queries, book, torch.tensor([0, 1]), 0.5)) == pytest.approx((first + second) / 2)


def test_recall_by_hand():
    ranked = torch.tensor([[2, 0, 1], [0, 1, 2], [1, 2, 0]])
    right = torch.tensor([2, 2, 2])
    assert [recall(ranked, right, k).tolist() for k in (1, 2, 3)] == [[True, False, False], [True, False, True], [True] * 3]


# ── in three families ──
@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_equal_those_of_a_naive_forward_one_at_a_time(family):
    policy, texts = random_policy(family), ["red", "how many circles are on the left", "what color is the star ?"]
    images = [random_image(48, 32, seed) for seed in (0, 1)]
    visions = [policy.encode(image) for image in images]

    def naive(ids: list[int], **images: torch.Tensor) -> torch.Tensor:
        policy.trunk.rope_deltas = None
        types = (torch.tensor([ids]) == policy.image_token).int()
        with torch.no_grad():
            out = policy.model(torch.tensor([ids]), mm_token_type_ids=types, output_hidden_states=True, **images)
        mean = sum(i * h for i, h in enumerate(out.hidden_states[-1][0], start=1)) / sum(range(1, len(ids) + 1))
        return mean / mean.norm()

    def encoded(part: str | int) -> list[int]:
        return chat_prompt(policy.tokenizer, [part], policy.image_token, True)

    found = retrieve.embed_queries(policy, texts)
    for one, text in zip(found, texts):
        assert torch.allclose(one, naive(encoded(text)), atol=1e-5)
    index = retrieve.index_pages(policy, visions)
    for one, image, vision in zip(index, images, visions):
        seen = policy.image_processor(images=[image], return_tensors="pt")
        assert torch.allclose(one, naive(encoded(vision.features[0].shape[1]), **seen), atol=1e-5)
    stacked = visions[0].edited([torch.cat(maps) for maps in zip(*(v.features for v in visions))])
    assert torch.allclose(retrieve.embed_pages(policy, stacked), index, atol=1e-5)
    best = retrieve.top_k(policy, index, texts[1], 2)
    assert best == (index @ found[1]).argsort(descending=True).tolist()
    assert retrieve.top_k(policy, index, texts[1], 1) == best[:1]


def test_pages_of_any_size_have_one_index_and_no_more_pages_are_asked_than_it_has(policy):
    index = retrieve.index_pages(policy, [policy.encode(random_image(*size)) for size in ((32, 32), (96, 48))])
    assert index.shape[0] == 2 and torch.allclose(index.norm(dim=-1), torch.ones(2))
    for k in (0, 3):
        with pytest.raises(ValueError, match=f"expected 1 to 2, the pages of the index; found {k}"):
            retrieve.top_k(policy, index, "red", k)


# ── learning ──
def test_a_few_updates_find_more_and_negatives_stay_within_a_library(tmp_path, monkeypatch):
    monkeypatch.setattr(retrieve, "LIBRARIES", 1)
    monkeypatch.setattr(retrieve, "QUERIES", 6)
    policy = reader.base(0)
    (book,) = pages.draw_library(tmp_path, 1, "book")
    asks = [(question.query, page) for question, page in pages.questions_of(book.pages)[:12]]
    library = retrieve.library_of(policy, book.images, asks)
    with torch.no_grad():
        alone = retrieve.loss_of(policy, [library])[0]
        assert torch.allclose(retrieve.loss_of(policy, [library, library])[0], alone)  # twins would be false negatives
        before = float(retrieve.loss_of(policy, [library])[0])
    retrieve.teach(policy, [library], 6, 1e-3, 0)
    with torch.no_grad():
        assert float(retrieve.loss_of(policy, [library])[0]) < before - 0.05
    assert retrieve.measure(policy, [library], (18,))[18].all()


def test_batches_are_drawn_from_libraries_and_their_queries():
    libraries = [Library(None, [(f"{i} {j}", j) for j in range(9)]) for i in range(6)]
    batch = next(retrieve.lessons(libraries, random.Random(0)))
    assert len(batch) == retrieve.LIBRARIES and all(len(set(one.asks)) == retrieve.QUERIES for one in batch)
    assert len({one.asks[0][0][0] for one in batch}) == retrieve.LIBRARIES
