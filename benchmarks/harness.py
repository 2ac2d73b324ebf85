"""Asks a policy the questions of the public benchmarks, and writes down what it says.

    hub or files ─load_rows─▶ rows ─respond, a batch a rank─▶ replies ─judge─▶ NAME.jsonl ─score─▶ NAME.json ─compare─▶ Table 2

A run's scores are in runs/x/benchmarks:

    NAME.jsonl    a line a question: id, response, the value read from it, whether that is correct. Written batch by batch, so
                  that a killed evaluation goes on where it stopped: what is answered there is not asked again
    NAME.json     how it was asked (`settings`), and what `tasks.score` makes of it

Texts are generated greedily, in left-padded batches. In bfloat16 the batch size may turn a near-tie of two tokens; in float32
it changes nothing. For the text-only benchmarks, the log-likelihoods of the options are compared instead.
"""

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks import prompts as wordings
from benchmarks import tasks
from benchmarks.replies import read_replies, write_replies
from benchmarks.tasks import BENCHMARKS, LIKELIHOODS, Row, benchmark, to_rows
from config import InputError
from models import INSTRUCTION, Policy, Responses
from reading import OBJECT, fields, read_json, read_object
from support import ranks
from support.checkpoint import write_whole
from support.stats import interval, paired_bootstrap

PIXELS = ("min_pixels", "max_pixels")


@dataclass(frozen=True)
class Asking:
    """How questions are asked."""

    thinking: bool = True  # let a backbone that can (Qwen3.5) open its own <think>
    instruction: bool = False  # ask for <think> and <answer> as in training, after the benchmark's own answer format
    max_new_tokens: int = 1024
    batch_size: int = 8
    source: Path | None = None  # a folder of local files; None: the hub
    limit: int = 0  # questions, 0 for all
    like: str | None = None  # the harness whose wording and limits of pixels are taken: see prompts.py
    min_pixels: int | None = None  # of an image, after resizing; None: the harness's, or the checkpoint's
    max_pixels: int | None = None


# ── 1. rows ───────────────────────────────────────────────────────────────────────────────────────────────────────────

def download(hub: str, revision: str | None, patterns: list[str]) -> tuple[Path, str]:
    """Files of a data set on the hub, and the commit that they came from. Raises InputError if that fails."""
    from huggingface_hub import snapshot_download  # scoring from files needs no hub

    try:
        folder = snapshot_download(hub, repo_type="dataset", revision=revision, allow_patterns=patterns)
    except (OSError, ValueError) as error:  # all of the hub's errors are OSErrors
        raise InputError(f"{hub} cannot be downloaded; --source takes local files: {error}") from error
    return Path(folder), Path(folder).name  # a snapshot's folder is called by its commit


def fetch(name: str) -> tuple[Path, str]:
    """The benchmark's split from the hub, and its commit. Raises InputError."""
    bench = benchmark(name)
    patterns = [f"{bench.config or '*'}/{split}-*.parquet" for split in bench.split.split("+")]
    try:
        return download(bench.hub, bench.revision, patterns)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def raw_rows(name: str, asking: Asking) -> tuple[list[dict], str]:
    """The benchmark's raw rows, and their revision."""
    benchmark(name)
    folder, revision = (asking.source, "local files") if asking.source else fetch(name)
    return tasks.find_rows(name, folder), revision


def load_rows(name: str, asking: Asking) -> tuple[list[Row], str]:
    """The benchmark's rows, and their revision. Rows may lack what they ask about: see `askable`."""
    raws, revision = raw_rows(name, asking)
    return choose(to_rows(name, raws, asking.like), asking.limit), revision


def choose(rows: Sequence[Row], limit: int) -> list[Row]:
    """The rows of `limit` random questions, with all copies of each. A higher limit keeps them and adds to them."""
    key = {row.id: row.id if row.group is None else row.group for row in rows}
    questions = list(dict.fromkeys(key.values()))
    random.Random(0).shuffle(questions)
    chosen = set(questions[: limit or None])
    return [row for row in rows if key[row.id] in chosen]


def askable(name: str, rows: Sequence[Row]) -> list[Row]:
    """The rows with all that asking them takes; files for scoring may be without images. Raises InputError if none has."""
    whole = [row for row in rows if not row.lacks]
    if not whole:
        raise InputError(f"{name}: no row can be asked; row {rows[0].id} is without its {rows[0].lacks}")
    return whole


