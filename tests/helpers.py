"""Random-weight policies of all three families, small enough for a test, a naive forward to compare them with, and short
runs of the embedded backbone."""

import re
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from transformers import (
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import data
import train
from config import TINY_RECIPE, Config
from models import Policy, Responses, frozen
from related.papo import blacken
from rollout import Group, judge, sample_group, seeded
from toy import backbone

Images = Image.Image | list[Image.Image]
FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen3_5")
SMALL = Config(**(TINY_RECIPE | {"steps": 2, "prompts_per_step": 2, "group_size": 4, "eval_prompts": 2, "eval_group": 2}))


def config_of(family: str, tokenizer, layers: int = 4, width: int = 48):
    """A configuration of the family with so many decoder layers; the last of Qwen3.5 is full attention, others linear."""
    text = dict(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    vision = dict(
        depth=2, hidden_size=32, intermediate_size=64, num_heads=2, patch_size=8, spatial_merge_size=2, out_hidden_size=width
    )
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>") for name, token in backbone.IMAGE_TOKENS.items()}
    if family == "qwen2_5_vl":
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [width // 24] * 3}
        vision |= {"window_size": 32, "fullatt_block_indexes": [1]}
        return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)
    if family == "qwen3_vl":
        text["head_dim"] = 12
        text["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [2, 2, 2],
            "mrope_interleaved": True,
        }
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        return Qwen3VLConfig(text_config=text, vision_config=vision, **ids)
    text |= {
        "head_dim": 16, "full_attention_interval": layers, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                            "mrope_section": [2, 2, 2], "mrope_interleaved": True},
    }  # fmt: skip
    vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": []}
    return Qwen3_5Config(text_config=text, vision_config=vision, **ids)


def random_policy(family: str, seed: int = 0, layers: int = 4, width: int = 48) -> Policy:
    """A policy of the family with random weights, three times the usual scale, so that images matter."""
    torch.manual_seed(seed)
    tokenizer = backbone.make_tokenizer()
    config = config_of(family, tokenizer, layers, width)
    classes = (Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration, Qwen3_5ForConditionalGeneration)
    model = dict(zip(FAMILIES, classes))[family](config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.1 if "embed_tokens" in name or "lm_head" in name else 0.06)
        model.lm_head.weight[config.image_token_id] = 0  # no model that was ever trained says it: a naive forward needs that
    model.generation_config = GenerationConfig(eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id])
    processor = Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, size={"shortest_edge": 32 * 32, "longest_edge": 96 * 96})
    return Policy(frozen(model), tokenizer, processor)


def random_image(width: int, height: int, seed: int = 0) -> Image.Image:
    """Coloured noise."""
    pixels = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def first(samples: list[data.Sample], family: str) -> data.Sample:
    """The first sample of a family."""
    return next(s for s in samples if s.family == family)


def naive_logits(policy: Policy, prompt: Tensor, image: Images, ids: Tensor) -> Tensor:
    """Logits (T, V) that predict one response's tokens, by a full forward of transformers' own model from the pixels."""
    images = image if isinstance(image, list) else [image]
    batch = policy.image_processor(images=images, return_tensors="pt")
    full = torch.cat([prompt, ids])[None]
    policy.trunk.rope_deltas = None
    return policy.model(
        input_ids=full,
        pixel_values=batch["pixel_values"],
        image_grid_thw=batch["image_grid_thw"],
        mm_token_type_ids=(full == policy.image_token).int(),
    ).logits[0, len(prompt) - 1 : -1]


def naive_log_probs(policy: Policy, prompt: Tensor, image: Images, ids: Tensor, temperature: float) -> Tensor:
    """log π (T,) of one response: no cache, no sharing."""
    logits = naive_logits(policy, prompt, image, ids).float()
    return (logits / temperature).log_softmax(-1).gather(1, ids[:, None])[:, 0]


