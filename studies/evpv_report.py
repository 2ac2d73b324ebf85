"""The tables and the figure of `studies.evpv`."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt

COLUMNS = ("F1", "F1 of looks", "F1 at 0", "right of 8", "right of 16", "sound of 16")
KINDS = ("shuffle", "drop", "perturb")


def number(cell: dict | None, interval: bool = False) -> str:
    """A cell of a table."""
    if cell is None:
        return ""
    return f"{cell['value']:.2f}" + (f" [{cell['low']:.2f}, {cell['high']:.2f}]" if interval else "")


def both(row: dict, column: str, splits: Sequence[str]) -> str:
    """A column's cells of all splits."""
    cells = [row[split].get(column) for split in splits]
    return " / ".join(map(number, cells)) if any(cells) else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rewards_table(rows: dict, splits: Sequence[str], columns: Sequence[str] = COLUMNS) -> str:
    """What each gate is worth."""
    lines = [[name, f"{row['kappa']:.2f}" if "kappa" in row else "", *(both(row, c, splits) for c in columns)]
             for name, row in rows.items()]  # fmt: skip
    return table(["", "κ", *columns], lines)


def roles_table(rows: dict) -> str:
    """What each role is worth."""
    names = next(iter(rows.values()))
    return table(["", *rows], [[name, *(f"{row[name]:.3f}" for row in rows.values())] for name in names])


def corruption_table(rows: Sequence[dict], splits: Sequence[str]) -> str:
    """The curves, one line each."""
    lines: dict = {}
    for row in rows:
        for of in ("F1", "right of 16"):
            lines.setdefault((row["how"], row["kind"], of, row["split"]), []).append(row[of])
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    keys = sorted(lines, key=lambda key: (key[0], key[2], KINDS.index(key[1]), list(splits).index(key[3])))
    body = [[*key, *(number(c) for c in lines[key]), "yes" if falls(lines[key]) else "no"] for key in keys]
    return table(["gate", "facts", "of", "split", *map(str, rates), "falls"], body)


def falls(cells: Sequence[dict]) -> bool:
    """Whether a curve never rises by more than its intervals allow, and ends below where it began."""
    steps = all(b["value"] <= a["high"] for a, b in zip(cells, cells[1:]))
    return steps and cells[-1]["value"] < cells[0]["value"]


def markdown(results: dict) -> str:
    """All tables of a run."""
    splits = list(results["roles"])
    head = " / ".join(splits)
    gains = {name: {split: results["gains"][split][name] for split in splits} for name in results["gains"][splits[0]]}
    checked: dict = {}
    for row in results["checklist"]:
        checked.setdefault(row["what"], {})[row["split"]] = row
    ced = results["ced"]
    parts = [
        f"seed {results['seed']}, {results['questions']} questions a split, 16 solutions each; cells are {head}; "
        f"{results['seconds']['all']:.0f} s of one core, {results['seconds']['training']:.0f} of them training",
        "## the roles", roles_table(results["roles"]),
        "## what a gate is worth", rewards_table(results["table"], splits),
        "## paired differences, 95 % intervals over questions",
        table(["", *splits], [[name, *(number(cells[s], True) for s in splits)] for name, cells in gains.items()]),
        "## corrupted facts (EVPV's κ left as it was)", corruption_table(results["corruption"], splits),
        "## the checklist: claims left out or added", table(
            ["claims", "F1", "right of 16"],
            [[name, *(both(row, of, splits) for of in ("F1", "right of 16"))] for name, row in checked.items()]),
        "## CED of looks, best of 16", table(
            ["", "right", "sound"], [[n, both(r, "right of 16", splits), both(r, "sound of 16", splits)]
                                     for n, r in ced["best of 16"].items()]),
        "AUROC of m, true against false looks: "
        + " / ".join(f"{value:.2f}" for value in ced["AUROC of true against false looks"].values()),
    ]  # fmt: skip
    for other in results.get("others", []):
        parts += [f"## {other['what']}", roles_table(other["roles"]), rewards_table(other["table"], splits)]
    return "\n\n".join(parts)


def draw(results: dict, path: Path) -> None:
    """Best of 16 by gate, and Macro-F1 and best of 16 under corrupted facts."""
    splits, names = list(results["roles"]), [name for name, row in results["table"].items() if "right of 16" in row["conflict"]]
    figure, axes = plt.subplots(1, 1 + len(splits), figsize=(15, 4.2), layout="constrained")
    for i, split in enumerate(splits):
        cells = [results["table"][name][split]["right of 16"] for name in names]
        places = [y + 0.36 * i for y in range(len(names))]
        axes[0].barh(places, [c["value"] for c in cells], 0.34, label=split,
                     xerr=[[c["value"] - c["low"] for c in cells], [c["high"] - c["value"] for c in cells]])  # fmt: skip
    axes[0].set_yticks([y + 0.18 for y in range(len(names))], names, fontsize=8)
    axes[0].invert_yaxis()
    axes[0].set_title("right answers, best of 16", fontsize=10)
    axes[0].legend(fontsize=8)
    for axis, split in zip(axes[1:], splits):
        for kind, color in zip(KINDS, ("C0", "C1", "C2")):
            rows = [r for r in results["corruption"] if (r["how"], r["kind"], r["split"]) == ("trajectory", kind, split)]
            for of, style in (("F1", "-"), ("right of 16", "--")):
                x, y = [r["rate"] for r in rows], [r[of]["value"] for r in rows]
                axis.plot(x, y, style, color=color, marker="o", markersize=3, label=f"{kind}, {of}")
                axis.fill_between(x, [r[of]["low"] for r in rows], [r[of]["high"] for r in rows], color=color, alpha=0.1)
        axis.set(xlabel="share of facts that are corrupted", ylim=(0.3, 1))
        axis.set_title(f"EVPV, {split}", fontsize=10)
        axis.grid(alpha=0.2)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
