"""What a run will cost, before a GPU is touched: `python train.py --backbone … --dry-run`.

The model is built on the meta device (shapes without storage), so parameters are counted, not guessed. There it makes one
update, so that what autograd keeps for the backward pass is counted too. Other memory is an estimate from shapes; what that
leaves out (allocator slack, temporary buffers) is usually 10 to 20 %. Seconds are a roofline of assumed numbers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import grpo
from config import RECIPES, Config, InputError
from models import LOGIT_CHUNK, Prefix, chat_prompt, door, page_parts, source_of, token_grid

EXAMPLE_SIZE = (640, 480)
EXAMPLE_QUESTION = "How many dogs are there in the image?"
WEIGHT_BYTES = 2  # bfloat16
TRAINABLE_BYTES = 16  # a LoRA weight in float32, its gradient and AdamW's two moments
GIB = 2**30
BANDWIDTH, FLOPS, LAUNCH, LAUNCHES = 3.35e12, 4e14, 15e-6, 46  # assumed: byte/s and FLOP/s of an H100; s; a layer and token


def meta_model(source: str, layers: int = 0) -> nn.Module:
    """The architecture of a backbone without storage, or with its last decoder layers only. Raises InputError for a config that
    cannot be loaded."""
    with door("--backbone", source):
        config = transformers.AutoConfig.from_pretrained(source)
        text = config.get_text_config()
        if layers:
            text.num_hidden_layers = layers
            if getattr(text, "layer_types", None):
                text.layer_types = text.layer_types[-layers:]
        with torch.device("meta"):
            return transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)


def count(model: nn.Module, trainable: bool = False) -> int:
    """Parameters of a model, shared ones once; or only those that are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable)


def cache_bytes(text: transformers.PretrainedConfig) -> int:
    """Bytes that one token adds to a key-value cache, over all full-attention layers of a text config."""
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return sum(kind != "linear_attention" for kind in kinds) * 2 * text.num_key_value_heads * head_dim * WEIGHT_BYTES


class Fused(torch.autograd.Function):
    """What fused attention keeps for its backward pass: arguments, result and log-sum-exp, and no weights (T, P)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        out = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32), mask)
        return out


def fused(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any) -> tuple:
    """transformers' attention, (R, heads, T, D) → (R, T, heads, D), without numbers."""
    mask = None if attention_mask is None else attention_mask.to(query.dtype)
    if mask is not None:
        repeat = transformers.integrations.sdpa_attention.repeat_kv
        key, value = (repeat(x, module.num_key_value_groups) for x in (key, value))
    return Fused.apply(query, key, value, mask).transpose(1, 2), None


def kept_bytes(model: nn.Module, prompt: int, rows: int, length: int) -> int:
    """Bytes that autograd keeps of an update: a prompt read with gradient, and rows answers of so many tokens after it."""
    transformers.AttentionInterface.register("fused", fused)
    transformers.AttentionMaskInterface.register("fused", transformers.masking_utils.sdpa_mask)
    model.set_attn_implementation("fused")
    text, width = model.model.language_model, model.config.get_text_config().hidden_size
    device = next(model.parameters()).device
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, Tensor] = {}  # by storage; held, so that no storage is another's successor

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()._cdata
        if storage not in own:
            kept[storage] = x
        return x

    def forward(n: int, t: int, **more: Any) -> Any:
        embeds = torch.zeros(n, t, width, dtype=torch.bfloat16, device=device)
        return text(inputs_embeds=embeds, position_ids=embeds[:, :, 0].long().expand(3, n, t), use_cache=True, **more)

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        read = forward(1, prompt)
        prefix = Prefix(read.cache, read.last_hidden_state[:, -1], torch.zeros(1, 1, device=device))
        forward(rows, length - 1, cache=prefix.fork(torch.zeros(rows, dtype=torch.long, device=device)).cache)
    return sum(x.untyped_storage().nbytes() for x in kept.values()) + rows * length * width * WEIGHT_BYTES  # TokenLogProb's


def memory(
    config: Config, text: transformers.PretrainedConfig, parameters: int, trainable: int, prompt: int, kept: int
) -> dict[str, float]:
    """Bytes of one GPU by use. text is the backbone's text config, prompt its length in tokens, kept that of `kept_bytes`.

    Sampling, audit and update follow one another, so the peak is what stays plus the largest of the three.
    """
    versions, length = config.k + 1, prompt + config.max_new_tokens  # edited images: the evidence, K null regions
    audit_rows = config.audit_rows or 2 * versions * config.group_size  # a yes/no question's flipped answers too
    update_rows = config.update_rows or config.group_size
    images = 2 if config.method == "papo" else 1  # of which the update reads the prompt, with gradient
    per_token = cache_bytes(text)
    return {
        "weights": parameters * WEIGHT_BYTES,
        "LoRA, gradients and optimizer": trainable * TRAINABLE_BYTES,
        "KV cache of sampling": max(config.group_size, config.sample_rows) * length * per_token,
        "KV cache of the audit": (versions * prompt + audit_rows * length) * per_token,
        "KV cache of the update": images * (prompt + update_rows * length) * per_token,
        "logits of one chunk": 2 * LOGIT_CHUNK * text.vocab_size * 4,
        "kept for the backward pass": images * kept,
    }


