"""The two pictures of a run, learning curves and the audit sheet, which shows CED at work on real rollouts; and those of
comparisons, diagnostics and speed."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill, shorten

import matplotlib

matplotlib.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Rectangle
from torch import Tensor

import ced
import data
from answers import answer_text

EVIDENCE, NULL = "#d95f02", "#1b6ca8"
SMOOTH = 10  # steps of the running mean drawn over each raw curve


def save(figure: plt.Figure, path: Path, dpi: int = 110) -> None:
    """Writes a figure as an image and lets go of it."""
    figure.savefig(path, dpi=dpi)
    plt.close(figure)


def learning_curves(rows: Sequence[dict], path: Path) -> None:
    """Nine panels over the steps of log.jsonl: each curve raw and as a running mean; what was held out as points."""
    families = [f for f in data.FAMILIES + data.CONTEXTS if any(f in row["margin"] for row in rows)]
    panels = [
        ("reward and accuracy", ["reward", "accuracy"]),
        ("margin m of audited answers", [f"margin.{f}" for f in families]),
        ("gate g(m) of audited answers", ["gate"]),
        ("within-group signal (share of groups)", ["zero_variance", "same_answer_different_reward"]),
        ("mean size of the advantages |A|", ["advantage"]),
        ("distinct texts of a group", ["distinct"]),
        ("share of look chains (toy world)", ["look_share"]),
        ("KL to the reference", ["kl"]),
        ("response length (tokens)", ["response_length"]),
    ]
    splits = list(dict.fromkeys(split for row in rows for split in row.get("held_out", ())))
    figure, axes = plt.subplots(3, 3, figsize=(13, 9), layout="constrained")
    for axis, (title, names) in zip(axes.flat, panels):
        for name in names:
            values = np.array([lookup(row, name) for row in rows], dtype=float)
            (line,) = axis.plot(values, alpha=0.25, linewidth=0.8)
            axis.plot(running_mean(values), color=line.get_color(), label=name.removeprefix("margin."))
        for name, (i, split) in itertools.product(set(names) & {"accuracy", "look_share"}, enumerate(splits)):
            points = [lookup(row, f"held_out.{split}.all.{name}") for row in rows]  # NaN, not drawn, at most steps
            axis.plot(np.array(points, dtype=float), f"oC{2 + i}", markersize=4, label=f"{name} on {split}, held out")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step", fontsize=8)
        axis.grid(alpha=0.2)
        if len(axis.get_legend_handles_labels()[0]) > 1:
            axis.legend(fontsize=8)
    save(figure, path)


def comparison(logs: dict[str, Sequence[Sequence[dict]]], path: Path) -> None:
    """Four panels over the steps: by method, the mean of its runs' running means, in a band from the lowest run to the highest.

    logs holds the rows of log.jsonl of each run of a method.
    """
    panels = {
        "share of look chains (toy world)": "look_share",
        "response length (tokens)": "response_length",
        "groups of equal rewards (share)": "zero_variance",
        "reward (each method's own)": "reward",
    }
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    for axis, (title, name) in zip(axes.flat, panels.items()):
        for method, runs in logs.items():
            curves = np.array([running_mean(np.array([lookup(row, name) for row in rows])) for rows in runs])  # (runs, steps)
            (line,) = axis.plot(curves.mean(0), label=method)
            band = curves.min(0), curves.max(0)
            axis.fill_between(np.arange(curves.shape[1]), *band, color=line.get_color(), alpha=0.2, linewidth=0)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step", fontsize=8)
        axis.grid(alpha=0.2)
    axes[0, 0].legend(fontsize=8)
    save(figure, path)


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
    """A judged group to show: see `rollout.Group` and `rollout.Judgement`."""

    sample: data.Sample
    grid: tuple[int, int]
    masks: Tensor  # (E, N)
    null_boxes: Tensor  # (≤ K, n, 4)
    texts: list[str]  # G of them
    correct: Tensor  # (G,) bool
    audited: Tensor  # (G,) bool
    s: Tensor  # (E, G)
    m: Tensor  # (G,)
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
    save(figure, path)


def two_alike(example: Example) -> tuple[int, int]:
    """The pair of audited answers with the same text whose rewards differ most (any two answers if none are alike)."""
    texts = [answer_text(t) for t in example.texts]
    audited = example.audited.tolist()
    r = example.rewards.tolist()
    pairs = [(i, j) for i in range(len(r)) for j in range(len(r)) if i != j and r[i] >= r[j]]
    alike = [(i, j) for i, j in pairs if texts[i] == texts[j] and audited[i] and audited[j]]
    return max(alike or pairs, key=lambda p: (r[p[0]] - r[p[1]], example.m[p[0]] - example.m[p[1]]))


def draw_regions(axis: plt.Axes, example: Example) -> None:
    """The image; its token grid; boxes and tokens of the evidence (orange) and of the K null regions (blue)."""
    sample = example.sample
    axis.imshow(data.open_image(sample.image))
    for mask, color in zip(example.masks.flip(0), [NULL] * (len(example.masks) - 1) + [EVIDENCE]):
        tint_tokens(axis, mask, sample.size, example.grid, color)
    regions = [(sample.boxes, EVIDENCE, "-"), *((boxes.tolist(), NULL, "--") for boxes in example.null_boxes)]
    for boxes, color, style in regions:
        for x, y, w, h in boxes:
            axis.add_patch(Rectangle((x, y), w, h, fill=False, edgecolor=color, linestyle=style, linewidth=2))
    placed, k = len(example.null_boxes), len(example.masks) - 1
    nulls = f"null regions: {placed} placed" + (f", {k - placed} of random tokens" if placed < k else "")
    title = f"{sample.family}: {fill(sample.question, width=48)}\nright answer: {sample.answer}; {nulls}"
    axis.set_title(title, fontsize=9, parse_math=False)  # "$5" is no formula
    axis.set_axis_off()


def draw_grid(axis: plt.Axes, size: tuple[int, int], grid: tuple[int, int]) -> None:
    """The lines between the visual tokens of an image of size (width, height)."""
    axis.set_xticks([c * size[0] / grid[1] - 0.5 for c in range(grid[1] + 1)], [])
    axis.set_yticks([r * size[1] / grid[0] - 0.5 for r in range(grid[0] + 1)], [])
    axis.grid(color="white", alpha=0.4, linewidth=0.5)


def tint_tokens(
    axis: plt.Axes, mask: Tensor, size: tuple[int, int], grid: tuple[int, int], color: str, alpha: float = 0.3
) -> None:
    """Colors the cells of the visual tokens in a mask (N,) over an image of size (width, height)."""
    width, height = size[0] / grid[1], size[1] / grid[0]
    for row, column in mask.view(grid).nonzero().tolist():
        corner = (column * width - 0.5, row * height - 0.5)  # imshow puts the first pixel's centre at 0
        axis.add_patch(Rectangle(corner, width, height, color=color, alpha=alpha, linewidth=0))


def draw_sensitivities(axis: plt.Axes, example: Example, i: int) -> None:
    """s of every region for answer i, with its text, m, g and R."""
    s = example.s[:, i].tolist()
    names = ["evidence", *(f"null {k}" for k in range(1, len(s)))]
    bars = axis.bar(names, s, color=[EVIDENCE] + [NULL] * (len(s) - 1))
    axis.bar_label(bars, labels=[nats(value) for value in s], fontsize=8, padding=2)
    axis.margins(y=0.15)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_ylabel("s (nats)", fontsize=8)
    axis.tick_params(labelsize=8)
    m, g, r = float(example.m[i]), float(example.gates[i]), float(example.rewards[i])
    verdict = "right" if example.correct[i] else "wrong"
    routed = " (by correctness)" if example.sample.family == "presence" else ""
    text = shorten(example.texts[i].split("<|im_end|>")[0], width=100, placeholder=" …")
    title = f"{fill(text, width=58)}\n{verdict}   m = {m:+.2f}   g = {g:.2f}   R = {r:.2f}{routed}"
    axis.set_title(title, fontsize=9, parse_math=False)


def nats(s: float) -> str:
    """A sensitivity as the label of its bar: two significant digits, and round-off as what it is, 0.00."""
    return "0.00" if abs(s) < 0.005 else f"{s:.2g}"


def flow(example: Example, advantages: Tensor, width: int, path: Path) -> None:
    """From the picture to the advantage, left to right, for two answers that say the same. width: D, of a visual token."""
    figure = plt.figure(figsize=(15, 4.8), layout="constrained")
    seen, edits, bars = figure.subfigures(1, 3, width_ratios=(1, 1.05, 2.6))
    n, (r, g), sample = example.masks.shape[1], example.s.shape, example.sample
    axis = seen.subplots()
    draw_evidence(axis, sample)
    draw_grid(axis, sample.size, example.grid)
    rows, columns = example.grid
    axis.set_title(f"{sample.question}\n{rows} × {columns} visual tokens (N, D) = ({n}, {width})", fontsize=9)
    edits.suptitle(f"Eq. 1: 1 + K edits ({r}, {n}, {width})", fontsize=9)
    for k, (axis, mask) in enumerate(zip(edits.subplots(-(-r // 2), 2, squeeze=False).flat, example.masks)):
        axis.imshow(data.open_image(sample.image))
        tint_tokens(axis, mask, sample.size, example.grid, "#777777", alpha=1.0)
        axis.set_title("without the evidence" if k == 0 else f"without null {k}", color=NULL if k else EVIDENCE, fontsize=8)
        axis.set_axis_off()
    bars.suptitle(f"Eq. 2: s ({r}, {g})  →  Eq. 3: m ({g},)  →  Eq. 5: g  →  Eq. 4: R  →  A", fontsize=9)
    axes = bars.subplots(2, 1, sharey=True)
    for axis, i in zip(axes, two_alike(example)):
        draw_sensitivities(axis, example, i)
        axis.set_title(f"{axis.get_title()}   A = {float(advantages[i]):+.2f}", fontsize=9, parse_math=False)
    save(figure, path)


def draw_evidence(axis: plt.Axes, sample: data.Sample) -> None:
    """The image and the boxes of the Evidence Region."""
    axis.imshow(data.open_image(sample.image))
    for x, y, w, h in sample.boxes:
        axis.add_patch(Rectangle((x, y), w, h, fill=False, edgecolor=EVIDENCE, linewidth=2))


def token_sheet(sample: data.Sample, grids: dict[str, tuple[int, int]], path: Path) -> None:
    """One sample's evidence boxes, and the tokens that `ced.region_tokens` gives them in each named grid."""
    figure, axes = plt.subplots(1, len(grids), figsize=(6 * len(grids), 4.6), squeeze=False, layout="constrained")
    for axis, (name, grid) in zip(axes.flat, grids.items()):
        draw_evidence(axis, sample)
        mask = ced.region_tokens(torch.tensor(sample.boxes), sample.size, grid)
        tint_tokens(axis, mask, sample.size, grid, EVIDENCE)
        draw_grid(axis, sample.size, grid)
        axis.set_title(f"{name}: {grid[0]} x {grid[1]} tokens, {int(mask.sum())} of the evidence", fontsize=10)
    save(figure, path, dpi=90)


