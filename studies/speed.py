"""What a step costs, as ratios measured in one run: against the naive audit, and against TRL's GRPO without any audit.

python -m studies.speed [--quick | --together] [--json] [--vs {auto,trl,none}] [--model {46m,3b}] [--out DIR]

    audit        Policy: K + 1 edited prompts read once, the answers' tokens after each; equal answers scored once
    naive audit  every answer x each of K + 2 images, a full forward of transformers' model from the pixels
    step         sample, audit, reference and update, as train.py does it
    TRL step     GRPOTrainer with the same model, image, prompt, G, T and LoRA: sample, reference and update

The model is a Qwen2.5-VL with random weights and the real vocabulary. It never says that it is done, so every answer has T
tokens and all are distinct; an answer span of ANSWER tokens is put near the end of each. Peak memory is that of one step in a
process of its own. Machines are noisy: compare ratios, not seconds.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor
from tqdm import tqdm
from transformers import GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import ced
import data
import rollout
import train
from config import Config, InputError
from models import Policy, frozen
from studies import trl
from support import pictures, ranks
from support.clock import peak_memory
from toy import backbone

ROOT = Path(__file__).resolve().parent.parent
PATCH, MERGE = 14, 2
CELL = PATCH * MERGE  # pixels of one visual token
MODELS = {  # sizes of the text model, then of the vision tower
    "46m": (
        dict(hidden_size=256, intermediate_size=688, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2),
        dict(hidden_size=128, intermediate_size=256, depth=4, num_heads=4, fullatt_block_indexes=[1, 3]),
    ),
    "3b": (  # Qwen2.5-VL-3B
        dict(hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16, num_key_value_heads=2),
        dict(hidden_size=1280, intermediate_size=3420, depth=32, num_heads=16, fullatt_block_indexes=[7, 15, 23, 31]),
    ),
}
VOCABULARY = 151_936  # of Qwen2.5-VL
PHOTO = (640, 427)  # pixels; 345 visual tokens
QUESTION = "how many stars are there in the image ?"
ANSWER, AFTER = 3, 2  # tokens of the answer, and of what follows it (its closing tag and the end)
GROUPS, QUICK_GROUPS = (8, 32), (8,)
GROWTH = {  # one axis at a time, from the middle setting G = 8, K = 3, T = 32 and the photo
    "G": (1, 2, 4, 8, 16, 32, 64),
    "K": (1, 2, 4, 8, 16),
    "visual tokens": (100, 250, 500, 1000, 2000),
    "T": (8, 16, 32, 64, 128),
}
TOGETHER = (1, 2, 4, 8)  # prompts sampled at once, at G = 8, T = 32 and the photo
REPEATS = 3  # of which the median is taken, after one that is not counted


@dataclass(frozen=True)
class Bench:
    """One prompt with its group, ready to be timed."""

    policy: Policy
    config: Config
    group: rollout.Group
    masks: Tensor  # (1 + K, N)


# ── what is measured ────────────────────────────────────────────────────────────────────────────────────────────────
def make_policy(size: str, device: str) -> Policy:
    """A Qwen2.5-VL of a size in MODELS with random weights, float32 on a CPU and bfloat16 on a GPU."""
    text, vision = MODELS[size]
    torch.manual_seed(0)
    tokenizer = backbone.make_tokenizer()
    half = text["hidden_size"] // text["num_attention_heads"] // 2
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [half // 4, half // 8 * 3, half // 8 * 3]}
    config = Qwen2_5_VLConfig(
        text_config=text | dict(vocab_size=VOCABULARY, tie_word_embeddings=True, rope_parameters=rope, bos_token_id=None,
                                eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id),
        vision_config=vision | dict(patch_size=PATCH, spatial_merge_size=MERGE, out_hidden_size=text["hidden_size"]),
        tie_word_embeddings=True,
        **{f"{n}_token_id": tokenizer.convert_tokens_to_ids(f"<|{t}|>") for n, t in backbone.IMAGE_TOKENS.items()},
    )  # fmt: skip
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    model = Qwen2_5_VLForConditionalGeneration(config).to(device, dtype)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    limits = {"shortest_edge": CELL**2, "longest_edge": 2 * max(GROWTH["visual tokens"]) * CELL**2}  # no image is resized
    return Policy(frozen(model), tokenizer, Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=MERGE, size=limits))


def make_sample(folder: Path, size: tuple[int, int]) -> data.Sample:
    """A question about an image of noise with an evidence box in its middle."""
    path = folder / f"{size[0]}x{size[1]}.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(path)
    box = (0.4 * size[0], 0.4 * size[1], 0.2 * size[0], 0.2 * size[1])
    return data.Sample("speed", "speed", path, size, QUESTION, "2", "counting", (box,))


def make_bench(policy: Policy, sample: data.Sample, config: Config) -> Bench:
    """Samples a group and marks the answer's tokens in each response."""
    group = rollout.sample_group(policy, sample, config, config.group_size, rollout.seeded(0, device=policy.device))
    end = group.responses.ids.shape[1] - AFTER
    group = replace(group, spans=[(end - ANSWER, end)] * config.group_size)
    return Bench(policy, config, group, rollout.regions_of(policy, group, config)[0])


