"""The tables and the figure of `studies.evisrag`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
import numpy as np

from support import stats

Counts = Callable[[dict], tuple[float, float]]
METRICS: dict[str, Counts] = {  # a share: what is counted of a response, and of how many
    "overall": lambda r: (r["correct"], 1),
    "accuracy, sufficient": lambda r: (r["correct"] * r["sufficient"], r["sufficient"]),
    "abstention, insufficient": lambda r: (r["correct"] * (not r["sufficient"]), not r["sufficient"]),
    "evidence F1": lambda r: (2 * r["told"], r["said"] + r["gold"]),
    "follows": lambda r: (r["follows"] * r["record"], r["record"]),
    "format": lambda r: (r["format"], 1),
}
OF_RECORDS = ("evidence F1", "follows", "format")  # what a chain without stages has none of
WINDOW = 10  # steps over which a curve is averaged
COLUMNS = 3  # of the figure's panels


# ── cells ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def counts(metric: str, seeds: Sequence[list[dict]]) -> np.ndarray:
    """A metric's two counts of every question, summed over seeds: (n, 2)."""
    return np.array([[METRICS[metric](row) for row in rows] for rows in seeds], dtype=float).sum(0)


def ratio(values: np.ndarray) -> float:
    """The share that counts (n, 2) make; NaN of nothing."""
    return float(values[:, 0].sum() / values[:, 1].sum()) if values[:, 1].sum() else float("nan")


def cell(values: np.ndarray) -> dict:
    """A share and its 95 % interval over questions."""
    return stats.estimate(ratio(values), stats.bootstrap(len(values), lambda rows: ratio(values[rows]), 0))


def gain(before: np.ndarray, after: np.ndarray) -> dict:
    """The difference of two shares of the same questions, and its 95 % interval."""
    draws = stats.bootstrap(len(before), lambda rows: ratio(after[rows]) - ratio(before[rows]), 0)
    return stats.estimate(ratio(after) - ratio(before), draws)


def show(one: dict) -> str:
    """`0.88 [0.85, 0.90]`."""
    return f"{one['value']:.2f} [{one['low']:.2f}, {one['high']:.2f}]" if one["value"] == one["value"] else "–"


