"""EVPV on real verifiers: VisualProcessBench, and the best of N solutions to one's own questions.

python -m benchmarks.processbench bench --backbone qwen2.5-vl-7b [--source DIR] [--limit N]        → runs/BACKBONE-base/evpv
python -m benchmarks.processbench best-of-n --run runs/x | --backbone B --data samples.jsonl [--n 8]

One prompted backbone plays all roles. Facts C are asked for once an image; u_t is read off the log-odds of yes against no to
"is the last step right?"; and where a solution has no checklist, as in VisualProcessBench, the backbone is asked which facts
of the image each given step states. That is a parser of claims, not a report of the policy's own: a departure from the paper
(whose released code has no claims on this benchmark). Facts or claims that cannot be read are UNKNOWN, counted and printed; a
solution that cannot be read scores 0.

κ, above which a step is called right, is tuned on the other half of the questions, for every gate alike: at κ = 0 a gate that
attenuates changes nothing. Batches, resume and ranks are the harness's: a line a row, written as it is answered.
"""

import argparse
import ast
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import data
import train
from answers import is_correct, judged
from benchmarks import harness, tasks
from benchmarks.harness import Asking
from benchmarks.tasks import Row
from config import Config, InputError, flag, load_config
from models import Policy, Vision, chat_prompt, project, seeded
from related.evpv import (
    HOW,
    Triple,
    as_triples,
    best_of_n,
    macro_f1,
    step_rewards,
    support,
    threshold,
    trajectory_score,
    triples,
)  # fmt: skip
from support import ranks
from support.questions import load_samples
from support.stats import wilson

HUB, NAME, ROWS = "OpenGVLab/VisualProcessBench", "visualprocessbench", 2866
PATTERNS = ["test.jsonl", "images/*"]
TRIPLES = (
    "a JSON list of [predicate, subject, value], such as "
    '[["count", "red circles", 3], ["length", "AB", 10], ["left of", "point A", "point B"]]'
)
FACTS = f"{{question}}\nDo not answer. List the facts of the image that matter to this question, as {TRIPLES}. Only the list."
CLAIMS = (
    "{question}\nA step of a solution reads:\n{step}\nWhich facts of the image does this step state as seen? "
    f"Give {TRIPLES}, or null if it states none. Only that."
)
VERDICT = "{question}\nA solution begins:\n{steps}\nIs its last step right? Answer yes or no."
CHAIN = (
    '{question}\nSolve this step by step. Answer in JSON only: {{"steps": [{{"text": "...", "look": LIST or null}}, ...], '
    f'"answer": "..."}}}}, where LIST holds the facts of the image on which the step rests, as {TRIPLES}.'
)


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def process_rows(folder: Path) -> list[Row]:
    """The rows of folder/test.jsonl. Raises InputError, naming the line."""
    path, rows = folder / "test.jsonl", []
    for number, raw in enumerate(tasks.read_rows(path), start=1):
        try:
            rows.append(process_row(str(number - 1), raw))
        except (KeyError, TypeError, ValueError, SyntaxError) as error:
            raise InputError(
                f"{path}, line {number}: expected image, question, and a response of steps with a process_correctness 1, 0 or "
                f"-1 each; found {type(error).__name__}: {error}"
            ) from error
    return rows


def process_row(name: str, raw: dict) -> Row:
    """One row: meta holds `steps`, their `labels` (1, 0 neutral, −1) and the `source`. Raises what a malformed one meets."""
    response = raw["response"] if isinstance(raw["response"], dict) else ast.literal_eval(raw["response"])  # or its text
    steps, labels = list(map(str, response["steps"])), list(map(int, response["process_correctness"]))
    if not steps or len(steps) != len(labels) or not set(labels) <= {1, 0, -1}:
        raise ValueError(f"{len(steps)} steps, labels {labels}")
    if not isinstance(raw["question"], str):
        raise TypeError(f"the question {raw['question']!r}")
    images = raw["image"] if isinstance(raw["image"], list) else [raw["image"]]  # located; None: not asked
    return Row(name, raw["question"], None, "steps", images=tuple(images),
               meta={"steps": steps, "labels": labels, "source": raw.get("data_source", "")})  # fmt: skip


