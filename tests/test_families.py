"""The real tokenizers, templates, processors and configurations of the three families, with shrunken random weights."""

import copy
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from conftest import SHARED
from helpers import naive_log_probs, naive_text_log_probs, random_image
from peft import PeftModel
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, GenerationConfig

import ced
import data
import models
import rollout
import train
from benchmarks import Row, harness
from config import Config, configure
from methods import COMPARED, METHODS, advantages_of, rewards_of
from models import Policy
from related import rs_grpo
from support import pictures

QWEN = SHARED / "qwen"
BACKBONES = {"qwen2_5_vl_7b": 345, "qwen3_vl_8b": 260, "qwen3_5_9b": 260}  # visual tokens of COCO image 397133
pytestmark = pytest.mark.skipif(not QWEN.is_dir(), reason="no ../shared/data/qwen")


def shrink(name: str, out: Path) -> Path:
    """A directory with the real tokenizer, template and processor, and a model of the real kind with 4 small layers."""
    config = AutoConfig.from_pretrained(QWEN / name)
    text, vision = config.get_text_config(), config.vision_config
    small = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    small |= {
        "head_dim": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    }
    for key, value in small.items():
        if hasattr(text, key):
            setattr(text, key, value)
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:4]
    half = getattr(text, "head_dim", 8) * (0.75 if name == "qwen3_5_9b" else 1) // 2
    rope = dict(text.rope_parameters) | {"mrope_section": [int(half) - 2 * (int(half) // 3), int(half) // 3, int(half) // 3]}
    text.rope_parameters = rope | ({"partial_rotary_factor": 0.75} if name == "qwen3_5_9b" else {})
    for key, value in {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32,
                       "fullatt_block_indexes": [1]}.items():  # fmt: skip
        if hasattr(vision, key):
            setattr(vision, key, value)
    if getattr(vision, "deepstack_visual_indexes", None):
        vision.deepstack_visual_indexes = [0, 1]
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    if (QWEN / name / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(QWEN / name)
    shutil.copytree(QWEN / name, out)  # the tokenizer, template and processor as they are
    model.save_pretrained(out)
    return out


@pytest.fixture(scope="module", params=BACKBONES)
def directory(request, tmp_path_factory) -> Path:
    return shrink(request.param, tmp_path_factory.mktemp("backbones") / request.param)


@pytest.fixture(scope="module")
def shared(directory) -> Policy:
    """The directory's policy for tests that leave it as it is."""
    return Policy.load(str(directory))


def fresh(directory: Path, shared: Policy, dtype: torch.dtype = torch.float32) -> Policy:
    """Another model with the same tokenizer and a processor of its own, for tests that change it."""
    model = AutoModelForImageTextToText.from_pretrained(directory, dtype=dtype)
    return Policy(models.frozen(model), shared.tokenizer, copy.copy(shared.image_processor))


def photo(coco_mini) -> Path:
    return coco_mini / "images" / "000000397133.jpg"


def test_visual_tokens_of_a_real_image(directory, shared, coco_mini):
    policy, image = shared, data.open_image(photo(coco_mini))
    vision = policy.encode(image)
    n = BACKBONES[directory.name]
    assert vision.features[0].shape[:2] == (1, n) and vision.grid[0] * vision.grid[1] == n
    assert policy.grid(image.size) == vision.grid
    assert len(vision.features) == (3 if directory.name == "qwen3_vl_8b" else 1)  # DeepStack maps
    prompt = policy.prompt("How many people are there in the image?", n)
    assert int((prompt == policy.image_token).sum()) == n
    text = policy.decode(prompt)
    assert "How many people are there in the image?" in text and models.INSTRUCTION in text


def test_overlay_of_a_person_in_every_grid(coco_mini, tmp_path):
    """A picture of which tokens one person's box owns; set TOKEN_SHEET to keep it."""
    people = [a for a in data.read_coco(coco_mini).annotations["397133"] if a["category_id"] == "1"]
    box = tuple(max(people, key=lambda a: a["bbox"][2] * a["bbox"][3])["bbox"])
    image = photo(coco_mini)
    size = data.open_image(image).size
    grids = {name: models.token_grid(AutoImageProcessor.from_pretrained(QWEN / name), size) for name in BACKBONES}
    assert {name: rows * columns for name, (rows, columns) in grids.items()} == BACKBONES
    sample = data.Sample("x", "397133", image, size, "How many people are there in the image?", "2", "counting", (box,))
    out = Path(os.environ.get("TOKEN_SHEET", tmp_path / "tokens.png"))
    pictures.token_sheet(sample, grids, out)
    assert out.stat().st_size > 10_000
    for rows, columns in grids.values():  # the picked tokens cover the box as well as whole tokens can
        tokens = ced.region_tokens(torch.tensor([box]), size, (rows, columns))
        assert abs(int(tokens.sum()) * size[0] * size[1] / (rows * columns) / (box[2] * box[3]) - 1) < 0.25


def test_eos_ids(directory, shared):
    policy = shared
    ends = {policy.tokenizer.decode([i]) for i in policy.eos_ids.tolist()}
    assert "<|im_end|>" in ends and (directory.name != "qwen2_5_vl_7b" or "<|endoftext|>" in ends)


def test_thinking(directory, shared):
    policy = shared
    on, off = (policy.decode(policy.prompt("?", 4, thinking)) for thinking in (True, False))
    if directory.name == "qwen3_5_9b":
        assert on.endswith("<think>\n") and off.endswith("<think>\n\n</think>\n\n")
    else:
        assert on == off
    for reply in (
        "a red one</think>\n<answer>red</answer>",
        "<answer>red</answer>",
    ):  # the prompt has opened <think>, or closed it
        ids = policy.tokenizer(reply, add_special_tokens=False)["input_ids"]
        span = rollout.answers.answer_span(ids, policy.decode)
        assert "red" in policy.decode(ids[slice(*span)]) and "answer>" not in policy.decode(ids[slice(*span)]).replace(
            ">red", "red"
        )
        assert rollout.answers.is_correct(reply, "red", "word")


def test_log_probs_equal_the_naive_forward_on_a_real_image(directory, shared, coco_mini):
    policy, image = shared, data.open_image(photo(coco_mini))
    vision = policy.encode(image)
    prompt = policy.prompt("How many people are there in the image?", vision.features[0].shape[1])
    ids = policy.tokenizer("<answer> 2 </answer>", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        fast = policy.log_probs(policy.read(prompt, vision), ids, 1.0)[0, 0]
        naive = naive_log_probs(policy, prompt, image, ids[0], 1.0)
    torch.testing.assert_close(fast, naive, atol=1e-5, rtol=0)


def test_bfloat16_weights_give_float32_log_probs(directory, shared, coco_mini):
    policy = fresh(directory, shared, torch.bfloat16)
    vision = policy.encode(data.open_image(photo(coco_mini)).resize((96, 64)))
    prompt = policy.prompt("?", vision.features[0].shape[1])
    with torch.no_grad():
        log_probs = policy.log_probs(policy.read(prompt, vision), torch.tensor([[5, 6, 7]]), 1.0)
    assert policy.model.dtype == torch.bfloat16 and log_probs.dtype == torch.float32 and log_probs.isfinite().all()


def test_small_and_extreme_images(directory, shared):
    policy = shared
    vision = policy.encode(Image.new("L", (5, 7)))  # upsized by the processor
    assert policy.grid((5, 7)) == vision.grid
    with pytest.raises(data.InputError, match="2010x10 pixels: absolute aspect ratio"):
        policy.grid((2010, 10))


def logits_of(model, policy: Policy, image) -> torch.Tensor:
    batch = policy.image_processor(images=[image], return_tensors="pt")
    prompt = policy.prompt("?", policy.grid(image.size)[0] * policy.grid(image.size)[1])[None]
    with torch.no_grad():
        return model(
            input_ids=prompt,
            pixel_values=batch["pixel_values"],
            image_grid_thw=batch["image_grid_thw"],
            mm_token_type_ids=(prompt == policy.image_token).int(),
        ).logits


def test_a_saved_adapter_loads_on_plain_transformers_and_merges(directory, shared, tmp_path, monkeypatch):
    policy, image = fresh(directory, shared), random_image(96, 64)
    plain = logits_of(policy.model, policy, image)
    for p in policy.add_lora(4, 8, 16):
        torch.nn.init.normal_(p, std=0.1)
    trained = logits_of(policy.model, policy, image)
    assert (trained - plain).abs().max() > 1e-4
    policy.adapter.save_pretrained(tmp_path / "run" / "adapter")
    (tmp_path / "run" / "config.json").write_text(json.dumps({"backbone": str(directory)}))

    base = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval()
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "run" / "adapter"))
    torch.testing.assert_close(logits_of(adapted, policy, image), trained, atol=1e-6, rtol=0)

    # `shared` has read the tokenizer from the same folder, which takes a second or two
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: shared.tokenizer)
    assert models.main(["merge", str(tmp_path / "run"), str(tmp_path / "merged")]) == 0
    merged = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    torch.testing.assert_close(logits_of(merged, policy, image), trained, atol=1e-5, rtol=0)
    own = {p.name: p.read_bytes() for p in directory.iterdir() if p.name not in ("config.json", "generation_config.json")}
    kept = {name: content for name, content in own.items() if not name.endswith(".safetensors")}
    assert kept and all((tmp_path / "merged" / name).read_bytes() == content for name, content in kept.items())
    assert models.main(["merge", str(tmp_path / "run"), str(tmp_path / "run")]) == 2
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"backbone": str(directory)}


def test_a_step_of_every_method_on_real_images(directory, shared, coco_mini, tmp_path):
    policy = fresh(directory, shared)
    policy.image_processor.size = {"shortest_edge": 64 * 64, "longest_edge": 128 * 128}  # fewer tokens, for time
    config = Config(prompts_per_step=1, group_size=2, max_new_tokens=6, lr=1e-3, lora_rank=4)
    samples, _ = data.load(coco_mini, policy.grid, 0.02, 0.5, 2)
    parameters = policy.add_lora(config.lora_layers, config.lora_rank, config.lora_alpha)
    optimizer = torch.optim.AdamW(parameters, lr=config.lr)
    sampler = data.BalancedSampler(samples, seed=1)
    for step, method in enumerate(COMPARED):
        row = train.train_step(policy, sampler.draw(1), optimizer, replace(config, method=method), step)
        assert row["response_length"] > 0 and not row["skipped"]
    assert all(p.isfinite().all() for p in parameters)


# ── benchmarks ──
def test_real_templates_place_images_and_batches_answer_as_singles(directory, shared):
    parts = ["See", random_image(100, 60), "and then", random_image(60, 90, 1), "Which is larger?"]
    with torch.inference_mode():
        prompts = [shared.compose(p) for p in (parts, ["What is 2 + 3?"], parts[:2])]
        text = re.sub(r"(<\|image_pad\|>)+", "IMAGE", shared.decode(prompts[0][0]))
        image = "<|vision_start|>IMAGE<|vision_end|>"
        assert f"See{image}and then{image}Which is larger?<|im_end|>" in text
        assert [len(visions) for _, visions in prompts] == [2, 0, 1]
        batch = shared.sample(shared.read_batch(prompts), 1, 5, 0.0, ())
        for b, prompt in enumerate(prompts):
            alone = shared.sample(shared.read_batch([prompt]), 1, 5, 0.0, ())
            assert torch.equal(batch.ids[b, : alone.ids.shape[1]], alone.ids[0])


def test_a_reply_that_begins_within_the_templates_thinking_says_so(directory, shared, coco_mini):
    row = Row("x", "How many people?", "2", "count", images=(photo(coco_mini),))
    for thinking in (True, False):
        (reply,) = harness.respond(shared, [row], harness.Asking(thinking=thinking, max_new_tokens=2))
        assert reply.startswith("<think>") == (thinking and directory.name == "qwen3_5_9b")


def test_likelihoods_equal_a_naive_forward_with_real_tokenizers(shared):
    pairs = [("Question: What floats?\nAnswer:", f" {text}") for text in ("oil", "a heavy iron anchor", "1,024 stones")]
    assert shared.likelihoods(pairs) == pytest.approx([naive_text_log_probs(shared, *pair) for pair in pairs], abs=1e-5)


# ── several pages ──
RECORD = (
    "<observe>Page [2] counts people.</observe>\n<evidence>\n[1]: no relevant information\n[2]: 3 people\n</evidence>\n"
    "<think>So it is 3.</think>\n<answer>3</answer>"
)


def paged(coco_mini) -> data.PagedSample:
    paths = sorted((coco_mini / "images").iterdir())[:2]
    pages = [data.Page(path, data.open_image(path).size) for path in paths]
    box = (0.0, 0.0, pages[1].size[0] / 2, pages[1].size[1] / 2)
    pages[1] = replace(pages[1], boxes=(box,), evidence="3 people")
    return data.PagedSample("p", "p", tuple(pages), "How many people?", "3", "sufficient", "contained")


def test_real_tokenizers_keep_stages_and_evidence(shared):
    """The stage of every token, against the characters at which the tokenizer itself says that it begins."""
    encoded = shared.tokenizer(RECORD, add_special_tokens=False, return_offsets_mapping=True)
    stages = rs_grpo.stages_of(encoded["input_ids"], shared.decode)
    begins = [RECORD.index(f"<{tag}>") for tag in rs_grpo.STAGES]
    assert stages == [sum(begin < stop for begin in begins) for _, stop in encoded["offset_mapping"]]
    assert set(stages) == {1, 2, 3, 4} and rs_grpo.well_formed(RECORD + "<|im_end|>\n")
    assert rs_grpo.read_evidence(RECORD, 2) == [rs_grpo.NOTHING, "3 people"]


def test_pages_stand_numbered_in_real_prompts_and_train(directory, shared, coco_mini):
    policy = fresh(directory, shared)
    policy.image_processor.size = {"shortest_edge": 64 * 64, "longest_edge": 128 * 128}  # fewer tokens, for time
    sample, image = paged(coco_mini), "<|vision_start|>IMAGE<|vision_end|>"
    text = re.sub(r"(<\|image_pad\|>)+", "IMAGE", policy.decode(rollout.ask(policy, sample, Config())[1]))
    assert text.endswith("<think>\n\n</think>\n\n") == (directory.name == "qwen3_5_9b")  # no stage is opened in the prompt
    assert f"Question: How many people?\n[1]:{image}[2]:{image}<|im_end|>" in text and "insufficient to answer" in text
    config = configure({"method": "rs-grpo", "k": 1})
    group = rollout.given_group(policy, sample, [RECORD, RECORD.replace("3</answer>", "4</answer>")], config)
    judgement = rollout.judge(policy, group, config)
    assert judgement.audited.all() and judgement.r_ans.tolist() == [1, 0]
    for method in (name for name, row in METHODS.items() if row.pages):
        rewards = rewards_of(judgement, sample, replace(config, method=method))
        advantages = advantages_of(policy, group, rewards, config)
        assert advantages.shape == (group.responses.ids.shape if method.startswith("rs") else (2,)) and advantages[0].max() > 0
    parameters = policy.add_lora(4, 4, 8)
    train.learn(policy, group, judgement, rs_grpo.rewards(judgement, config), config, 0, 1)
    assert max(p.grad.abs().max() for p in parameters) > 0 and all(p.grad.isfinite().all() for p in parameters)