def table(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first line is its head."""
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def scores_table(results: dict, contexts: str, keep: Callable[[dict], bool] = lambda row: True) -> str:
    """Every metric of base and runs, pooled over seeds, on constructed or retrieved contexts."""
    lines = [["", "seeds", *METRICS, "seconds a run"]]
    everyone = {f"base, {name}": {0: part} for name, part in results["base"].items()} | results["runs"]
    for name, by_seed in everyone.items():
        parts = [part[contexts] for part in by_seed.values() if contexts in part]
        rows = [[row for row in part if keep(row)] for part in parts]
        if not rows or not rows[0]:
            continue
        shown = ["–" if "generic" in name and metric in OF_RECORDS else show(cell(counts(metric, rows))) for metric in METRICS]
        seconds = sum(part["seconds"] for part in by_seed.values()) / len(by_seed)
        lines.append([name, " ".join(map(str, by_seed)), *shown, f"{seconds:.0f}"])
    return table(lines)


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Which runs are compared: `rs` of a setting with each other one of it."""
    settings = {name: name.partition(", ")[2] for name in names}
    return [(other, name) for name in names if name.partition(", ")[0] == "rs"
            for other in names if other != name and settings[other] == settings[name]]  # fmt: skip


def gains_table(results: dict) -> str:
    """Paired differences of RS-GRPO over each other run of its setting: at the end, and over all of training."""
    lines = [["", "overall", "accuracy, sufficient", "evidence F1", "training accuracy, mean over steps"]]
    for other, name in pairs(list(results["runs"])):
        seeds = [seed for seed in results["runs"][name] if seed in results["runs"][other]]
        a, b = ([results["runs"][who][seed] for seed in seeds] for who in (other, name))
        cells = []
        for metric in ("overall", "accuracy, sufficient", "evidence F1"):
            before, after = (counts(metric, [part["constructed"] for part in parts]) for parts in (a, b))
            generic = "generic" in other and metric in OF_RECORDS
            cells.append("–" if generic else signed(gain(before, after)))
        first, second = ([np.mean([row["accuracy"] for row in part["log"]]) for part in parts] for parts in (a, b))
        lines.append([f"{name} − {other}", *cells, " ".join(f"{y - x:+.3f}" for x, y in zip(first, second))])
    return table(lines)


def signed(one: dict) -> str:
    """`+0.02 [-0.01, 0.05]`."""
    return f"{one['value']:+.2f} [{one['low']:+.2f}, {one['high']:+.2f}]"


def recall_table(part: dict) -> str:
    """Recall of the retriever."""
    ks = list(part["chance"])
    kinds = list(part["recall"]["before"])
    lines = [["", *(f"{kind}, recall@{k}" for kind in kinds for k in ks)]]
    lines += [[name, *(show(row[kind][k]) for kind in kinds for k in ks)] for name, row in part["recall"].items()]
    return table([*lines, ["chance", *(f"{part['chance'][k]:.3f}" for _ in kinds for k in ks)]])


def audit_table(part: dict) -> str:
    """Whose tokens look."""
    lines = [["audited", "mean m, right records", "wrong records", "AUC", "n"]]
    for span in ("evidence", "answer"):
        numbers = ["–" if part[span][of] is None else f"{part[span][of]:.2f}" for of in ("right", "wrong", "AUC")]
        lines.append([span, *numbers, " + ".join(map(str, part[span]["n"]))])
    return table(lines)


def markdown(results: dict) -> str:
    """All tables of a study."""
    parts = [results["retrieve"], results["audit"], *results["base"].values()]
    parts += [part for by_seed in results["runs"].values() for part in by_seed.values()]
    return "\n\n".join([
        f"{sum(part['seconds'] for part in parts) / 60:.1f} minutes of processor time in all",
        f"## retrieval: {results['retrieve']['queries']} queries of each kind", recall_table(results["retrieve"]),
        "## whose tokens look", audit_table(results["audit"]),
        "## constructed contexts", scores_table(results, "constructed"),
        "## retrieved pages, none of them with the class in another color",
        scores_table(results, "retrieved", lambda row: not row["near"]),
        "## retrieved pages, some with the class in another color",
        scores_table(results, "retrieved", lambda row: row["near"] > 0),
        "## RS-GRPO against the others, constructed contexts; the last column has a seed each", gains_table(results),
    ])  # fmt: skip


# ── figure ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def smooth(values: Sequence[float]) -> np.ndarray:
    """The mean of WINDOW steps at a time."""
    width = min(WINDOW, len(values))
    return np.convolve(values, np.ones(width) / width, "valid")


def draw(results: dict, path: Path) -> None:
    """Accuracy while training, a curve a run and a panel a setting: the mean over seeds, and all of them as a band."""
    settings = list(dict.fromkeys(name.partition(", ")[2] for name in results["runs"]))
    columns = min(len(settings), COLUMNS)
    rows = -(-len(settings) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1 + 4.5 * columns, 3.8 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat[len(settings) :]:
        axis.axis("off")
    for axis, setting in zip(axes.flat, settings):
        for name, by_seed in results["runs"].items():
            if name.partition(", ")[2] == setting and by_seed:
                curves = np.array([smooth([row["accuracy"] for row in part["log"]]) for part in by_seed.values()])
                x = np.arange(curves.shape[1]) + WINDOW / 2
                axis.plot(x, curves.mean(0), label=name.partition(", ")[0])
                axis.fill_between(x, curves.min(0), curves.max(0), alpha=0.12)
        axis.set(xlabel="step", ylabel="answers that are right, training", ylim=(0, 1))
        axis.set_title(setting or "clean rewards, three pages", fontsize=10)
        axis.grid(alpha=0.2)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
