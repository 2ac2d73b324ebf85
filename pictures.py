"""The two pictures of a run: its learning curves, and the audit sheet, which shows CED at work on real rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill, shorten

import matplotlib

matplotlib.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle
from torch import Tensor

import data
from answers import answer_text
from rollout import Group, Judgement

EVIDENCE, NULL, GRID = "#d95f02", "#1b6ca8", "#ffffff"
SMOOTH = 10  # steps of the running mean drawn over each raw curve


def learning_curves(rows: Sequence[dict], path: Path) -> None:
    """Six panels over the steps of log.jsonl: each curve raw and as a running mean."""
    panels = [
        ("reward and accuracy", ["reward", "accuracy"]),
        ("margin m of audited answers", [f"margin.{f}" for f in data.FAMILIES]),
        ("within-group signal (share of groups)", ["zero_variance", "same_answer_different_reward"]),
        ("share of look chains (toy world)", ["look_share"]),
        ("KL to the reference", ["kl"]),
        ("response length (tokens)", ["response_length"]),
    ]
    figure, axes = plt.subplots(2, 3, figsize=(13, 6), layout="constrained")
    for axis, (title, names) in zip(axes.flat, panels):
        for name in names:
            values = np.array([lookup(row, name) for row in rows], dtype=float)
            (line,) = axis.plot(values, alpha=0.25, linewidth=0.8)
            axis.plot(running_mean(values), color=line.get_color(), label=name.removeprefix("margin."))
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step", fontsize=8)
        axis.grid(alpha=0.2)
        if len(names) > 1:
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def lookup(row: dict, name: str) -> float:
    """row["margin"]["counting"] for `margin.counting`; NaN where a step had no such family."""
    for key in name.split("."):
        row = row.get(key, float("nan")) if isinstance(row, dict) else row
    return row


def running_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the last SMOOTH values, NaN left out."""
    windows = [values[max(0, i + 1 - SMOOTH) : i + 1] for i in range(len(values))]
    return np.array([np.nanmean(w) if np.isfinite(w).any() else np.nan for w in windows])


@dataclass(frozen=True)
class Example:
    """A judged group to show."""

    group: Group
    judgement: Judgement
    gates: Tensor  # (G,) g(m)
    rewards: Tensor  # (G,) R


def audit_sheet(examples: Sequence[Example], path: Path) -> None:
    """One row a group: the image with evidence and null regions, and s, m, g, R of two answers that say the same."""
    figure, axes = plt.subplots(len(examples), 3, figsize=(14, 3.6 * len(examples)), squeeze=False, layout="constrained")
    for row, example in zip(axes, examples):
        draw_regions(row[0], example)
        row[2].sharey(row[1])  # one scale: a support that does not fall should look as small as it is
        for axis, i in zip(row[1:], two_alike(example)):
            draw_sensitivities(axis, example, i)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def two_alike(example: Example) -> tuple[int, int]:
    """The pair of audited answers with the same text whose rewards differ most (any two answers if none are alike)."""
    texts = [answer_text(t) for t in example.group.texts]
    audited = example.judgement.audited.tolist()
    r = example.rewards.tolist()
    pairs = [(i, j) for i in range(len(r)) for j in range(len(r)) if i != j and r[i] >= r[j]]
    alike = [(i, j) for i, j in pairs if texts[i] == texts[j] and audited[i] and audited[j]]
    return max(alike or pairs, key=lambda p: (r[p[0]] - r[p[1]], example.judgement.m[p[0]] - example.judgement.m[p[1]]))


def draw_regions(axis: plt.Axes, example: Example) -> None:
    """The image; its token grid; boxes and tokens of the evidence (orange) and of the K null regions (blue)."""
    sample, vision, judgement = example.group.sample, example.group.vision, example.judgement
    width, height = sample.size
    axis.imshow(data.open_image(sample.image), extent=(0, width, height, 0))
    rows, columns = vision.grid
    for mask, color in zip(judgement.masks.flip(0), [NULL] * (len(judgement.masks) - 1) + [EVIDENCE]):
        for i in mask.nonzero().flatten().tolist():
            cell = (i % columns * width / columns, i // columns * height / rows)
            axis.add_patch(Rectangle(cell, width / columns, height / rows, color=color, alpha=0.3, linewidth=0))
    regions = [(sample.boxes, EVIDENCE, "-"), *((boxes.tolist(), NULL, "--") for boxes in judgement.null_boxes)]
    for boxes, color, style in regions:
        for x, y, w, h in boxes:
            axis.add_patch(Rectangle((x, y), w, h, fill=False, edgecolor=color, linestyle=style, linewidth=2))
    axis.set_title(f"{sample.family}: {fill(sample.question, width=48)}\nright answer: {sample.answer}", fontsize=9)
    axis.set_axis_off()


def draw_sensitivities(axis: plt.Axes, example: Example, i: int) -> None:
    """s of every region for answer i, with its text, m, g and R."""
    s = example.judgement.s[:, i].tolist()
    names = ["evidence", *(f"null {k}" for k in range(1, len(s)))]
    bars = axis.bar(names, s, color=[EVIDENCE] + [NULL] * (len(s) - 1))
    axis.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    axis.margins(y=0.15)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_ylabel("s (nats)", fontsize=8)
    axis.tick_params(labelsize=8)
    m, g, r = float(example.judgement.m[i]), float(example.gates[i]), float(example.rewards[i])
    verdict = "right" if example.judgement.correct[i] else "wrong"
    routed = "  (presence: by correctness alone)" if example.group.sample.family == "presence" else ""
    text = shorten(example.group.texts[i].split("<|im_end|>")[0], width=100, placeholder=" …")
    title = f"{fill(text, width=58)}\n{verdict}   m = {m:+.2f}   g = {g:.2f}   R = {r:.2f}{routed}"
    axis.set_title(title, fontsize=9, parse_math=False)