def growth(rows: dict[str, list[dict]], path: Path) -> None:
    """Seconds of each part of a step along each axis of `studies.speed.growth`, one panel an axis."""
    figure, axes = plt.subplots(1, len(rows), figsize=(4 * len(rows), 3.6), layout="constrained")
    for axis, (name, points) in zip(axes, rows.items()):
        x = [point[name] for point in points]
        for part in (key for key in points[0] if key != name):
            axis.plot(x, [point[part] for point in points], marker="o", markersize=3, label=part)
        axis.set_xlabel(name, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.2)
    axes[0].set_ylabel("seconds", fontsize=9)
    axes[0].legend(fontsize=8)
    save(figure, path)


# ── the diagnostics ─────────────────────────────────────────────────────────────────────────────────────────────────
def estimates(rows: Sequence[dict]) -> plt.Figure:
    """A panel for every column of estimates ({value, low, high}) of a diagnostic's rows: a point and a line for each row."""
    columns = list(dict.fromkeys(name for row in rows for name, cell in row.items() if isinstance(cell, dict)))
    height = 1.5 + 0.22 * max(sum(name in row for row in rows) for name in columns)
    figure, axes = plt.subplots(1, len(columns), figsize=(5 * len(columns), height), squeeze=False, layout="constrained")
    for axis, name in zip(axes.flat, columns):
        shown = [row for row in rows if name in row]
        for y, row in enumerate(shown):
            axis.hlines(y, row[name]["low"], row[name]["high"], color=NULL)
            axis.plot(row[name]["value"], y, "o", color=EVIDENCE, markersize=5)
        words = [[cell for key, cell in row.items() if isinstance(cell, str) and key != "verdict"] for row in shown]
        axis.set_yticks(range(len(shown)), [", ".join(w) for w in words], fontsize=8)
        axis.invert_yaxis()
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(name, fontsize=10)
        axis.grid(alpha=0.2)
    return figure


