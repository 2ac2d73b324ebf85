"""The prompt read once gives what the naive forward gives: values, gradients, samples, for all three families."""

import pytest
import torch
from helpers import FAMILIES, naive_log_probs, naive_logits, naive_text_log_probs, random_image, random_policy

from models import INSTRUCTION

QUESTION = "What color are the stars?"


@pytest.fixture(scope="module", params=FAMILIES)
def setting(request):
    """A random policy with a LoRA adapter, an image that is not square, its prompt, and three responses of two lengths."""
    policy = random_policy(request.param)
    parameters = policy.add_lora(layers=2, rank=4, alpha=8)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in parameters:  # B starts at 0: give the adapter something to say
            p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    image = random_image(90, 60)
    vision = policy.encode(image)
    prompt = policy.prompt(QUESTION, vision.features[0].shape[1])
    ids = torch.randint(12, 70, (3, 6), generator=generator)
    ids[2] = ids[0]  # a duplicate, scored once and scattered back
    return policy, parameters, image, vision, prompt, ids


def test_log_probs_equal_the_naive_forward(setting):
    policy, _, image, vision, prompt, ids = setting
    with torch.no_grad():
        fast = policy.log_probs(policy.read(prompt, vision), ids, temperature=0.7)[0]
        naive = torch.stack([naive_log_probs(policy, prompt, image, row, 0.7) for row in ids])
    assert fast.dtype == torch.float32
    torch.testing.assert_close(fast, naive, atol=1e-5, rtol=0)


def test_gradient_through_the_fork_equals_the_naive_gradient(setting):
    policy, parameters, image, vision, prompt, ids = setting
    weights = torch.randn(ids.shape, generator=torch.Generator().manual_seed(2))

    def gradient(loss):
        for p in parameters:
            p.grad = None
        loss.backward()
        return [p.grad.clone() for p in parameters]

    fast = gradient((policy.log_probs(policy.read(prompt, vision), ids, 1.0)[0] * weights).sum())
    rows = torch.stack([naive_log_probs(policy, prompt, image, row, 1.0) for row in ids])
    naive = gradient((rows * weights).sum())
    assert all(g.abs().max() > 0 for g in naive)
    for a, b in zip(fast, naive):
        torch.testing.assert_close(a, b, atol=1e-5 * max(1.0, float(b.abs().max())), rtol=0)


def test_every_version_of_the_image_gets_its_own_row(setting):
    """R versions read together equal R versions read alone: no row leaks into another."""
    policy, _, _, vision, prompt, ids = setting
    other = [m * 0.5 for m in vision.features]
    both = vision.edited([torch.cat([a, b]) for a, b in zip(vision.features, other)])
    with torch.no_grad():
        together = policy.log_probs(policy.read(prompt, both), ids, 1.0)
        alone = [policy.log_probs(policy.read(prompt, vision.edited(f)), ids, 1.0)[0] for f in (vision.features, other)]
        chunked = policy.log_probs(policy.read(prompt, both), ids, 1.0, max_rows=1)
    torch.testing.assert_close(together, torch.stack(alone), atol=1e-5, rtol=0)
    torch.testing.assert_close(together, chunked, atol=1e-5, rtol=0)
    assert (together[0] - together[1]).abs().max() > 1e-3


def test_sampled_log_probs_equal_rescored_ones_and_leave_the_prefix_alone(setting):
    policy, _, _, vision, prompt, _ = setting
    with torch.inference_mode():
        prefix = policy.read(prompt, vision)
        responses = policy.sample(prefix, 5, 9, 0.8, torch.Generator().manual_seed(3))
        again = policy.log_probs(prefix, responses.ids, 0.8)[0]
        repeat = policy.sample(prefix, 5, 9, 0.8, torch.Generator().manual_seed(3))
    assert len({tuple(row) for row in responses.ids.tolist()}) > 1
    mask = responses.mask
    torch.testing.assert_close(responses.log_probs[mask], again[mask], atol=1e-5, rtol=0)
    assert torch.equal(responses.ids, repeat.ids)