# ── what a backbone says ────────────────────────────────────────────────────────────────────────────────────────────
def prompt(policy: Policy, visions: Sequence[Vision], text: str) -> tuple[torch.Tensor, list[Vision]]:
    """A prompt of images that are encoded already, and a text. Nothing thinks here: the first token has to answer."""
    parts = [*(vision.features[0].shape[1] for vision in visions), text]
    return torch.tensor(chat_prompt(policy.tokenizer, parts, policy.image_token, False), device=policy.device), list(visions)


def say(policy: Policy, prompts: Sequence[tuple], asking: Asking) -> list[str]:
    """The greedy replies to prompts."""
    said = []
    for start in range(0, len(prompts), asking.batch_size):
        said += harness.replies(policy, prompts[start : start + asking.batch_size], asking.max_new_tokens)
    return said


def first_tokens(policy: Policy, words: Sequence[str]) -> list[int]:
    """The first token of each spelling of a word that the tokenizer has."""
    ids = [policy.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words]
    return sorted(set(ids) - {policy.tokenizer.unk_token_id})


def prompted_u(policy: Policy, visions: Sequence[Vision], question: str, steps: Sequence[str], batch_size: int) -> list[float]:
    """u_t of each step: P(yes) against P(no), over their spellings, as the first token of a reply."""
    texts = [VERDICT.format(question=question, steps="\n".join(steps[: t + 1])) for t in range(len(steps))]
    prompts, u = [prompt(policy, visions, text) for text in texts], []
    yes, no = (first_tokens(policy, [w, w.title(), f" {w}", f" {w.title()}"]) for w in ("yes", "no"))
    for start in range(0, len(prompts), batch_size):
        with torch.inference_mode():
            hidden = policy.read_batch(prompts[start : start + batch_size]).hidden
            logits = project(hidden, policy.head.weight)  # (n, V)
        u += (logits[:, yes].logsumexp(-1) - logits[:, no].logsumexp(-1)).sigmoid().tolist()
    return u


def see(policy: Policy, row: Row) -> list[Vision]:
    """The row's images, encoded. Raises InputError, naming the row."""
    images = [part for part in tasks.content(row) if not isinstance(part, str)]
    try:
        return [policy.encode(image) for image in images]
    except ValueError as error:  # the processor's: an image of an extreme shape
        raise InputError(f"row {row.id}: {error}") from error


def verify(policy: Policy, rows: Sequence[Row], asking: Asking) -> list[dict]:
    """Facts, claims and u of the given steps of each row, the first two as text."""
    out = []
    for row in rows:
        visions, steps = see(policy, row), row.meta["steps"]
        facts = say(policy, [prompt(policy, visions, FACTS.format(question=row.question))], asking)[0]
        asks = [prompt(policy, [], CLAIMS.format(question=row.question, step=step)) for step in steps]
        claims, u = say(policy, asks, asking), prompted_u(policy, visions, row.question, steps, asking.batch_size)
        out.append({"facts": facts, "claims": claims, "u": u})
    return out


def triples_or(text: str, otherwise: Any) -> Any:
    """The triples of a text, or what stands for those that cannot be read."""
    try:
        return triples(judged(text))
    except ValueError:
        return otherwise


def claims_of(text: str) -> list[Triple | None]:
    """A step's claims: none for null, [None] where they cannot be read."""
    return [] if judged(text).strip().strip("`. \n").lower() in ("null", "none") else triples_or(text, [None])


# ── VisualProcessBench's score ──────────────────────────────────────────────────────────────────────────────────────
def process_score(rows: Sequence[Row], predictions: Sequence[Sequence[int]]) -> dict:
    """Macro-F1 of predictions (1 or −1 a step) as officially: neutral steps out, all wrong steps and not the first alone, all
    rows pooled; and that of each source. `n` is of rows."""
    by_source = defaultdict(list)
    for row, own in zip(rows, predictions, strict=True):
        for source in ("all", row.meta["source"]):
            by_source[source].append(list(zip(own, row.meta["labels"], strict=True)))
    return {source: {"value": macro_f1(*zip(*(pair for own in parts for pair in own))), "n": len(parts)}
            for source, parts in by_source.items()}  # fmt: skip


