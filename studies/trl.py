"""TRL's GRPOTrainer of a policy's model: the peer that `studies.speed` times and `studies.trainers` trains beside `train.py`.

TRL is no part of requirements.txt; it is in requirements-dev.txt, and imported where it is used. docs/trainers.md prints the
recipe alone, as a user writes it.
"""

import importlib.util
import os
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from transformers import ProcessorMixin
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor

import data
import grpo
from config import Config
from models import Policy

TRL = "trl==1.16.0"


def installed() -> bool:
    """Whether TRL is there."""
    return importlib.util.find_spec("trl") is not None


class ImageProcessor(Qwen2_5_VLProcessor):
    """transformers' processor without its video half, which needs torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids([self.image_token, self.video_token])
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def processor_of(policy: Policy) -> ImageProcessor:
    """The policy's tokenizer and image processor as the one processor that TRL wants. It pads prompts on the left, and its
    processor has to do so too, or the two disagree about where the image is."""
    policy.tokenizer.padding_side = "left"
    return ImageProcessor(policy.image_processor, policy.tokenizer, policy.tokenizer.chat_template)


def rows_of(samples: Sequence[data.Sample], config: Config) -> list[dict[str, Any]]:
    """The samples as a TRL data set's rows; `row` says which sample it is, and reaches the reward."""
    texts = [f"{sample.question} {config.instruction}" for sample in samples]
    asked = [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}] for text in texts]
    return [{"prompt": p, "image": data.open_image(s.image), "row": i} for i, (p, s) in enumerate(zip(asked, samples))]


def make_trainer(
    policy: Policy, samples: Sequence[data.Sample], config: Config, reward: Callable[..., list[float]], folder: Path
) -> Any:
    """TRL's trainer of the policy's model with config's numbers, `prompts_per_step` samples a step. The policy's adapter is the
    trainer's from now on."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    on_gpu = policy.device.type == "cuda"
    settings = GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=config.prompts_per_step * config.group_size, beta=config.beta,
        num_generations=config.group_size, loss_type="grpo", max_completion_length=config.max_new_tokens, seed=config.seed,
        temperature=config.temperature, max_steps=config.steps, learning_rate=config.lr, weight_decay=config.weight_decay,
        lr_scheduler_type="constant", gradient_checkpointing=False, use_cpu=not on_gpu, bf16=on_gpu, report_to=[],
        save_strategy="no", logging_steps=1000, disable_tqdm=True, log_level="error",
    )  # fmt: skip
    targets = grpo.lora_targets(policy.model, config.lora_layers)
    lora = LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, lora_dropout=0.0, target_modules=targets)
    trainer = GRPOTrainer(
        policy.model, reward, args=settings, train_dataset=Dataset.from_list(rows_of(samples, config)), peft_config=lora,
        processing_class=processor_of(policy),
    )  # fmt: skip
    policy.adapter = trainer.model
    return trainer


def train_quietly(trainer: Any) -> None:
    """Trains without the summary that the trainer prints."""
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet):
        trainer.train()