def test_greedy_sampling_takes_the_likeliest_token(setting):
    policy, _, image, vision, prompt, _ = setting
    with torch.inference_mode():
        ids = policy.sample(policy.read(prompt, vision), 2, 6, 0.0, None).ids
        assert torch.equal(ids[0], ids[1])
        assert torch.equal(ids[0], naive_logits(policy, prompt, image, ids[0]).argmax(-1))


# ── benchmarks: many questions once each ──
MIXED = (  # prompts of different lengths: an image, none, two at their places, and one after the text
    [random_image(90, 60), QUESTION],
    ["How many squares are there in the image?"],
    ["What color are the stars in", random_image(40, 80, 1), "and in", random_image(64, 64, 2), "in the image?"],
    ["What side are the stars in ?", random_image(33, 50, 3)],
)


def test_left_padded_batches_answer_as_single_prompts(setting):
    """Values and greedy answers, for prompts whose padding differs, over several steps of decoding."""
    policy = setting[0]
    with torch.inference_mode():
        prompts = [policy.compose(parts) for parts in MIXED]
        assert len({len(ids) for ids, _ in prompts}) == len(MIXED)
        batch = policy.read_batch(prompts)
        together = policy.sample(batch, 1, 8, 0.0, None)
        for b, prompt in enumerate(prompts):
            single = policy.read_batch([prompt])
            alone = policy.sample(single, 1, 8, 0.0, None)
            n = alone.ids.shape[1]
            torch.testing.assert_close(batch.logits[b], single.logits[0], atol=1e-5, rtol=0)
            assert torch.equal(together.ids[b, :n], alone.ids[0]) and not together.mask[b, n:].any()
            torch.testing.assert_close(together.log_probs[b, :n], alone.log_probs[0], atol=1e-5, rtol=0)


def test_padding_is_nothing_to_the_model(setting):
    """Whatever token pads: in attention it is masked, in linear attention its states are zeroed."""
    policy, before = setting[0], setting[0].pad_id
    with torch.inference_mode():
        prompts = [policy.compose(parts) for parts in MIXED[:2]]
        logits = policy.read_batch(prompts).logits
        policy.pad_id = 40
        other = policy.read_batch(prompts).logits
        policy.pad_id = before
    assert torch.equal(logits, other)


def test_a_batch_of_one_is_the_prompt_of_training(setting):
    policy, _, image, vision, prompt, _ = setting
    composed, visions = policy.compose([image, f"{QUESTION} {INSTRUCTION}"])
    assert torch.equal(composed, prompt)
    with torch.inference_mode():
        assert torch.equal(policy.read_batch([(composed, visions)]).logits, policy.read(prompt, vision).logits)


def test_two_images_equal_the_naive_forward(setting):
    policy, ids = setting[0], setting[5][1]
    images = [part for part in MIXED[2] if not isinstance(part, str)]
    with torch.no_grad():
        prompt, visions = policy.compose(MIXED[2])
        fast = policy.log_probs(policy.read_batch([(prompt, visions)]), ids[None], 1.0)[0, 0]
        naive = naive_log_probs(policy, prompt, images, ids, 1.0)
    torch.testing.assert_close(fast, naive, atol=1e-5, rtol=0)


PAIRS = [("what color are the stars ?", " red"), ("what color are the stars ?", " left or right none"), ("how many", " stars"),
         ("what color are the stars ? ", "the image"), ("what color are the stars ?", " yes no")]  # fmt: skip


def test_likelihoods_equal_a_naive_forward_of_each_choice(setting, monkeypatch):
    """Choices of different lengths, in the order given; a context that they share is read once."""
    policy = setting[0]
    naive = [naive_text_log_probs(policy, *pair) for pair in PAIRS]
    reads, read = [], policy._read
    monkeypatch.setattr(policy, "_read", lambda ids, *rest: reads.append(ids) or read(ids, *rest))
    assert policy.likelihoods(PAIRS) == pytest.approx(naive, abs=1e-5)
    assert [ids.shape[0] for ids in reads] == [1, 1] and len(set(naive)) == len(PAIRS)
