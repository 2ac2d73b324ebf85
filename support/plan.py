"""What a run will cost, before a GPU is touched: `python train.py --backbone … --dry-run`.

The model is built on the meta device (shapes without storage), so parameters are counted, not guessed. Memory is an
estimate from shapes; what it leaves out (allocator slack, temporary buffers) is usually 10 to 20 %.
"""

import math

import torch
from torch import nn
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer, PretrainedConfig

import grpo
from config import Config, InputError
from models import INSTRUCTION, LOGIT_CHUNK, chat_prompt, door, source_of, token_grid

EXAMPLE_SIZE = (640, 480)
EXAMPLE_QUESTION = "How many dogs are there in the image?"
WEIGHT_BYTES = 2  # bfloat16
TRAINABLE_BYTES = 16  # a LoRA weight in float32, its gradient and AdamW's two moments
GIB = 2**30


def meta_model(source: str) -> nn.Module:
    """The architecture of a backbone without storage. Raises InputError if its config cannot be loaded."""
    with door("--backbone", source):
        config = AutoConfig.from_pretrained(source)
        with torch.device("meta"):
            return AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)


def count(model: nn.Module, trainable: bool = False) -> int:
    """Parameters of a model, shared ones once; or only those that are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable)


def cache_bytes(text: PretrainedConfig) -> int:
    """Bytes that one token adds to a key-value cache, over all full-attention layers of a text config."""
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return sum(kind != "linear_attention" for kind in kinds) * 2 * text.num_key_value_heads * head_dim * WEIGHT_BYTES


def memory(config: Config, text: PretrainedConfig, parameters: int, trainable: int, prompt: int) -> dict[str, float]:
    """Bytes of one GPU by use. text is the backbone's text config, prompt its length in tokens.

    Sampling, audit and update follow one another, so the peak is what stays plus the largest of the three.
    """
    versions, length = config.k + 1, prompt + config.max_new_tokens  # edited images: the evidence, K null regions
    audit_rows = config.audit_rows or versions * config.group_size
    update_rows = config.update_rows or config.group_size
    images = 2 if config.method == "papo" else 1  # of which the update reads the prompt, with gradient
    layer = (8 * text.hidden_size + 4 * text.intermediate_size) * WEIGHT_BYTES  # kept for backward, a token and layer
    per_token = cache_bytes(text)
    return {
        "weights": parameters * WEIGHT_BYTES,
        "LoRA, gradients and optimizer": trainable * TRAINABLE_BYTES,
        "KV cache of sampling": max(config.group_size, config.sample_rows) * length * per_token,
        "KV cache of the audit": (versions * prompt + audit_rows * length) * per_token,
        "KV cache of the update": images * (prompt + update_rows * length) * per_token,
        "logits of one chunk": 2 * LOGIT_CHUNK * text.vocab_size * 4,
        "activations of the update": images * config.lora_layers * (prompt + update_rows * config.max_new_tokens) * layer,
    }


def peak(parts: dict[str, float]) -> float:
    """Bytes at the worst moment: what is always there, and the heaviest of sampling, audit and update."""
    always = parts["weights"] + parts["LoRA, gradients and optimizer"] + parts["logits of one chunk"]
    update = parts["KV cache of the update"] + parts["activations of the update"]
    return always + max(parts["KV cache of sampling"], parts["KV cache of the audit"], update)


def plan(config: Config) -> str:
    """The plan of a run as text: parameters, token counts of an example, and the memory of one GPU."""
    source = source_of(config.backbone)
    model = meta_model(source)
    parameters, text = count(model), model.config.get_text_config()
    try:
        trainable = count(grpo.add_lora(model, config.lora_layers, config.lora_rank, config.lora_alpha), trainable=True)
    except ValueError as error:
        raise InputError(f"--lora-layers: {error}") from error
    with door("--backbone", source):
        processor, tokenizer = AutoImageProcessor.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    visual = math.prod(token_grid(processor, EXAMPLE_SIZE))
    example = [visual, f"{EXAMPLE_QUESTION} {INSTRUCTION}"]
    prompt = len(chat_prompt(tokenizer, example, model.config.image_token_id, config.thinking))
    parts = memory(config, text, parameters, trainable, prompt)
    width = max(map(len, parts))
    lines = [
        f"{config.backbone}: {parameters:,} parameters, {trainable:,} of them trainable (LoRA r = {config.lora_rank} on the "
        f"last {config.lora_layers} of {text.num_hidden_layers} decoder layers)",
        f"example: an image of {EXAMPLE_SIZE[0]}x{EXAMPLE_SIZE[1]} gives {visual} visual tokens, the prompt {prompt} tokens; "
        f"{config.group_size} answers of at most {config.max_new_tokens}",
        "memory of one GPU, GiB, estimated:",
        *(f"  {name:<{width}} {value / GIB:7.2f}" for name, value in parts.items()),
        f"  {'peak':<{width}} {peak(parts) / GIB:7.2f}",
        f"if that does not fit: --audit-rows {config.group_size} and --update-rows {max(1, config.group_size // 4)} change "
        "memory and no result; then --max-new-tokens, --group-size",
    ]
    return "\n".join(lines)
