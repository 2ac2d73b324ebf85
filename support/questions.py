"""Which questions a configuration means: the toy world's, which is drawn for it, COCO's, or one's own.

    Config.data → {"train": samples, "val": samples, ...}, each question short enough to be asked

A prompt holds an image whole, or is refused.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import data
from config import Config, InputError
from models import Policy
from support import coco
from toy import world


def load_samples(
    config: Config, policy: Policy, scratch: Path, quiet: bool = False
) -> tuple[list[data.Sample], dict[str, list[data.Sample]]]:
    """Training samples, and the held-out splits by name. The toy world is drawn into scratch. Prints every count."""
    filters = (policy.grid, config.min_area, config.max_area, config.min_tokens)
    if config.data == "toy":
        folders = world.draw_world(scratch, seed=0)
        splits = {name: data.load(folder, *filters) for name, folder in folders.items()}
        counts = splits["train"][1]
        splits = {name: samples for name, (samples, _) in splits.items()}
    else:
        folder = coco.fetch(Path(config.cache)) if config.data == "coco" else Path(config.data)
        samples, counts = data.load(folder, *filters)
        splits = data.by_split(samples)
        if not splits["train"]:
            counted = ", ".join(f"{len(found)} {name}" for name, found in splits.items())
            raise InputError(f"{config.data}: expected samples to train on; all images fall in other splits: {counted}")
    for samples in splits.values():
        check_prompts(policy, samples, config)
    if not quiet:
        print("data:", *(f"  {name}: {n}" for name, n in counts.items()), sep="\n")
        print("  samples:", ", ".join(f"{len(samples)} {name}" for name, samples in splits.items()))
        if empty := [name for name, samples in splits.items() if not samples]:
            print(f"  no image falls in {' and '.join(empty)}: left out of the tables")
    return splits.pop("train"), {name: samples for name, samples in splits.items() if samples}


def check_prompts(policy: Policy, samples: Sequence[data.Sample], config: Config) -> None:
    """Raises InputError for a prompt longer than config.max_prompt_tokens: its image span is never cut."""
    distinct = {(s.question, math.prod(policy.grid(s.size))): s for s in samples}
    for (question, n_visual), sample in distinct.items():
        length = len(policy.prompt(question, n_visual, config.thinking))
        if length > config.max_prompt_tokens:
            raise InputError(
                f"{sample.image}: its prompt has {length} tokens, {n_visual} of them visual; --max-prompt-tokens allows "
                f"{config.max_prompt_tokens}, and an image is never cut"
            )
