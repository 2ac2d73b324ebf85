"""Which questions a configuration means: the toy world's, which is drawn for it, COCO's, or one's own.

    Config.data → {"train": samples, "val": samples, ...}, each question short enough to be asked

A prompt holds an image whole, or is refused.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

import data
from config import Config, InputError
from models import Policy
from support import coco, ranks
from toy import world


def load_samples(
    config: Config, policy: Policy, scratch: Path, quiet: bool = False
) -> tuple[list[data.Sample], dict[str, list[data.Sample]]]:
    """Training samples, of config.families, and the held-out splits by name, of all. The toy world is drawn into scratch.
    Prints every count."""
    families = families_of(config)
    by_boxes = config.evidence in ("boxes", "random")  # which owns as many tokens as they do
    filters = (policy.grid, config.min_area, config.max_area, config.min_tokens, by_boxes)
    if config.data == "toy":
        folders = world.draw_world(scratch, seed=0)
        splits = {name: data.load(folder, *filters) for name, folder in folders.items()}
        counts = splits["train"][1]
        splits = {name: samples for name, (samples, _) in splits.items()}
    else:
        folder = ranks.once_a_host(lambda: coco.fetch(Path(config.cache))) if config.data == "coco" else Path(config.data)
        samples, counts = data.load(folder, *filters)
        splits = data.by_split(samples)
        if not splits["train"]:
            counted = ", ".join(f"{len(found)} {name}" for name, found in splits.items())
            raise InputError(f"{config.data}: expected samples to train on; all images fall in other splits: {counted}")
    splits["train"] = [sample for sample in splits["train"] if sample.family in families]
    if not splits["train"]:
        raise InputError(f"--families {config.families}: expected families of {config.data}; it has none to train on")
    for samples in splits.values():
        check_prompts(policy, samples, config)
    if not quiet:
        print("data:", *(f"  {name}: {n}" for name, n in counts.items()), sep="\n")
        print("  samples:", ", ".join(f"{len(samples)} {name}" for name, samples in splits.items()))
        if empty := [name for name, samples in splits.items() if not samples]:
            print(f"  no image falls in {' and '.join(empty)}: left out of the tables")
    return splits.pop("train"), {name: samples for name, samples in splits.items() if samples}


def families_of(config: Config) -> list[str]:
    """The families that are trained on. Raises InputError for a name that is none."""
    families = [name.strip() for name in config.families.split(",")]
    if unknown := [name for name in families if name not in data.FAMILIES]:
        raise InputError(f"--families: expected names of {', '.join(data.FAMILIES)}, with commas between; found {unknown[0]!r}")
    return families


def prompt_of(policy: Policy, sample: data.Sample | data.PagedSample, config: Config) -> Tensor:
    """The prompt (P,) that asks a sample's question about its image or pages."""
    n_visual = [math.prod(policy.grid(page.size)) for page in sample.pages]
    if isinstance(sample, data.Sample):
        return policy.prompt(sample.question, n_visual[0], config.thinking, config.instruction)
    return policy.prompt_of_pages(sample.question, n_visual, sample.template)


def check_prompts(policy: Policy, samples: Sequence[data.Sample], config: Config) -> None:
    """Raises InputError for a prompt longer than config.max_prompt_tokens: its image span is never cut."""
    distinct = {(s.question, *(math.prod(policy.grid(page.size)) for page in s.pages)): s for s in samples}
    for (_, *n_visual), sample in distinct.items():
        length = len(prompt_of(policy, sample, config))
        if length > config.max_prompt_tokens:
            raise InputError(
                f"{sample.pages[0].image}: its prompt has {length} tokens, {sum(n_visual)} of them visual; --max-prompt-tokens "
                f"allows {config.max_prompt_tokens}, and an image is never cut"
            )