def gates(replies: Sequence[dict]) -> dict[str, list[list[float]]]:
    """R_t of every row's steps under each gate."""
    out: dict[str, list[list[float]]] = {how: [] for how in HOW}
    for reply in replies:
        facts = triples_or(reply["facts"], [])
        supports = [[support(claim, facts) for claim in claims_of(text)] for text in reply["claims"]]
        for how in HOW:
            out[how].append(step_rewards(reply["u"], supports, how))
    return out


def predict(rows: Sequence[Row], rewards: Sequence[Sequence[float]]) -> list[list[int]]:
    """1 or −1 a step, by the κ of the other half of the rows. A question's solutions share a half."""
    questions = {row.question: i for i, row in enumerate(rows)}
    half = [list(questions).index(row.question) % 2 for row in rows]
    kappa = {}
    for side in (0, 1):
        other = [pair for h, row, own in zip(half, rows, rewards) if h != side for pair in zip(own, row.meta["labels"])]
        kappa[side] = threshold(*zip(*other)) if other else 0.0
    return [[1 if r > kappa[h] else -1 for r in own] for h, own in zip(half, rewards)]


def bench(policy: Policy, out: Path, asking: Asking, model: str) -> str:
    """Asks what is not answered yet, and returns the table. Raises InputError; what was answered is kept."""
    folder, revision = (asking.source, "local files") if asking.source else harness.download(HUB, None, PATTERNS)
    found = harness.choose(process_rows(folder), asking.limit)
    rows, path = harness.askable(NAME, found), out / "evpv" / f"{NAME}.json"
    harness.claim(path, {"max_new_tokens": asking.max_new_tokens, "model": model, "revision": revision})
    ask = partial(verify, policy, asking=asking)
    replies = harness.ask_all(NAME, rows, path.with_suffix(".jsonl"), 1, ask, step_accuracy)
    said = [replies[row.id]["response"] for row in rows]
    return table(rows, said) + f"; {len(found) - len(rows)} not asked for want of an image"


def step_accuracy(row: Row, reply: dict) -> dict:
    """What the progress bar shows: the share of steps that the verifier alone judges rightly."""
    hits = [(u > 0.5) == (label > 0) for u, label in zip(reply["u"], row.meta["labels"]) if label]
    return {"correct": fmean(hits) if hits else 1.0}


def table(rows: Sequence[Row], replies: Sequence[dict]) -> str:
    """Macro-F1 by gate and source, as Markdown, and what could not be read."""
    rewards = gates(replies)
    called = {"always right": [[1] * len(row.meta["labels"]) for row in rows],
              "base, κ = 0": [[1 if r > 0 else -1 for r in own] for own in rewards["base"]]}  # fmt: skip
    called |= {how: predict(rows, own) for how, own in rewards.items()}
    scores = {how: process_score(rows, own) for how, own in called.items()}
    sources = list(scores["base"])
    lines = [["Macro-F1", *sources], ["---"] * (1 + len(sources)), ["rows", *(str(scores["base"][s]["n"]) for s in sources)]]
    lines += [[how, *(f"{100 * parts[s]['value']:.2f}" for s in sources)] for how, parts in scores.items()]
    claims = [claims_of(text) for reply in replies for text in reply["claims"]]
    unread = sum(triples_or(reply["facts"], None) is None for reply in replies)
    return "\n".join(harness.line_of(first, cells, "")[:-3] for first, *cells in lines) + (
        f"\n\nClaims are parsed from given steps by the judge, not reported by the policy; {sum(map(bool, claims))} of "
        f"{len(claims)} steps have some. Unreadable, hence UNKNOWN: the facts of {unread} rows, the claims of "
        f"{claims.count([None])} steps. {len(rows)} of {ROWS} rows"
    )


