"""The prompt read once gives what the naive forward gives: values, gradients, samples, for all three families."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers import FAMILIES, naive_log_probs, naive_logits, naive_text_log_probs, random_image, random_policy
from safetensors.torch import load_file, save_file

import models
from config import InputError
from models import INSTRUCTION, Policy

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
    """E versions read together equal E versions read alone: no row leaks into another."""
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
        responses = policy.sample(prefix, 5, 9, 0.8, [torch.Generator().manual_seed(3)])
        again = policy.log_probs(prefix, responses.ids, 0.8)[0]
        repeat = policy.sample(prefix, 5, 9, 0.8, [torch.Generator().manual_seed(3)])
    assert len({tuple(row) for row in responses.ids.tolist()}) > 1
    mask = responses.mask
    torch.testing.assert_close(responses.log_probs[mask], again[mask], atol=1e-5, rtol=0)
    assert torch.equal(responses.ids, repeat.ids)


def test_greedy_sampling_takes_the_likeliest_token(setting):
    policy, _, image, vision, prompt, _ = setting
    with torch.inference_mode():
        ids = policy.sample(policy.read(prompt, vision), 2, 6, 0.0, ()).ids
        assert torch.equal(ids[0], ids[1])
        assert torch.equal(ids[0], naive_logits(policy, prompt, image, ids[0]).argmax(-1))


def test_rows_that_end_leave_the_batch_and_change_nothing(setting, monkeypatch):
    """The answers are the same whether the ended ones leave at once, or stay to the end."""
    policy, _, _, vision, prompt, _ = setting
    monkeypatch.setattr(policy, "eos_ids", torch.arange(20, 40))  # a third of the words end an answer
    steps, step = [], policy.step
    monkeypatch.setattr(policy, "step", lambda branch, ids, start: steps.append(len(ids)) or step(branch, ids, start))
    with torch.inference_mode():
        prefix = policy.read(prompt, vision)
        found = []
        for stop_test in (1, 100):
            monkeypatch.setattr(models, "STOP_TEST", stop_test)
            found.append(policy.sample(prefix, 12, 10, 1.3, [torch.Generator().manual_seed(5)]))
    early, late = found
    assert torch.equal(early.ids, late.ids) and torch.equal(early.mask, late.mask) and not early.mask.all()
    torch.testing.assert_close(early.log_probs, late.log_probs, atol=1e-5, rtol=0)
    assert (early.log_probs[~early.mask] == 0).all() and (early.ids[~early.mask] == policy.pad_id).all()
    assert steps[-9:] == [12] * 9 and sum(steps[:-9]) < 9 * 12  # the late run keeps all twelve through all nine steps


def test_log_probs_of_the_tokens_asked_for(setting):
    """Tokens outside `scored` are 0; identical rows may ask for different ones."""
    policy, _, _, vision, prompt, ids = setting
    rows = torch.stack([ids[0], ids[1], ids[0]])
    scored = torch.zeros_like(rows, dtype=torch.bool)
    scored[0, 0] = scored[1, 2:4] = scored[2, 3] = True
    with torch.no_grad():
        prefix = policy.read(prompt, vision)
        whole, some = policy.log_probs(prefix, rows, 1.0)[0], policy.log_probs(prefix, rows, 1.0, scored)[0]
    torch.testing.assert_close(some[scored], whole[scored], atol=1e-5, rtol=0)
    assert some[1, 0] == some[1, -1] == 0


def test_unit_log_probs_are_those_of_temperature_one(setting):
    policy, _, _, vision, prompt, _ = setting
    with torch.inference_mode():
        prefix = policy.read(prompt, vision)
        hot = policy.sample(prefix, 5, 9, 1.7, [torch.Generator().manual_seed(3)])
        again = policy.log_probs(prefix, hot.ids, 1.0, hot.mask)[0]
    torch.testing.assert_close(hot.unit_log_probs, again, atol=1e-5, rtol=0)
    assert (hot.log_probs - again).abs().max() > 1e-3


def test_drawn_tokens_follow_the_distribution():
    p = torch.tensor([0.5, 0.0, 0.2, 0.3])
    u = (torch.arange(1000) + 0.5) / 1000  # every thousandth of the distribution function
    counts = models.draw(p.log().expand(1000, 4), u).bincount(minlength=4)
    assert counts.tolist() == [500, 0, 200, 300]
    assert models.draw(p.log()[None], torch.ones(1)).item() == 3


def test_a_bfloat16_model_scores_in_float32_what_it_samples():
    """log π against a float64 head on the same hidden states; a head that rounds its logits is a hundred times further off."""
    policy = random_policy("qwen2_5_vl", layers=1)
    policy.model.to(torch.bfloat16)
    with torch.no_grad():
        policy.head.weight *= 20  # logits of up to 10 or so, as trained models have
        vision = policy.encode(random_image(90, 60))
        prefix = policy.read(policy.prompt(QUESTION, vision.features[0].shape[1]), vision)
        drawn = policy.sample(prefix, 4, 6, 1.0, [torch.Generator().manual_seed(3)])
        again = policy.log_probs(prefix, drawn.ids, 1.0)[0]
        hidden = policy.states(prefix.fork(torch.zeros(4, dtype=torch.long)), drawn.ids)
        logits = [(hidden.to(d) @ policy.head.weight.to(d).T).double() for d in (torch.float64, torch.bfloat16)]
        exact, rounded = (x.log_softmax(-1).gather(-1, drawn.ids[..., None])[..., 0] for x in logits)
    assert again.dtype == torch.float32 and (again - exact)[drawn.mask].abs().max() < 1e-5
    assert (rounded - exact)[drawn.mask].abs().max() > 1e-3
    first = drawn.log_probs[:, 0], again[:, 0]  # later tokens are read one by one or together, which bfloat16 rounds otherwise
    torch.testing.assert_close(*first, atol=1e-5, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_token_log_prob_and_its_gradient_are_autograds(temperature):
    draw = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(7, 5, generator=draw), torch.randn(11, 5, generator=draw)
    targets, upstream = torch.arange(7), torch.randn(7, generator=draw)
    found = []
    for one in (
        lambda h: models.TokenLogProb.apply(h, weight, targets, temperature),
        lambda h: (h @ weight.T / temperature).log_softmax(-1)[torch.arange(7), targets],
    ):
        leaf = hidden.clone().requires_grad_()
        value = one(leaf)
        (value * upstream).sum().backward()
        found.append((value.detach(), leaf.grad))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


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
        together = policy.sample(batch, 1, 8, 0.0, ())
        for b, prompt in enumerate(prompts):
            single = policy.read_batch([prompt])
            alone = policy.sample(single, 1, 8, 0.0, ())
            n = alone.ids.shape[1]
            torch.testing.assert_close(batch.hidden[b], single.hidden[0], atol=1e-5, rtol=0)
            assert torch.equal(together.ids[b, :n], alone.ids[0]) and not together.mask[b, n:].any()
            torch.testing.assert_close(together.log_probs[b, :n], alone.log_probs[0], atol=1e-5, rtol=0)


def test_padding_is_nothing_to_the_model(setting):
    """Whatever token pads: in attention it is masked, in linear attention its states are zeroed."""
    policy, before = setting[0], setting[0].pad_id
    with torch.inference_mode():
        prompts = [policy.compose(parts) for parts in MIXED[:2]]
        hidden = policy.read_batch(prompts).hidden
        policy.pad_id = 40
        other = policy.read_batch(prompts).hidden
        policy.pad_id = before
    assert torch.equal(hidden, other)


def test_a_batch_of_one_is_the_prompt_of_training(setting):
    policy, _, image, vision, prompt, _ = setting
    composed, visions = policy.compose([image, f"{QUESTION} {INSTRUCTION}"])
    assert torch.equal(composed, prompt)
    with torch.inference_mode():
        assert torch.equal(policy.read_batch([(composed, visions)]).hidden, policy.read(prompt, vision).hidden)


PAGES = [(90, 60), (32, 80), (64, 64), (48, 32), (80, 90)]  # of several sizes


@pytest.mark.parametrize("k", [2, 5])
def test_several_pages_equal_the_naive_forward_in_values_and_gradients(setting, k):
    """R = 2 versions of every page, read together: row 0 is the naive forward over all pages, row 1 that of their others."""
    policy, parameters, ids = *setting[:2], setting[5]
    images = [random_image(*size, seed=i) for i, size in enumerate(PAGES[:k])]
    visions = [policy.encode(image) for image in images]
    n_visual = [v.features[0].shape[1] for v in visions]
    prompt = policy.prompt_of_pages(QUESTION, n_visual, "{pages} {question} Think.")
    assert len(set(n_visual)) == k and [t for t in policy.decode(prompt).split() if t == "[UNK]"]
    other = [random_image(*size, seed=9 + i) for i, size in enumerate(PAGES[:k])]
    both = [v.edited([torch.cat(pair) for pair in zip(v.features, policy.encode(o).features)]) for v, o in zip(visions, other)]
    weights = torch.randn(ids.shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        prefix = policy.read(prompt, both)
        assert prefix.position[0] == policy.positions(prompt, visions).max() + 1
        versions = policy.log_probs(prefix, ids, 0.7)
        for fast, pages in zip(versions, (images, other)):
            naive = torch.stack([naive_log_probs(policy, prompt, pages, row, 0.7) for row in ids[:2]])
            torch.testing.assert_close(fast[:2], naive, atol=2e-5, rtol=0)
    assert (versions[0] - versions[1]).abs().max() > 1e-3
    loss = (policy.log_probs(policy.read(prompt, visions), ids[:1], 1.0)[0] * weights[:1]).sum()
    fast = torch.autograd.grad(loss, parameters)
    naive = torch.autograd.grad((naive_log_probs(policy, prompt, images, ids[0], 1.0) * weights[0]).sum(), parameters)
    for a, b in zip(fast, naive):
        torch.testing.assert_close(a, b, atol=1e-5 * max(1.0, float(b.abs().max())), rtol=0)


def test_pages_in_bfloat16_and_pages_that_are_not_those_of_the_prompt(setting):
    policy = setting[0]
    visions = [policy.encode(random_image(*size)) for size in PAGES[:2]]
    prompt = policy.prompt_of_pages(QUESTION, [v.features[0].shape[1] for v in visions])
    with pytest.raises(ValueError, match="the image has"):
        policy.read(prompt, visions[:1])
    half = copy.deepcopy(policy)
    half.model.to(torch.bfloat16)
    visions = [half.encode(random_image(*size)) for size in PAGES[:2]]
    with torch.no_grad():
        log_probs = half.log_probs(half.read(prompt, visions), setting[5], 1.0)
    assert visions[0].features[0].dtype == torch.bfloat16 and log_probs.dtype == torch.float32 and log_probs.isfinite().all()


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


# ── the door for models ──
def copied(folder: Path) -> Path:
    """The embedded backbone's directory, to be damaged."""
    return Path(shutil.copytree(models.TINY, folder / "model"))


