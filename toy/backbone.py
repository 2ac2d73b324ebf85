"""The embedded backbone: a 0.7 M-parameter Qwen3-VL that can answer by looking or by habit, made from nothing.

python -m toy.backbone [--out DIR] [--seed N]      rebuilds assets/tiny (about 11 minutes on two cores)

    stage 1   vision tower alone              each visual token names what it shows (shape, color) and where it is
    stage 2   language model, vision frozen   both chains of thought, most of them look, on images where no prior holds
    stage 3   the same, 35 % look chains      the habit a correctness reward will keep and an evidence reward will break

A response is a chain and an answer. After a *look* chain the answer comes from the image; after a *prior* chain it is what
is usual (`toy.world.PRIOR`), whatever the image shows. A fifth of the questions of stages 2 and 3 are about a class that the
image lacks ("none", "0", "no"): a model that never saw absence still says "1" once the evidence is gone, and its honest
answers would get negative margins. And looking is wrong once in fifty: where the prior holds, habit is the safer bet, which is
why a reward that sees only correctness drifts towards it.
"""

import argparse
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from tqdm import trange
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import ced
import data
import sft
from models import INSTRUCTION, TINY, Policy, Vision, frozen
from toy import world

PATCH, MERGE, WIDTH = 7, 2, 96
POOL = 4000  # images drawn once and used by all stages
BATCH = 48
TOWER_STEPS, LANGUAGE_STEPS, HABIT_STEPS = 500, 3000, 250
LOOK_SHARE, HABIT_LOOK_SHARE = 0.85, 0.35  # of stage 2's and stage 3's chains; the latter is the base's own at temperature 1
WORDY_SHARE = 0.5  # of either kind of chain
ABSENT_SHARE = 0.2
LOOK_ERROR = 0.02  # of look answers are wrong: eyes err now and then, and on usual images habit never does
ANSWER_WEIGHT = 10.0  # the answer is one token in ten or more, and the only one that needs the image
CONTROL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
IMAGE_TOKENS = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }} {% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


PREAMBLE = "well , let me see : "


def chain_of(look: bool, wordy: bool, noun: str) -> str:
    """A chain of thought that leads to looking, or to what is usual."""
    return f"<think> {PREAMBLE if wordy else ''}{f'look at the {noun}' if look else f'as usual for {noun}'} </think>"


# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────
def make_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer over every word the toy world can say."""
    texts = [INSTRUCTION, chain_of(True, True, ""), chain_of(False, False, ""), "user assistant", *world.COLORS]
    texts += ["none yes no left right 0 1 2 3 4 5 6 7 8 9"]
    for name in world.SHAPES:
        texts += [data.ask_count(name), data.ask_presence(name)]
        texts += [ask(name, n) for ask in (data.ask_color, data.ask_side) for n in (1, 2)]
    text = " ".join(texts).lower()
    for tag in TAGS:
        text = text.replace(tag, " ")
    split = pre_tokenizers.Whitespace()
    words = {word for word, _ in split.pre_tokenize_str(text)}
    vocab = {token: i for i, token in enumerate([*CONTROL, "[UNK]", *TAGS, *sorted(words)])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), split
    core.add_special_tokens(CONTROL)
    core.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_policy() -> Policy:
    """The untrained backbone: Qwen3-VL architecture, 4 decoder layers of width 96, one DeepStack map."""
    tokenizer = make_tokenizer()
    special = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>") for name, token in IMAGE_TOKENS.items()}
    config = Qwen3VLConfig(
        text_config=dict(
            vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=256, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=24, max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 4, 4], "mrope_interleaved": True},
            initializer_range=0.08, tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config=dict(
            depth=3, hidden_size=64, intermediate_size=192, num_heads=4, patch_size=PATCH, spatial_merge_size=MERGE,
            temporal_patch_size=2, out_hidden_size=WIDTH, num_position_embeddings=144, deepstack_visual_indexes=[1],
        ),
        tie_word_embeddings=True,
        **special,
    )  # fmt: skip
    model = Qwen3VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id])
    side = world.CELL * world.CELLS
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3,
        size={"shortest_edge": side**2, "longest_edge": 4 * side**2},
    )  # fmt: skip
    return Policy(frozen(model), tokenizer, processor)


# ── stage 1: the tower ──────────────────────────────────────────────────────────────────────────────────────────────
def token_classes(scene: list[world.Shapes]) -> Tensor:
    """The class of each visual token, (N,): 0 the background, else 1 + shape · |colors| + color."""
    side, cells = world.CELL * world.CELLS, world.CELL * world.CELLS // (PATCH * MERGE)
    classes = torch.zeros(cells * cells, dtype=torch.long)
    for group in scene:
        tokens = ced.region_tokens(torch.tensor(group.boxes), (side, side), (cells, cells))
        classes[tokens] = 1 + world.SHAPES.index(group.name) * len(world.COLORS) + list(world.COLORS).index(group.color)
    return classes


def train_tower(policy: Policy, pixels: Tensor, grids: Tensor, classes: Tensor) -> None:
    """Stage 1. pixels (POOL, patches, values), grids (POOL, 3), classes (POOL, N).

    Every map has to say where each token is as well as what it shows: left from right, and one star from the next, is all
    that spatial and counting questions have to go by.
    """
    visual = policy.trunk.visual
    parts = (1 + len(world.SHAPES) * len(world.COLORS), world.CELLS, world.CELLS)  # what, row, column
    heads = nn.ModuleList(nn.Linear(WIDTH, sum(parts)) for _ in range(1 + len(visual.deepstack_merger_list)))
    side = math.isqrt(classes.shape[1])
    row, column = torch.cartesian_prod(*[torch.arange(side) * world.CELLS // side] * 2).T.repeat(1, BATCH)

    def loss_of(rows: Tensor) -> tuple[Tensor, dict[str, float]]:
        out = visual(pixels[rows].flatten(0, 1), grid_thw=grids[rows])
        logits = [head(m).split(parts, dim=1) for head, m in zip(heads, [out.pooler_output, *out.deepstack_features])]
        target = classes[rows].flatten()
        loss = sum(F.cross_entropy(x, y) for three in logits for x, y in zip(three, (target, row, column)))
        shape = target > 0
        return loss, {"foreground": float((logits[0][0].argmax(-1) == target)[shape].float().mean())}

    rows = (torch.randint(len(pixels), (BATCH,)) for _ in itertools.count())
    sft.train([*visual.parameters(), *heads.parameters()], rows, loss_of, TOWER_STEPS, 2e-3, "1/3 vision tower")


# ── stages 2 and 3: the language model ──────────────────────────────────────────────────────────────────────────────
ANSWERS = {
    "attribute": [*world.COLORS, "none"],
    "counting": ["0", *map(str, world.COUNTS)],
    "spatial": [*world.SIDES, "none"],
    "presence": ["yes", "no"],
}


def make_question(scene: list[world.Shapes], rng: random.Random) -> tuple[str, str, str, str, str]:
    """A question about a scene: its family and words, the noun it is about, and what looking and habit answer."""
    shown = {group.name: group for group in scene}
    absent = [name for name in world.SHAPES if name not in shown]
    name = rng.choice(absent) if rng.random() < ABSENT_SHARE else rng.choice(list(shown))
    boxes = shown[name].boxes if name in shown else []
    color, count, side = world.PRIOR[name]
    family = rng.choice([*data.FAMILIES, "counting", "counting"])  # the slowest to learn
    if family == "presence":
        name = rng.choice(absent) if rng.random() < 0.5 else name
        return family, data.ask_presence(name), data.singular(name), "yes" if name in shown else "no", "yes"
    if family == "counting":
        return family, data.ask_count(name), data.plural(name), str(len(boxes)), str(count)
    n = len(boxes) or rng.choice((1, 2))
    noun = data.subject(name, n)
    if family == "attribute":
        return family, data.ask_color(name, n), noun, shown[name].color if boxes else "none", color
    width = world.CELL * world.CELLS
    seen = data.Instances(name, boxes, set(), True).side(width) if boxes else "none"
    # a class in the middle column has no side
    return (family, data.ask_side(name, n), noun, seen, side) if seen else make_question(scene, rng)


def make_example(policy: Policy, scene: list[world.Shapes], look_share: float, rng: random.Random) -> tuple[Tensor, Tensor]:
    """Token ids (L,) of prompt and response, and each position's loss weight (L,): 0 on the prompt."""
    family, question, noun, seen, usual = make_question(scene, rng)
    look, wordy = rng.random() < look_share, rng.random() < WORDY_SHARE
    if rng.random() < LOOK_ERROR:
        seen = rng.choice([answer for answer in ANSWERS[family] if answer != seen])
    response = f"{chain_of(look, wordy, noun)} <answer> {seen if look else usual} </answer><|im_end|>"
    prompt = policy.prompt(question, (world.CELL * world.CELLS // (PATCH * MERGE)) ** 2)
    ids = policy.tokenizer(response, add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    weights = torch.ones(len(ids))
    weights[-3] = ANSWER_WEIGHT  # answer </answer> <|im_end|>
    return sft.example(prompt, ids, weights)


def batches(policy: Policy, scenes: list, look_share: float, rng: random.Random) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Endless batches: rows of the pool (B,), ids (B, L) and weights (B, L), padded on the right."""
    while True:
        rows = [rng.randrange(len(scenes)) for _ in range(BATCH)]
        yield torch.tensor(rows), *sft.batch_of([make_example(policy, scenes[r], look_share, rng) for r in rows], policy.pad_id)


def train_language(
    policy: Policy, vision: Vision, scenes: list, steps: int, lr: float, look_share: float, name: str, seed: int
) -> None:
    """Stages 2 and 3. vision holds the pool's maps (POOL, N, D); the tower stays frozen."""
    source = batches(policy, scenes, look_share, random.Random(f"{name} {seed}"))

    def loss_of(batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, dict[str, float]]:
        rows, ids, weights = batch
        return sft.language_loss(policy, vision.edited([m[rows] for m in vision.features]), ids, weights)

    sft.train(list(policy.trunk.language_model.parameters()), source, loss_of, steps, lr, name)


# ── all of it ───────────────────────────────────────────────────────────────────────────────────────────────────────
def draw_pool(policy: Policy, seed: int) -> tuple[list, Tensor, Tensor]:
    """POOL scenes in which no prior holds, their pixels (POOL, patches, values) and grids (POOL, 3)."""
    scenes, pixels, grids = [], [], []
    for i in trange(POOL, desc="0/3 drawing images"):
        rng = random.Random(f"pool {seed} {i}")
        scenes.append(world.make_scene("free", rng))
        batch = policy.image_processor(images=[world.draw_scene(scenes[-1], rng)], return_tensors="pt")
        pixels.append(batch["pixel_values"])
        grids.append(batch["image_grid_thw"][0])
    return scenes, torch.stack(pixels), torch.stack(grids)


def encode_pool(policy: Policy, pixels: Tensor, grids: Tensor) -> Vision:
    """The trained tower's maps of the whole pool."""
    parts = []
    with torch.no_grad():
        for x, g in zip(pixels.split(BATCH), grids.split(BATCH)):
            out = policy.trunk.visual(x.flatten(0, 1), grid_thw=g)
            parts.append([m.unflatten(0, (len(x), -1)) for m in (out.pooler_output, *out.deepstack_features)])
    rows, columns = (int(side) // MERGE for side in grids[0, 1:])
    return Vision([torch.cat(maps) for maps in zip(*parts)], grids[:1], (rows, columns))


def build(out: Path, seed: int) -> Policy:
    """Trains the backbone from nothing and saves it to `out` in transformers format."""
    torch.manual_seed(seed)
    policy = make_policy()
    scenes, pixels, grids = draw_pool(policy, seed)
    train_tower(policy, pixels, grids, torch.stack([token_classes(s) for s in scenes]))
    vision = encode_pool(policy, pixels, grids)
    train_language(policy, vision, scenes, LANGUAGE_STEPS, 2e-3, LOOK_SHARE, "2/3 look and habit", seed)
    train_language(policy, vision, scenes, HABIT_STEPS, 5e-4, HABIT_LOOK_SHARE, "3/3 mostly habit", seed)
    policy.model.save_pretrained(out)
    policy.tokenizer.save_pretrained(out)
    policy.image_processor.save_pretrained(out)
    return policy


def main(argv: Sequence[str] | None = None) -> None:
    """Rebuilds the backbone from nothing."""
    parser = argparse.ArgumentParser("python -m toy.backbone", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=TINY, help="where it goes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    build(args.out, args.seed)


if __name__ == "__main__":
    main()