def risk_coverage(curves: dict[str, np.ndarray]) -> plt.Figure:
    """The share of wrong answers (risk) among the most confident ones, against their share of all answers (coverage)."""
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, risk in curves.items():
        axis.plot(np.arange(1, len(risk) + 1) / len(risk), risk, label=name)
    axis.set(xlabel="coverage: share of the answers that are kept", ylabel="risk: share of those that are wrong")
    axis.grid(alpha=0.2)
    axis.legend()
    return figure


def attributions(examples: Sequence[Example], found: Sequence[Tensor]) -> plt.Figure:
    """One row a group: the image, what each visual token adds to log π of the right answer (N,), the evidence region that this
    makes with its nulls, and their s for one answer, a right one if there is any."""
    figure, axes = plt.subplots(len(examples), 4, figsize=(16, 3.6 * len(examples)), squeeze=False, layout="constrained")
    for (plain, heat, regions, bars), example, nats in zip(axes, examples, found):
        image, (width, height) = data.open_image(example.sample.image), example.sample.size
        plain.imshow(image)
        plain.set_title(fill(example.sample.question, width=40), fontsize=9, parse_math=False)
        heat.imshow(image.convert("L"), cmap="gray")
        most, extent = float(nats.abs().max()) or 1.0, (-0.5, width - 0.5, height - 0.5, -0.5)
        drawn = heat.imshow(nats.view(example.grid).numpy(), cmap="PuOr_r", vmin=-most, vmax=most, alpha=0.65, extent=extent)
        figure.colorbar(drawn, ax=heat, shrink=0.8).ax.tick_params(labelsize=7)
        heat.set_title(f"what speaks for \u201c{example.sample.answer}\u201d (nats)", fontsize=9, parse_math=False)
        for axis in (plain, heat):
            axis.set_axis_off()
        draw_regions(regions, example)
        draw_sensitivities(bars, example, int((example.audited * (1 + 1 * example.correct)).argmax()))
    return figure


def one_audit(example: Example) -> plt.Figure:
    """The regions of one question, and s, m, g and R of its one answer."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    draw_regions(left, example)
    draw_sensitivities(right, example, 0)
    return figure