def edit(path: Path, **change) -> None:
    path.write_text(json.dumps({k: v for k, v in (json.loads(path.read_text()) | change).items() if v is not None}))


def without_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(dict(list(weights.items())[1:]), folder / "model.safetensors", {"format": "pt"})


def of_another_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["intermediate_size"] *= 2
    (folder / "config.json").write_text(json.dumps(config))


DAMAGES = {
    "text-only": (lambda d: edit(d / "config.json", model_type="qwen2"), "model_type .*expected one of qwen2_5_vl.*'qwen2'"),
    "another architecture": (lambda d: edit(d / "config.json", model_type="llava"), "model_type .*found 'llava'"),
    "unknown type": (lambda d: edit(d / "config.json", model_type="x9"), "model_type .*found 'x9'"),
    "no type": (lambda d: edit(d / "config.json", model_type=None), "model_type .*found None"),
    "a run": (lambda d: (d / "config.json").write_text('{"backbone": "tiny"}'), "a run of tiny, not a model; .*merge"),
    "not JSON": (lambda d: (d / "config.json").write_text("{"), "config.json: not JSON"),
    "a list": (lambda d: (d / "config.json").write_text("[]"), "config.json: expected an object"),
    "pointer": (lambda d: (d / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid"),
                "model.safetensors: expected weights; found a pointer of Git LFS"),
    "cut": (lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-99]), "cannot be loaded"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "cannot be loaded"),
    "a weight is missing": (without_weight, "2 weights are missing from .*, as lm_head.weight"),
    "another size": (of_another_size, "cannot be loaded"),
    "no tokenizer": (lambda d: [p.unlink() for p in d.glob("tokenizer*")], "expected the model's tokenizer"),
    "no processor": (lambda d: (d / "preprocessor_config.json").unlink(), "cannot be loaded"),
    "no template": (lambda d: [(d / "chat_template.jinja").unlink(), edit(d / "tokenizer_config.json", chat_template=None)],
                    "expected a chat template"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_backbone_that_cannot_be_loaded_is_one_line(tmp_path, damage):
    folder = copied(tmp_path)
    harm, message = DAMAGES[damage]
    harm(folder)
    with pytest.raises(InputError, match=message) as error:
        Policy.load(str(folder))
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_an_undamaged_copy_is_loaded(tmp_path):
    assert Policy.load(str(copied(tmp_path))).grid((84, 84)) == (6, 6)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> Path:
    policy = Policy.load("tiny")
    policy.add_lora(4, 4, 8)
    policy.adapter.save_pretrained(tmp_path_factory.mktemp("run") / "adapter")
    return tmp_path_factory.getbasetemp() / "run0" / "adapter"


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def with_fewer(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(dict(list(weights.items())[1:]), folder / "adapter_model.safetensors", {"format": "pt"})


ADAPTERS = {
    "no configuration": (lambda d: (d / "adapter_config.json").unlink(), "expected a PEFT adapter"),
    "broken configuration": (lambda d: (d / "adapter_config.json").write_text("{"), "cannot be loaded"),
    "no weights": (lambda d: (d / "adapter_model.safetensors").unlink(), "expected the adapter's weights"),
    "pointer": (lambda d: (d / "adapter_model.safetensors").write_text("version https://git-lfs"), "a pointer of Git LFS"),
    "cut": (lambda d: cut_in_half(d / "adapter_model.safetensors"), "cannot be loaded"),
    "another rank": (lambda d: edit(d / "adapter_config.json", r=8), "cannot be loaded"),
    "a weight is missing": (with_fewer, "cannot be loaded.*missing adapter keys"),
}


@pytest.mark.parametrize("damage", ADAPTERS)
def test_an_adapter_that_cannot_be_loaded_is_one_line(tmp_path, adapter, damage):
    folder = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    harm, message = ADAPTERS[damage]
    harm(folder)
    policy = Policy.load("tiny")
    with pytest.raises(InputError, match=message) as error:
        policy.load_adapter(folder)
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("what", ["run", "file", "full"])
def test_merging_overwrites_nothing(tmp_path, adapter, what, capsys):
    run = tmp_path / "run"
    shutil.copytree(adapter, run / "adapter")
    (run / "config.json").write_text('{"backbone": "tiny"}')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    (tmp_path / "file").write_text("")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert models.main(["merge", str(run), str(tmp_path / what)]) == 2
    assert "expected a directory to write that is new or empty" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_merged_model_has_the_backbones_own_files(tmp_path, adapter):
    run, backbone = tmp_path / "run", copied(tmp_path)
    (backbone / "video_preprocessor_config.json").write_text('{"video_processor_type": "Qwen3VLVideoProcessor"}')
    shutil.copytree(adapter, run / "adapter")
    (run / "config.json").write_text(json.dumps({"backbone": str(backbone)}))
    assert models.main(["merge", str(run), str(tmp_path / "merged")]) == 0
    for path in backbone.iterdir():
        if path.name not in ("config.json", "generation_config.json", "model.safetensors"):
            assert (tmp_path / "merged" / path.name).read_bytes() == path.read_bytes()
    assert Policy.load(str(tmp_path / "merged")).grid((84, 84)) == (6, 6)


@pytest.mark.parametrize("text", ["<|image_pad|>", "<|im_end|>", "$5 {x} <answer>", "<|vision_start|><|image_pad|>"])
def test_a_question_is_only_text_to_the_template(tiny_policy, text):
    prompt = tiny_policy.prompt(f"How many {text} stars?", 36)
    plain = tiny_policy.prompt("How many stars?", 36)
    for token in ("<|image_pad|>", "<|im_end|>", "<|vision_start|>"):
        own = tiny_policy.tokenizer.convert_tokens_to_ids(token)
        assert (prompt == own).sum() == (plain == own).sum()