def naive_text_log_probs(policy: Policy, context: str, continuation: str) -> float:
    """log π of a continuation, by a full forward of the language model alone over both texts."""
    ids = policy.tokenizer(context + continuation, return_tensors="pt", add_special_tokens=False)["input_ids"]
    start = len(policy.tokenizer(context.rstrip(), add_special_tokens=False)["input_ids"])
    policy.trunk.rope_deltas = None
    with torch.no_grad():
        log_p = policy.model(input_ids=ids).logits[0].float().log_softmax(-1)  # (P, V)
    return float(log_p[:-1].gather(1, ids[0, 1:, None])[start - 1 :].sum())


# ── short runs of the embedded backbone ──
def fresh(config: Config) -> tuple[Policy, torch.optim.Optimizer]:
    """The embedded backbone with the adapter of the seed, and its optimizer."""
    policy = Policy.load("tiny")
    torch.manual_seed(config.seed)
    parameters = policy.add_lora(config.lora_layers, config.lora_rank, config.lora_alpha)
    return policy, torch.optim.AdamW(parameters, lr=config.lr)


def weights(policy: Policy) -> Tensor:
    """What is trained, in one row."""
    return torch.cat([p.detach().flatten() for p in policy.adapter.parameters() if p.requires_grad])


def trained(config: Config, samples, out: Path, held_out=None) -> Tensor:
    """The weights that a run into `out` ends with."""
    policy, _ = fresh(config)
    out.mkdir(exist_ok=True)
    train.train(policy, samples, config, out, held_out=held_out)
    return weights(policy)


def gradient(config: Config, sample) -> Tensor:
    """The gradient of one group's loss, for rewards 0 … 5."""
    policy, _ = fresh(config)
    group = sample_group(policy, sample, config, 6, seeded(0))
    judgement = judge(policy, group, config)
    train.learn(policy, group, judgement, torch.arange(6.0), replace(config, beta=0.0), update=0, n=1)
    return torch.cat([p.grad.flatten() for p in policy.adapter.parameters() if p.requires_grad])


# ── the hooks of related/, on a policy and a group whose gradients can be had naively ──
RELATED = Config(group_size=3, beta=0.0, temperature=0.7, papo_gamma=0.7, papo_eta=0.2)


def answered(family: str, path: Path) -> tuple[Policy, Group]:
    """A random policy whose adapter has something to say, and a group of three answers of 5, 3 and 5 tokens."""
    policy = random_policy(family)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in policy.add_lora(layers=2, rank=4, alpha=8):
            p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    random_image(90, 60).save(path)
    sample = data.Sample("s", "1", path, (90, 60), "What color?", "red", "attribute", ((0.0, 0.0, 30.0, 30.0),))
    vision = policy.encode(data.open_image(path))
    ids = torch.randint(12, 70, (3, 5), generator=generator)
    ids[2] = ids[0]  # a duplicate, measured once and scattered back
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    prompt = policy.prompt(sample.question, vision.features[0].shape[1])
    responses = Responses(ids, mask, *torch.zeros(2, 3, 5))
    return policy, Group(sample, [vision], prompt, None, responses, ["a", "b", "a"], [None] * 3)


def adapter_gradient(policy, loss=None) -> Tensor:
    """The adapter's gradient, of a loss or as it lies there; cleared for the next one."""
    if loss is not None:
        loss.backward()
    grads = torch.cat([p.grad.flatten() for p in policy.adapter.parameters() if p.requires_grad])
    policy.adapter.zero_grad()
    return grads


def learnt(setting, config: Config, rewards: Tensor) -> Tensor:
    """The gradient that step 3 of the loop gives the group."""
    policy, group = setting
    train.learn(policy, group, None, rewards, config, update=0, n=1)
    return adapter_gradient(policy)


def both_images(group, name: str, p: float) -> tuple[Image.Image, Image.Image]:
    """The group's image, and the one that a hook of this name masks it into."""
    image = data.open_image(group.sample.image)
    return image, blacken(image, RELATED.mask_patch, p, seeded(RELATED.seed, name, "s", "a", "b", "a"))


def code_block(page: str, word: str) -> str:
    """The one Python block of a page that holds a word."""
    text = (Path(__file__).resolve().parent.parent / page).read_text()
    (found,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if word in block]
    return found