# ── 2. replies ────────────────────────────────────────────────────────────────────────────────────────────────────────

def prompt_of(policy: Policy, row: Row, asking: Asking) -> tuple:
    """The row's prompt and its images, as `Policy.compose` makes them. Raises InputError, naming the row."""
    parts = tasks.content(row) + ([f" {INSTRUCTION}"] if asking.instruction else [])
    try:
        return policy.compose(parts, asking.thinking, row.system)
    except ValueError as error:  # the processor's: an image of an extreme shape
        raise InputError(f"row {row.id}: {error}") from error


def limit_pixels(policy: Policy, asking: Asking) -> tuple[int, int]:
    """Sets the limits of pixels that are asked for, and returns those that hold. Raises InputError."""
    architecture = policy.model.config.model_type
    both = asking.min_pixels and asking.max_pixels
    like = wordings.pixels_like(asking.like, architecture) if asking.like and not both else (None, None)
    low, high = policy.limit_pixels(asking.min_pixels or like[0], asking.max_pixels or like[1])
    if low > high:
        raise InputError(f"--min-pixels {low}: expected at most --max-pixels, which is {high}")
    return low, high


def texts_of(policy: Policy, responses: Responses) -> list[str]:
    """Sampled responses as texts, without the token that ends them."""
    said = (responses.mask & ~torch.isin(responses.ids, policy.eos_ids)).cpu()
    return [policy.decode(ids[own]).strip() for ids, own in zip(responses.ids.cpu(), said)]


def replies(policy: Policy, prompts: Sequence[tuple], max_new_tokens: int) -> list[str]:
    """The greedy replies to a batch of prompts, as `Policy.compose` makes them."""
    with torch.inference_mode():
        return texts_of(policy, policy.sample(policy.read_batch(prompts), 1, max_new_tokens, 0.0, ()))


def respond(policy: Policy, rows: Sequence[Row], asking: Asking) -> list:
    """The policy's responses to a batch of one benchmark's rows: texts, or log-likelihoods of the options."""
    if rows[0].kind in LIKELIHOODS:
        return [policy.likelihoods(tasks.continuations(row)) for row in rows]
    prompts = [prompt_of(policy, row, asking) for row in rows]
    texts = replies(policy, prompts, asking.max_new_tokens)
    # A template may open <think> in the prompt. Without it, reasoning that was cut off would pass for an answer.
    opened = ["<think>" if policy.decode(ids[-8:]).rstrip().endswith("<think>") else "" for ids, _ in prompts]
    return [before + text for before, text in zip(opened, texts)]


Answer = Callable[[Sequence[Any]], list]  # a batch of rows → what is said to each


def attempt(answer: Answer, rows: Sequence[Any]) -> list | InputError:
    """`answer`, or the reason why not: a rank that raised at once would leave the others waiting for it."""
    try:
        return answer(rows) if rows else []
    except InputError as error:
        return error