def half_duplicates(bench: Bench) -> Bench:
    """The same group with its second half a copy of its first."""
    half = len(bench.group.texts) // 2
    r = bench.group.responses
    twice = [x[:half].repeat(2, 1) for x in (r.ids, r.mask, r.log_probs, r.unit_log_probs)]
    return replace(bench, group=replace(bench.group, responses=type(r)(*twice)))


# ── ours, part by part ──────────────────────────────────────────────────────────────────────────────────────────────
def parts(bench: Bench) -> dict[str, Callable[[], object]]:
    """The parts of a step, each ready to be called."""
    policy, config, group = bench.policy, bench.config, bench.group
    image = data.open_image(group.sample.image)
    draw = rollout.seeded(0, device=policy.device)
    everyone = torch.arange(config.group_size, device=policy.device)

    def read():
        with torch.inference_mode():
            return policy.read(group.prompt, group.vision)

    def reference():
        with torch.no_grad(), policy.reference():
            return train.log_probs_of(policy, group, everyone, config)

    return {
        "encode": lambda: policy.encode(image),
        "read": read,
        "sample": lambda: policy.sample(group.prefix, config.group_size, config.max_new_tokens, config.temperature, [draw]),
        "audit": lambda: rollout.audit_answers(policy, group, bench.masks, config),
        "reference": reference,
        "update": lambda: train.log_probs_of(policy, group, everyone, config).mean().backward(),
    }


def attribution(bench: Bench) -> Tensor:
    """Where the group's answers come from, (N,): what `--evidence attributed` adds to an audit. All answers pass for right."""
    text = f"<answer> {bench.group.sample.answer} </answer>"
    right = replace(bench.group, texts=[text] * len(bench.group.texts))
    return rollout.attributions_of(bench.policy, right, bench.config)


def step(bench: Bench, optimizer: torch.optim.Optimizer) -> None:
    """A whole step with its audits, from the image to the new weights. Rewards 0 … G − 1 stand for real ones."""
    policy, config, sample = bench.policy, bench.config, bench.group.sample
    group = rollout.sample_group(policy, sample, config, config.group_size, rollout.seeded(0, device=policy.device))
    group = replace(group, spans=bench.group.spans)
    judgement = rollout.judge(policy, group, config)
    train.learn(policy, group, judgement, torch.arange(float(config.group_size)), config, update=0, n=1)
    train.descend(optimizer, config.grad_clip)