# ── best of N for one's own questions ───────────────────────────────────────────────────────────────────────────────
def read_chain(text: str) -> tuple[list[str], list[list[Triple | None]], str] | None:
    """Steps, their claims and the answer of a solution in `CHAIN`'s form; None if it cannot be read."""
    text = judged(text)
    try:
        chain = json.JSONDecoder().raw_decode(text, text.index("{"))[0]
        steps, answer = [str(step["text"]) for step in chain["steps"]], str(chain["answer"])
        looks = [step.get("look") for step in chain["steps"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return (steps, [checklist(look) for look in looks], answer) if steps else None


def checklist(look: Any) -> list[Triple | None]:
    """A step's claims, as a solution states them."""
    if look is None:
        return []
    try:
        return as_triples(look)
    except ValueError:
        return [None]


def solve(policy: Policy, samples: Sequence[data.Sample], asking: Asking, n: int, temperature: float, seed: int) -> list[dict]:
    """Facts, N solutions and the u of their steps for each sample. What cannot be read has no u."""
    out = []
    for sample in samples:
        visions = [policy.encode(data.open_image(sample.image))]
        facts = say(policy, [prompt(policy, visions, FACTS.format(question=sample.question))], asking)[0]
        with torch.inference_mode():
            prefix = policy.read_batch([prompt(policy, visions, CHAIN.format(question=sample.question))])
        draw = seeded(seed, "best of n", sample.id, device=policy.device)
        texts = harness.texts_of(policy, policy.sample(prefix, n, asking.max_new_tokens, temperature, [draw]))
        chains = [read_chain(text) for text in texts]
        u = [prompted_u(policy, visions, sample.question, chain[0], asking.batch_size) if chain else [] for chain in chains]
        out.append({"facts": facts, "solutions": texts, "u": u})
    return out


def score_solutions(sample: data.Sample, reply: dict) -> dict[str, list[float]]:
    """The score of each solution by each gate and by majority, and whether it is right."""
    chains, facts = [read_chain(text) for text in reply["solutions"]], triples_or(reply["facts"], [])
    answers = [chain[2] if chain else "" for chain in chains]
    scores: dict[str, list[float]] = {how: [] for how in HOW}
    for chain, u in zip(chains, reply["u"]):
        for how in HOW:
            supports = [[support(claim, facts) for claim in own] for own in chain[1]] if chain else []
            scores[how].append(trajectory_score(step_rewards(u, supports, how)))
    right = [float(bool(said) and is_correct(f"<answer> {said} </answer>", sample.answer, sample.kind)) for said in answers]
    return scores | {"majority": [float(answers.count(said)) if said else 0.0 for said in answers], "right": right}


def best(policy: Policy, samples: Sequence[data.Sample], out: Path, asking: Asking, settings: dict) -> str:
    """Samples, scores and picks; writes a line a question with the pick of the paper's gate, and returns the table."""
    path = out / "evpv" / "best-of-n.json"
    harness.claim(path, settings | {"max_new_tokens": asking.max_new_tokens})
    ask = partial(solve, policy, asking=asking, n=settings["n"], temperature=settings["temperature"], seed=settings["seed"])

    def look(sample: data.Sample, reply: dict) -> dict:
        scores = score_solutions(sample, reply)
        pick = scores["trajectory"].index(max(scores["trajectory"]))
        return {"correct": best_of_n(scores["trajectory"], scores["right"]), "pick": pick, "scores": scores["trajectory"]}

    replies = harness.ask_all("best-of-n", samples, path.with_suffix(".jsonl"), 1, ask, look)
    said = [replies[sample.id]["response"] for sample in samples]
    scored = [score_solutions(sample, reply) for sample, reply in zip(samples, said)]
    return picks_table(scored) + "\n\n" + unreadable(said)


def picks_table(scored: Sequence[dict[str, list[float]]]) -> str:
    """The share of right picks by each score, as Markdown."""
    picks = {"one solution (Pass@1)": [fmean(s["right"]) for s in scored]}
    picks |= {how: [best_of_n(s[how], s["right"]) for s in scored] for how in ("majority", *HOW)}
    picks["some solution (Pass@N)"] = [max(s["right"]) for s in scored]
    lines = ["| pick | right | 95 % interval |", "|---|---|---|"]
    for name, own in picks.items():
        low, high = wilson(fmean(own), len(own))
        lines.append(f"| {name} | {fmean(own):.3f} | {low:.3f}–{high:.3f} |")
    return "\n".join(lines)


def unreadable(replies: Sequence[dict]) -> str:
    """How much could not be read, and how many solutions say nothing of what they saw."""
    chains = [read_chain(text) for reply in replies for text in reply["solutions"]]
    looks = [own for chain in chains if chain for own in chain[1]]
    facts = sum(triples_or(reply["facts"], None) is None for reply in replies)
    return (
        f"{len(replies)} questions, {len(chains)} solutions. Unreadable: {chains.count(None)} solutions (score 0), the facts "
        f"of {facts} images and the claims of {looks.count([None])} of {len(looks)} steps (UNKNOWN). Empty checklists, which "
        f"pass ungated: {sum(chain is not None and not any(chain[1]) for chain in chains)}."
    )


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────
def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands, default = parser.add_subparsers(dest="command", required=True), Asking()
    for name, text in {"bench": "VisualProcessBench", "best-of-n": "the best of N solutions to one's own questions"}.items():
        one = commands.add_parser(name, help=text)
        whose = one.add_mutually_exclusive_group(required=True)
        whose.add_argument("--run", type=Path, help="a run of train.py, whose adapter solves and judges")
        whose.add_argument("--backbone", help="a frozen backbone, by name or directory")
        one.add_argument("--limit", type=int, default=0, help="so many questions, at random; 0 for all")
        one.add_argument("--batch-size", type=int, default=default.batch_size, help="prompts read together on each rank")
        one.add_argument("--max-new-tokens", type=int, default=default.max_new_tokens, help="longest reply")
        one.add_argument("--debug", action="store_true", help="show where an error of the input was met")
    bench_, best_ = commands.choices["bench"], commands.choices["best-of-n"]
    bench_.add_argument("--source", type=Path, metavar="DIR", help="test.jsonl and its images, instead of the hub")
    best_.add_argument("--data", required=True, help="a COCO-format folder or a JSONL file: see data.py")
    best_.add_argument("--n", type=int, default=8, help="solutions to each question (default: %(default)s)")
    best_.add_argument("--temperature", type=float, default=1.0, help="of sampling (default: %(default)s)")
    best_.add_argument("--seed", type=int, default=0)
    return parser


def act(args: argparse.Namespace) -> None:
    """What the command line asks for. Raises InputError."""
    for name, least in {"limit": 0, "batch_size": 1, "max_new_tokens": 1, "n": 1, "seed": 0}.items():
        if getattr(args, name, least) < least:
            raise InputError(f"{flag(name)}: expected at least {least}; found {getattr(args, name)}")
    if getattr(args, "temperature", 1) <= 0:
        raise InputError(f"--temperature: expected a number above 0; found {args.temperature}")
    config = load_config(args.run) if args.run else Config(backbone=args.backbone)
    policy, out = train.load_policy(config), args.run or Path("runs") / f"{Path(args.backbone).name}-base"
    if args.run:
        policy.load_adapter(args.run / "adapter")
    asking = Asking(False, False, args.max_new_tokens, args.batch_size, getattr(args, "source", None), args.limit)
    model = f"adapter of {config.backbone}" if args.run else args.backbone
    if args.command == "bench":
        text = bench(policy, out, asking, model)
    else:
        train_set, held_out = load_samples(replace(config, data=args.data), policy, out, quiet=True)
        samples = [sample for part in ([train_set] if not args.run else []) + list(held_out.values()) for sample in part]
        samples = samples[: args.limit or None]
        settings = {"model": model, "data": args.data, "n": args.n, "temperature": args.temperature, "seed": args.seed}
        text = best(policy, samples, out, asking, settings)
    if ranks.rank() == 0:
        print(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    args = make_parser().parse_args(argv)
    return ranks.command("benchmarks.processbench", partial(act, args), args.debug)


if __name__ == "__main__":
    sys.exit(main())