def answer_together(answer: Answer, rows: Sequence[Any]) -> list:
    """The answers to rows that are shared among the ranks, on every rank. Raises what any rank met."""
    parts = ranks.gather([attempt(answer, ranks.share(rows))])
    for part in parts:
        if isinstance(part, InputError):
            raise part
    return [parts[i % len(parts)][i // len(parts)] for i in range(len(rows))]


def written(path: Path) -> dict[str, dict]:
    """The whole lines of a file of replies, by id. Raises InputError, naming the line, for one that is no reply."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []  # a kill may have cut the last line
    replies = {}
    for number, line in enumerate(lines, start=1):
        try:
            reply = json.loads(line)
            replies[reply["id"]] = reply
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path}, line {number}: expected a reply with its id; remove this line to ask again") from error
    return replies


def claim(path: Path, settings: dict) -> None:
    """Notes how a benchmark is asked. Raises InputError if the replies there were asked otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = fields(read_json(path), {"settings": OBJECT}, path)["settings"] if path.is_file() else settings
    if other := [f"{key} {before.get(key)!r}, not {value!r}" for key, value in settings.items() if before.get(key) != value]:
        raise InputError(f"{path}: holds replies that were asked otherwise ({'; '.join(other)}); move it and its .jsonl away")
    if ranks.rank() == 0 and not path.is_file():
        write_whole(path, json.dumps({"settings": settings}).encode())


def evaluate(policy: Policy, name: str, out: Path, asking: Asking, model: str) -> dict:
    """Asks what is not answered yet in out/benchmarks, and returns the benchmark's score, which is also written there.

    Every rank returns it; rank 0 writes. `model` says whose replies these are. Raises InputError; what was answered is kept.
    """
    found, revision = load_rows(name, asking)
    rows, path = askable(name, found), out / "benchmarks" / f"{name}.json"
    settings = {key: getattr(asking, key) for key in ("thinking", "instruction", "max_new_tokens")}
    settings |= dict(zip(PIXELS, limit_pixels(policy, asking))) | {"prompt": wordings.prompt_of(name, asking.like).whose}
    settings |= {"model": model, "revision": revision}
    claim(path, settings)
    bench, answer = benchmark(name), partial(respond, policy, asking=asking)
    replies = ask_all(name, rows, path.with_suffix(".jsonl"), asking.batch_size, answer, partial(tasks.judge, bench))
    result = tasks.score(name, rows, [replies[row.id]["response"] for row in rows])
    asked = hashlib.md5("\n".join(row.id for row in rows).encode()).hexdigest()  # `units` can be paired if this is the same
    result |= {"revision": revision, "not_asked": len(found) - len(rows), "asked": asked, "settings": settings}
    if ranks.rank() == 0:
        write_whole(path, json.dumps({key: value for key, value in result.items() if key != "items"}).encode())
    return result


def ask_all(
    name: str, rows: Sequence[Any], path: Path, batch_size: int, answer: Answer, judge: Callable[[Any, Any], dict]
) -> dict[str, dict]:
    """The replies to all rows by id: those in the file, and the others, which are asked and appended to it.

    judge says of a row and the answer to it what is written beside them, `correct` among it, of which the bar shows the mean.
    """
    replies, lead = written(path), ranks.rank() == 0
    todo, size = [row for row in rows if row.id not in replies], batch_size * ranks.world()
    right = [float(replies[row.id]["correct"]) for row in rows if row.id in replies]
    bar = tqdm(total=len(rows), initial=len(right), desc=name, disable=not lead)
    if lead:  # a half-written last line goes
        write_whole(path, b"".join(json.dumps(reply).encode() + b"\n" for reply in replies.values()))
    with bar, path.open("a") as file:
        for start in range(0, len(todo), size):  # the ranks wait for each other at every batch: simple, and resumable
            batch = todo[start : start + size]
            responses = answer_together(answer, batch)
            new = [{"id": row.id, "response": r, **judge(row, r)} for row, r in zip(batch, responses)]
            if lead:
                file.writelines(json.dumps(reply) + "\n" for reply in new)
                file.flush()
            replies |= {reply["id"]: reply for reply in new}
            right += [float(reply["correct"]) for reply in new]
            bar.update(len(new))
            bar.set_postfix(accuracy=f"{fmean(right):.3f}")
    return replies


def score_file(path: Path, name: str, asking: Asking) -> dict:
    """The score of anybody's replies, in any of the formats of replies.py. Raises InputError, naming ids."""
    raws, revision = raw_rows(name, asking)
    rows = to_rows(name, raws)
    replied, form = read_replies(path, name, raws, rows)
    chosen = choose(rows, asking.limit)
    own = [row for row in chosen if row.id in replied]
    result = tasks.score(name, own, [replied[row.id] for row in own])
    without = len(chosen) - len(own)
    return result | {"revision": revision, "not_asked": 0, "not_asked" if form.whole else "not_given": without}


def write_file(tool: str, name: str, out: Path, asking: Asking) -> Path:
    """The replies of a run to a benchmark, as another tool writes them, beside the run's own."""
    own = {key: reply["response"] for key, reply in written(out / "benchmarks" / f"{name}.jsonl").items()}
    path = out / "benchmarks" / f"{name}_{tool}.{'tsv' if tool == 'vlmevalkit' else 'jsonl'}"
    write_replies(tool, name, raw_rows(name, asking)[0], own, path)
    return path


# ── 3. tables ─────────────────────────────────────────────────────────────────────────────────────────────────────────

HEADER = """\
| benchmark | metric | score | 95 % interval | N | of | unparsable | rule | split | revision | prompt | pixels |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def table_rows(result: dict) -> str:
    """A line a metric, the score first, then a line a part of each breakdown. `of` is the score's N on the whole split."""
    name, asked = result["benchmark"], result.get("settings", {})
    pixels = "–".join(str(asked[key]) for key in PIXELS) if asked and name in wordings.PROMPTS else "–"
    told = [str(result[key]) for key in ("unparsable", "rule", "split", "revision")] + [asked.get("prompt", "–")]
    lines = []
    for which, m in result["metrics"].items():
        whole = str(result["expected_n"]) if which == result["metric"] else ""
        lines.append(line_of(name, [which, *numbers(m), whole, *told], pixels))
    for breakdown, parts in result["by"].items():
        lines += [line_of(name, [f"{breakdown}: {part}", *numbers(m), *[""] * 6], "") for part, m in parts.items()]
    for key, what in {"not_asked": "rows not asked, being incomplete", "not_given": "rows without a reply in the file",
                      "last_resort": "verdicts from a last resort"}.items():
        if result.get(key):
            lines.append(f"| {name} | *{what}: {result[key]}* |" + " |" * 10)
    return "\n".join(lines)


def numbers(m: dict) -> list[str]:
    """Value, interval and N as cells."""
    low, high = (100 * x for x in m["interval"])
    return [f"{100 * m['value']:.2f}", f"{low:.2f}–{high:.2f}", str(m["n"])]


def scores_of(run: Path) -> dict[str, dict]:
    """The finished benchmarks of a run by name, in the order of the table."""
    files = {name: run / "benchmarks" / f"{name}.json" for name in BENCHMARKS}
    found = {name: read_object(file) for name, file in files.items() if file.is_file()}
    return {name: result for name, result in found.items() if "value" in result}


def gain(name: str, base: dict, result: dict) -> tuple[float, np.ndarray]:
    """The gain over the base on the same questions, and its bootstrap draws. Raises InputError for other questions."""
    for key in ("prompt", *PIXELS) if name in wordings.PROMPTS else ():
        before, after = (scores.get("settings", {}).get(key) for scores in (base, result))
        if before != after:
            raise InputError(f"{name}: the runs were asked in different ways ({key} {before} and {after}); evaluate both alike")
    if base["asked"] != result["asked"] or base["metric"] != result["metric"]:
        raise InputError(f"{name}: the runs were asked different questions ({base['n']} and {result['n']}), which cannot be "
                         "paired; evaluate both with the same --source and --limit")
    seed = list(BENCHMARKS).index(name)  # the draws of different benchmarks are independent
    return result["value"] - base["value"], paired_bootstrap(base["units"], result["units"], seed)


def signed(delta: float, draws: np.ndarray) -> str:
    low, high = interval(draws)
    return f"{100 * delta:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"


def compare(runs: Sequence[Path]) -> str:
    """The paper's Table 2: a row a run, a column a benchmark, and below each run its gain Δ over the first, the base, with the
    95 % interval of a paired bootstrap. The average is over benchmarks that all runs have. Raises InputError.
    """
    scores = {run: scores_of(run) for run in runs}
    base = scores[runs[0]]
    names = [name for name in BENCHMARKS if any(name in s for s in scores.values())]
    shared = [name for name in names if all(name in s for s in scores.values())]
    lines = [line_of("run", names, f"average of {len(shared)}"), "|---" * (len(names) + 2) + "|",
             line_of("N", [str(next(s[name]["n"] for s in scores.values() if name in s)) for name in names], "")]
    for run, own in scores.items():
        values = [f"{100 * own[name]['value']:.2f}" if name in own else "–" for name in names]
        lines.append(line_of(str(run), values, f"{100 * fmean(own[n]['value'] for n in shared):.2f}" if shared else "–"))
        if run != runs[0]:
            gains = {name: gain(name, base[name], own[name]) for name in names if name in base and name in own}
            cells = [signed(*gains[name]) if name in gains else "–" for name in names]
            mean = [sum(parts) / len(shared) for parts in zip(*(gains[name] for name in shared))]
            lines.append(line_of("Δ", cells, signed(*mean) if shared else "–"))
    return "\n".join(lines)


def line_of(first: str, cells: Sequence[Any], last: str) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join([first, *cells, last]) + " |"