@contextmanager
def count_tokens(policy: Policy) -> Iterator[Counter]:
    """Within it, tokens that go through the language model are counted."""
    counter = Counter()

    def count(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        counter["tokens"] += kwargs["inputs_embeds"].shape[:2].numel()

    handle = policy.trunk.language_model.register_forward_pre_hook(count, with_kwargs=True)
    yield counter
    handle.remove()


def tokens_of(bench: Bench) -> dict[str, int]:
    """Tokens that sampling and audit compute, the bound (K + 2)·P + G·(K + 2)·T, and what the naive audit computes."""
    actions, config = parts(bench), bench.config
    with count_tokens(bench.policy) as counter:
        for name in ("read", "sample", "audit"):
            actions[name]()
    p, versions = len(bench.group.prompt), config.k + 2
    t = config.group_size * versions * config.max_new_tokens
    return {
        "sample and audit": counter["tokens"],
        "bound": versions * p + t,
        "naive audit": config.group_size * versions * p + t,
    }


# ── the naive audit ─────────────────────────────────────────────────────────────────────────────────────────────────
@torch.inference_mode()
def naive_audit(bench: Bench, keep: bool = False) -> Tensor:
    """s (1 + K, G, T) of every response: a full forward from the pixels for each answer and each of K + 2 images.

    keep: projects the response's positions alone to the vocabulary (`logits_to_keep`), and not the whole prompt.
    """
    policy, config, group = bench.policy, bench.config, bench.group
    image = data.open_image(group.sample.image)
    none = torch.zeros_like(bench.masks[:1])
    rows = []
    for mask in torch.cat([none, bench.masks]):
        for ids in group.responses.ids:
            vision = policy.encode(image)
            maps = [m[0] for m in vision.features]
            if mask.any():
                edit = partial(ced.intervene, masks=mask[None], grid=vision.grid, kind=config.intervention, ring=config.ring)
                maps = [edit(m, generator=rollout.seeded(0))[0] for m in maps]
            full = torch.cat([group.prompt, ids])
            logits = policy.model(
                input_ids=full[None],
                position_ids=policy.positions(full, [vision]),
                mm_encoder_outputs={"image": BaseModelOutputWithPooling(pooler_output=maps)},
                logits_to_keep=len(ids) + 1 if keep else 0,
                use_cache=False,
            ).logits[0, -len(ids) - 1 : -1]  # (T, V)
            rows.append(logits.float().log_softmax(-1).gather(1, ids[:, None])[:, 0])
    log_probs = torch.stack(rows).view(1 + len(bench.masks), len(group.responses.ids), -1)
    return log_probs[0] - log_probs[1:]


# ── TRL ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def make_peer(size: str, device: str, sample: data.Sample, config: Config, folder: Path) -> Any:
    """TRL's trainer of the same model, image, prompt and numbers, with rewards 0, 1, 2 …"""

    def rewards(completions: Sequence[Any], **_: Any) -> list[float]:
        return [float(i) for i in range(len(completions))]

    return trl.make_trainer(make_policy(size, device), [sample] * config.prompts_per_step, config, rewards, folder / "trl")


def trl_seconds(size: str, device: str, sample: data.Sample, config: Config, folder: Path) -> float:
    """Median seconds of a step of TRL's GRPOTrainer, after one that is not counted."""
    from transformers import TrainerCallback

    seconds = []

    class Stopwatch(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            synchronize()
            seconds.append(time.perf_counter() - self.start)

    trainer = make_peer(size, device, sample, config, folder)
    trainer.add_callback(Stopwatch())
    trl.train_quietly(trainer)
    return median(seconds[1:])


class SampledEnoughError(Exception):
    """Ends a trainer whose sampling has been timed."""


def trl_sampling_seconds(size: str, device: str, sample: data.Sample, config: Config, folder: Path) -> float:
    """Median seconds in which TRL's GRPOTrainer samples a batch: those of the model's `generate`, as the trainer calls it."""
    trainer, seconds = make_peer(size, device, sample, config, folder), []
    generate = trainer.model.generate

    def timed_generate(**given: Any) -> None:
        seconds.append(timed(partial(generate, **given)))
        raise SampledEnoughError

    trainer.model.generate = timed_generate
    with suppress(SampledEnoughError):
        trl.train_quietly(trainer)
    return seconds[0]


# ── clocks and memory ───────────────────────────────────────────────────────────────────────────────────────────────
def synchronize() -> None:
    """Waits for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(action: Callable[[], object], repeats: int = REPEATS, warm: bool = True) -> float:
    """Median seconds of an action, after one run that is not counted."""
    if warm:
        action()
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        action()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def memory_of(what: str, size: str, g: int) -> float:
    """Peak GiB of one step of ours or TRL's, in a process of its own."""
    command = [sys.executable, "-m", "studies.speed", "--memory-of", what, "--model", size, "--group-size", str(g)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process that measures the memory of {what} failed: {done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1])


def print_memory(what: str, size: str, g: int) -> None:
    """Runs one step and prints this process's peak."""
    device, config = ranks.start(), settings_of(g)
    with tempfile.TemporaryDirectory() as folder:
        sample = make_sample(Path(folder), PHOTO)
        if what == "trl":
            trl_seconds(size, device, sample, replace(config, steps=2), Path(folder))
        else:
            policy = make_policy(size, device)
            optimizer = torch.optim.AdamW(policy.add_lora(config.lora_layers, config.lora_rank, config.lora_alpha))
            step(make_bench(policy, sample, config), optimizer)
    print(peak_memory())


def settings_of(g: int, k: int = Config.k, t: int = 32) -> Config:
    """The paper's configuration with another G, K and T."""
    return Config(group_size=g, k=k, max_new_tokens=t)


# ── the comparison ──────────────────────────────────────────────────────────────────────────────────────────────────
def compare(size: str, device: str, g: int, with_trl: bool, folder: Path, repeats: int) -> dict:
    """Seconds, ratios, tokens and peak memory at one group size, K = 3 and T = 32."""
    policy, sample, config = make_policy(size, device), make_sample(folder, PHOTO), settings_of(g)
    optimizer = torch.optim.AdamW(policy.add_lora(config.lora_layers, config.lora_rank, config.lora_alpha), lr=config.lr)
    bench = make_bench(policy, sample, config)
    trace = replace(bench, config=replace(config, method="cot-ced"))
    repeated = half_duplicates(bench)
    actions = parts(bench) | {
        "step": partial(step, bench, optimizer),
        "audit, half duplicates": lambda: rollout.audit_answers(policy, repeated.group, bench.masks, config),
        "attribution": partial(attribution, bench),
        "audit, CoT-CED": lambda: rollout.audit_answers(policy, trace.group, bench.masks, trace.config),
    }
    bar = partial(tqdm, desc=f"G = {g}", leave=False)
    seconds = {name: timed(action, repeats) for name, action in bar(actions.items())}
    # each is a mean over G (K + 2) forwards of one shape, and half a minute long: once is enough
    seconds |= {name: timed(partial(naive_audit, bench, keep), 1, warm=False)
                for name, keep in {"naive audit": False, "naive audit, logits kept": True}.items()}  # fmt: skip
    memory = {"step": memory_of("ours", size, g)}
    if with_trl:
        seconds["TRL step"] = trl_seconds(size, device, sample, replace(config, steps=max(2, repeats)), folder)
        memory["TRL step"] = memory_of("trl", size, g)
    return {
        "seconds": seconds,
        "tokens": tokens_of(bench),
        "memory": memory,
        "audit_vs_naive": seconds["audit"] / seconds["naive audit"],
        "audit_vs_naive_half_duplicates": seconds["audit, half duplicates"] / seconds["naive audit"],
        "audit_vs_naive_logits_kept": seconds["audit"] / seconds["naive audit, logits kept"],
        "attribution_vs_audit": seconds["attribution"] / seconds["audit"],
        "cot_audit_vs_naive": seconds["audit, CoT-CED"] / seconds["naive audit"],
        "step_vs_trl": seconds["step"] / seconds["TRL step"] if with_trl else None,
        "peak_memory_vs_trl": memory["step"] / memory["TRL step"] if with_trl else None,
    }


def growth(size: str, device: str, folder: Path, axes: dict[str, Sequence[int]]) -> dict[str, list[dict]]:
    """Seconds of the prompt (encode and read), sampling, audit and update along each axis."""
    policy, rows = make_policy(size, device), {axis: [] for axis in axes}
    policy.add_lora(Config.lora_layers, Config.lora_rank, Config.lora_alpha)
    for axis, value in tqdm([(axis, value) for axis, values in axes.items() for value in values], desc="growth", leave=False):
        at = {"G": 8, "K": Config.k, "visual tokens": None, "T": 32} | {axis: value}
        columns = round((1.5 * (at["visual tokens"] or 0)) ** 0.5)  # three to two, as a photo
        pixels = (columns * CELL, round(at["visual tokens"] / columns) * CELL) if at["visual tokens"] else PHOTO
        bench = make_bench(policy, make_sample(folder, pixels), settings_of(at["G"], at["K"], at["T"]))
        s = {name: timed(action) for name, action in parts(bench).items()}
        n = bench.masks.shape[1] if axis == "visual tokens" else value
        rows[axis].append({axis: n, "prompt": s["encode"] + s["read"], "sample": s["sample"], "audit": s["audit"],
                           "reference and update": s["reference"] + s["update"]})  # fmt: skip
    return rows


def together(size: str, device: str, folder: Path, counts: Sequence[int], with_trl: bool) -> list[dict]:
    """Seconds a prompt of sampling so many prompts at once, of the same prompts one after another, and of TRL, at once."""
    policy, config, rows = make_policy(size, device), settings_of(QUICK_GROUPS[0]), []
    sample = make_sample(folder, PHOTO)
    for n in tqdm(counts, desc="together", leave=False):
        samples = [replace(sample, id=str(i)) for i in range(n)]

        def draw(at_once: int, samples: list[data.Sample] = samples) -> None:
            draws = [rollout.seeded(s.id, device=policy.device) for s in samples]
            several = replace(config, sample_rows=at_once * config.group_size)
            list(rollout.sample_groups(policy, samples, several, config.group_size, draws))

        row = {"together": timed(partial(draw, n)), "one by one": timed(partial(draw, 1))}
        if with_trl:
            row["TRL"] = trl_sampling_seconds(size, device, sample, replace(config, prompts_per_step=n), folder)
        rows.append({"prompts": n} | {name: seconds / n for name, seconds in row.items()})
    return rows


def together_table(rows: list[dict]) -> str:
    """Seconds a prompt, and what share of each way's time sampling together takes, in Markdown."""
    ways = [name for name in rows[0] if name != "prompts"]
    others = [name for name in ways if name != "together"]
    names = [f"{name}, s a prompt" for name in ways] + [f"together / {name}" for name in others]
    table = [line("prompts", names), "|---" * (1 + len(names)) + "|"]
    for row in rows:
        cells = [row[name] for name in ways] + [row["together"] / row[name] for name in others]
        table.append(line(str(row["prompts"]), [f"{cell:.2f}" for cell in cells]))
    return "\n".join(table)


RATIOS = {
    "audit_vs_naive": "audit / naive audit",
    "audit_vs_naive_half_duplicates": "the same, half of the answers duplicates",
    "audit_vs_naive_logits_kept": "audit / naive audit that projects responses alone",
    "attribution_vs_audit": "attribution / audit",
    "cot_audit_vs_naive": "CoT-CED's audit / naive audit",
    "step_vs_trl": "step with audits / TRL step without",
    "peak_memory_vs_trl": "peak memory / TRL's",
}


def comparison_table(results: dict[int, dict]) -> str:
    """Seconds, tokens, memory and ratios, a column a group size, in Markdown."""

    def lines(kind: str, label: str, form: str) -> list[str]:
        names = next(iter(results.values()))[kind]
        return [line(label.format(name), [format(r[kind][name], form) for r in results.values()]) for name in names]

    table = [line("", [f"G = {g}" for g in results]), "|---" * (len(results) + 1) + "|"]
    table += lines("seconds", "{}, s", ".2f") + lines("memory", "peak memory of the {}, GiB", ".2f")
    table += lines("tokens", "tokens, {}", ",")
    for key, label in RATIOS.items():
        ratios = [r[key] for r in results.values()]
        table.append(line(label, ["–" if x is None else f"**{x:.3f}** (1/{1 / x:.1f})" for x in ratios]))
    return "\n".join(table)


def growth_table(rows: dict[str, list[dict]]) -> str:
    """Seconds along each axis, in Markdown."""
    names = ["prompt", "sample", "audit", "reference and update"]
    table = [line("", ["", *(f"{name}, s" for name in names)]), "|---" * (len(names) + 2) + "|"]
    for axis, points in rows.items():
        table += [line(axis, [f"{point[axis]:,}", *(f"{point[name]:.2f}" for name in names)]) for point in points]
    return "\n".join(table)


def line(label: str, cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {label} | {' | '.join(cells)} |"


def hardware() -> str:
    """The machine and the versions, in a line."""
    info = Path("/proc/cpuinfo")
    rows = info.read_text().splitlines() if info.is_file() else []
    names = [row.split(":")[1].strip() for row in rows if row.startswith("model name")]
    cpu = f"{torch.get_num_threads()} threads of {(names or [platform.machine()])[0]}"
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu
    return f"{where}; torch {torch.__version__}, transformers {transformers.__version__}"


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────
def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies.speed", description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="G = 8 only, measured once, and no growth")
    parser.add_argument("--together", action="store_true", help="sampling several prompts at once, and nothing else")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--debug", action="store_true", help="show where an error of the input was met")
    parser.add_argument("--vs", choices=("auto", "trl", "none"), default="auto", help="TRL: if it is installed (auto), or not")
    parser.add_argument("--model", choices=MODELS, default="46m", help="size of the random-weight model (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/speed"), help="folder of growth.png (default: %(default)s)")
    parser.add_argument("--memory-of", choices=("ours", "trl"), help="print the peak GiB of one step of this process, and end")
    parser.add_argument("--group-size", type=int, default=GROUPS[-1], help="G of --memory-of (default: %(default)s)")
    return parser


def measure(args: argparse.Namespace) -> None:
    """Measures and prints. Raises InputError if TRL was asked for and is not there."""
    if args.vs == "trl" and not trl.installed():
        raise InputError(f"--vs trl: TRL is not installed; it is no part of requirements.txt: pip install {trl.TRL}")
    device, with_trl = ranks.start(), trl.installed() and args.vs != "none"
    with tempfile.TemporaryDirectory() as scratch:
        shared = (args.model, device)
        if args.together:
            rows = together(*shared, Path(scratch), TOGETHER, with_trl)
            print(json.dumps(rows) if args.json else f"{hardware()}\n\n{together_table(rows)}")
            return
        groups, repeats = (QUICK_GROUPS, 1) if args.quick else (GROUPS, REPEATS)
        results = {g: compare(*shared, g, with_trl, Path(scratch), repeats) for g in groups}
        rows = {} if args.quick else growth(*shared, Path(scratch), GROWTH)
    if rows:
        args.out.mkdir(parents=True, exist_ok=True)
        pictures.growth(rows, args.out / "growth.png")
    if args.json:
        largest = results[groups[-1]]
        more = {"group_size": groups[-1], "by_group_size": results, "growth": rows, "hardware": hardware()}
        print(json.dumps(largest | more))
        return
    print(hardware(), comparison_table(results), sep="\n\n")
    if rows:
        print("", growth_table(rows), f"\nwrote {args.out}/growth.png", sep="\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    args = make_parser().parse_args(argv)
    if args.memory_of:
        return ranks.command("studies.speed", lambda: print_memory(args.memory_of, args.model, args.group_size), args.debug)
    return ranks.command("studies.speed", lambda: measure(args), args.debug)


if __name__ == "__main__":
    sys.exit(main())