def peak(parts: dict[str, float]) -> float:
    """Bytes at the worst moment: what is always there, and the heaviest of sampling, audit and update."""
    always = parts["weights"] + parts["LoRA, gradients and optimizer"] + parts["logits of one chunk"]
    update = parts["KV cache of the update"] + parts["kept for the backward pass"]
    return always + max(parts["KV cache of sampling"], parts["KV cache of the audit"], update)


def seconds(config: Config, layers: int, parameters: int, prompt: int, parts: dict[str, float]) -> dict[str, float]:
    """Seconds of a step on one prompt by part. A token of sampling takes as long as its bytes, launches or operations."""
    rows, t = config.group_size, config.max_new_tokens
    traffic = (parts["weights"] + parts["KV cache of sampling"] / 2) / BANDWIDTH  # the cache is half full on average
    token = 2 * parameters / FLOPS  # of one token's forward pass
    trained = config.lora_layers / layers  # the backward pass goes through these: twice a forward
    return {
        "sample": t * max(traffic, layers * LAUNCHES * LAUNCH, rows * token) + prompt * token,
        "judge": (config.k + 1) * (prompt + rows * t) * token,
        "learn": (2 + 2 * trained) * (prompt + rows * t) * token,
    }


def plan(config: Config) -> str:
    """The plan of a run as text: parameters, token counts of an example, and the memory of one GPU."""
    source = source_of(config.backbone, weights=False)
    model = meta_model(source)
    parameters, text = count(model), model.config.get_text_config()
    try:
        trainable = count(grpo.add_lora(model, config.lora_layers, config.lora_rank, config.lora_alpha), trainable=True)
    except ValueError as error:
        raise InputError(f"--lora-layers: {error}") from error
    with door("--backbone", source):
        processor = transformers.AutoImageProcessor.from_pretrained(source)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    visual = math.prod(token_grid(processor, EXAMPLE_SIZE))
    pages = config.pages if config.method in RECIPES else 1
    single = [visual, f"{EXAMPLE_QUESTION} {config.instruction}"]
    example = page_parts(EXAMPLE_QUESTION, [visual] * pages) if pages > 1 else single
    prompt = len(chat_prompt(tokenizer, example, model.config.image_token_id, config.thinking))
    trained = meta_model(source, config.lora_layers).requires_grad_(False)  # the frozen layers below keep nothing
    grpo.add_lora(trained, config.lora_layers, config.lora_rank, config.lora_alpha)
    kept = kept_bytes(trained, prompt, config.update_rows or config.group_size, config.max_new_tokens)
    parts = memory(config, text, parameters, trainable, prompt, kept)
    took = seconds(config, text.num_hidden_layers, parameters, prompt, parts)
    width = max(map(len, parts))
    lines = [
        f"{config.backbone}: {parameters:,} parameters, {trainable:,} of them trainable (LoRA r = {config.lora_rank} on the "
        f"last {config.lora_layers} of {text.num_hidden_layers} decoder layers)",
        f"example: an image of {EXAMPLE_SIZE[0]}x{EXAMPLE_SIZE[1]} gives {visual} visual tokens, the prompt {prompt} tokens"
        f"{f' with {pages} of them' if pages > 1 else ''}; "
        f"{config.group_size} answers of at most {config.max_new_tokens}",
        "memory of one GPU, GiB, estimated:",
        *(f"  {name:<{width}} {value / GIB:7.2f}" for name, value in parts.items()),
        f"  {'peak':<{width}} {peak(parts) / GIB:7.2f}",
        f"seconds of a step on one prompt, a roofline of {BANDWIDTH / 1e12:.2f} TB/s, {FLOPS / 1e12:.0f} TFLOP/s and "
        f"{LAUNCHES} launches of {LAUNCH * 1e6:.0f} us a layer and token, all of them assumed: "
        + ", ".join(f"{name} {value:.1f}" for name, value in took.items()),
        f"if that does not fit: --audit-rows {config.group_size} and --update-rows {max(1, config.group_size // 4)} change "
        "memory and no result; then --max-new-tokens, --group-size",
    ]
    return "\n".join(lines)
