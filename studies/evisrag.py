"""EVisRAG on the toy library: retrieve pages, ask about them in four stages, judge, learn, report.

python -m studies.evisrag [--seeds 0 1 2] [--settings] [--quick]      → runs/evisrag: parts as JSON, the tables, evisrag.png

Every part is kept in OUT and not repeated, and a run that was interrupted goes on, so the command may be stopped, and given
again:

    retrieve    the backbone learns to retrieve pages by question; Recall@1 and @3 on books that it has not seen
    audit       whose tokens look: margins of right and wrong records, audited in the evidence stage and in the answer
    a run       a method of RUNS and a seed: `train.train` on questions about constructed contexts, then held-out questions
                about constructed contexts and about the pages that the retriever brings

`--settings` adds runs in which RS-GRPO might show its margin, a row of SETTINGS each: a judge that errs about the evidence or
about the answer, and other questions, which the reader learns first.
"""

import argparse
import json
import math
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

import answers
import data
import train
from config import PAGES_RECIPE, Config, configure
from methods import METHODS, Method
from models import Policy, Vision, seeded
from reading import InputError, make_folder, read_json
from related import retrieve, rs_grpo
from related.rs_grpo import NOTHING, Scoped, read_evidence, well_formed
from rollout import judge, sample_groups
from studies.evisrag_report import draw, markdown
from support import ranks, stats
from support.checkpoint import as_json, claim, go_on, write_whole
from toy import pages, reader, roles, world
from toy.pages import PLAIN, Asked, Book, Question
from toy.reader import Leg

RECIPE = {"steps": 60, "prompts_per_step": 4, "group_size": 16, "lr": 1.2e-3, "max_new_tokens": 48}
BOOKS = {"train": 40, "test": 24, "retriever": 60}
TRAINED, TESTED, RETRIEVED = 240, 192, 144  # questions
RETRIEVER_UPDATES, RETRIEVER_LR = 250, 1e-3
QUERIES = 8  # of each kind and book, when recall is measured
AUDITED = 40  # questions about sufficient contexts, 16 answers each
ERR = 0.3  # how often a judge errs
LOGGED = ("accuracy", "reward", "response_length")  # of a step
QUICK = {"steps": 10, "prompts_per_step": 2, "group_size": 4}


class Run(NamedTuple):
    """A method, and what its questions are like."""

    method: str
    how: str = "stages"  # of pages.INSTRUCTION
    boxes: bool = False  # the audit needs the evidence's places
    setting: str = ""  # of SETTINGS


class Setting(NamedTuple):
    """What may make RS-GRPO's margin: other questions, or a judge that errs about one channel."""

    leg: Leg | None = None  # in which the reader learns the questions, before its habits again; None: it knows them
    misjudged: str = ""  # of rs_grpo.CHANNELS
    methods: Sequence[str] = ("rs", "mixed", "outcome")  # of RUNS

    @property
    def asked(self) -> Asked:
        """How questions are drawn."""
        return self.leg.asked if self.leg else PLAIN


RUNS = {
    "rs": Run("rs-grpo"),
    "mixed": Run("mixed"),
    "step": Run("step"),
    "outcome": Run("outcome"),
    "generic": Run("outcome", "generic"),
    "rs without gold": Run("rs-ced", boxes=True),
}
SETTINGS = {
    "": Setting(),
    "sums": Setting(Leg(300, 5e-4, 0.6, 4.0, Asked(telling=2, kinds=("counting",)))),
    "longer records": Setting(Leg(300, 5e-4, 0.6, 4.0, Asked(whole=True))),
    "five pages": Setting(Leg(300, 5e-4, 0.6, 4.0, Asked(k=5))),
    "answers misjudged": Setting(misjudged="derivation", methods=("rs", "mixed")),
    "evidence misjudged": Setting(misjudged="perception", methods=("rs", "mixed")),
}
HARDER = {
    f"{name}, {what}": RUNS[name]._replace(setting=what, method=f"{name}, {what}" if row.misjudged else RUNS[name].method)
    for what, row in SETTINGS.items() if what for name in row.methods
}  # fmt: skip


def misjudged(channel: str, scoped: bool) -> Callable[..., Scoped | Tensor]:
    """RS-GRPO's rewards, or their mean, from a judge who errs about one channel in ERR of the responses, each alone."""

    def rewards(judgement: rs_grpo.Judgement, config: Config) -> Scoped | Tensor:
        told = rs_grpo.rewards(judgement, config)
        draw_of, values = seeded(config.seed, channel, *judgement.group.texts), told.rewards.clone()
        row = values[rs_grpo.CHANNELS.index(channel)]
        row.copy_(torch.where(torch.rand(len(row), generator=draw_of) < ERR, 1 - row, row))
        told = Scoped(values, told.scopes)
        return told if scoped else told.mean()

    return rewards


MISJUDGED = {
    run.method: Method(misjudged(SETTINGS[run.setting].misjudged, name.startswith("rs")), pages=True)
    for name, run in HARDER.items() if SETTINGS[run.setting].misjudged
}  # fmt: skip


# ── what one answer is worth ────────────────────────────────────────────────────────────────────────────────────────
def score(sample: data.PagedSample, text: str) -> dict:
    """Counts of one response: `told` of `gold` relevant pages are recorded rightly, among `said` recorded as relevant."""
    gold, said = [page.evidence for page in sample.pages], read_evidence(text, len(sample.pages))
    lines = ["" if line in (None, NOTHING) else line for line in said]
    noun = next(noun for noun in map(data.plural, world.SHAPES) if noun in sample.question)
    implied = pages.total([value for line in lines for value in re.findall(rf"(\w+) {noun}", line)])
    answer = answers.answer_text(text)
    return {
        "sufficient": sample.family == "sufficient",
        "correct": answer == sample.answer,
        "format": well_formed(text),
        "told": sum(a == b != "" for a, b in zip(lines, gold)),
        "said": sum(line != "" for line in lines),
        "gold": sum(line != "" for line in gold),
        "record": any(line is not None for line in said),
        "follows": answer == implied,
    }


def evaluate(policy: Policy, samples: Sequence[data.PagedSample], config: Config, key: str) -> list[dict]:
    """The scores of one response to each question, at temperature 1."""
    config, draws = replace(config, temperature=1.0), [seeded(key, sample.id) for sample in samples]
    groups = sample_groups(policy, samples, config, 1, draws)
    return [score(group.sample, group.texts[0]) for group in tqdm(groups, key, len(samples), leave=False)]


# ── the parts ───────────────────────────────────────────────────────────────────────────────────────────────────────
class Study:
    """The parts of one command, in a folder."""

    def __init__(self, out: Path, quick: bool):
        self.out, self.quick = out, quick
        self.recipe = RECIPE | (QUICK if quick else {})
        self.drawn: dict[str, list[Book]] = {}
        self.seen: dict[bytes, Vision] = {}

    def n(self, count: int) -> int:
        """A number of books, questions or updates; a sixth of it in a quick run."""
        return -(-count // 6) if self.quick else count

    def kept(self, name: str, make: Callable[[], dict]) -> dict:
        """A part's results: read if they are there, else made and written, with the seconds of processor time that it took."""
        path = self.out / f"{name}.json"
        if not path.is_file():
            began = time.process_time()
            found = make()
            write_whole(path, as_json(found | {"seconds": time.process_time() - began}).encode())
        return read_json(path)

    def books(self, which: str) -> list[Book]:
        """The books of a purpose, drawn when they are first asked for."""
        if which not in self.drawn:
            self.drawn[which] = pages.draw_library(self.out / "books", self.n(BOOKS[which]), which)
        return self.drawn[which]

    def looking_once(self, policy: Policy) -> Policy:
        """The policy, which encodes a page only if none before it has: all of them have the backbone's own, frozen tower."""
        encode = policy.encode

        def look(image: Image.Image) -> Vision:
            key = image.tobytes()
            if key not in self.seen:
                self.seen[key] = encode(image)
            return self.seen[key]

        policy.encode = look  # type: ignore[method-assign]
        return policy

    # ── retrieval ──
    def retriever(self) -> Policy:
        """The backbone that has learned to retrieve."""

        def make() -> Policy:
            policy = reader.base(0)
            libraries = [retrieve.library_of(policy, book.images, asks_of(book)) for book in self.books("retriever")]
            retrieve.teach(policy, libraries, self.n(RETRIEVER_UPDATES), RETRIEVER_LR, 0)
            return policy

        return roles.kept(self.out / "retriever", make)

    def retrieve(self) -> dict:
        """Recall@1 and @3 before and after, by kind of question, with chance."""
        recalls: dict = {}
        for name, policy in {"before": reader.base(0), "after": self.retriever()}.items():
            for kind in pages.KINDS:
                libraries = [
                    retrieve.library_of(policy, book.images, asks_of(book, kind, QUERIES)) for book in self.books("test")
                ]
                hits = retrieve.measure(policy, libraries, (1, 3))
                recalls.setdefault(name, {})[kind] = {k: stats.share(hit.double().numpy()) for k, hit in hits.items()}
        n = len(self.books("test")[0].pages)
        return {"recall": recalls, "chance": {1: 1 / n, 3: 3 / n}, "queries": len(hits[1])}

    @cached_property
    def brought(self) -> list[tuple[Book, list[int], Question]]:
        """Questions, and the three pages of a book that the retriever brings for each, in the book's order."""
        policy, books, found = self.looking_once(self.retriever()), self.books("test"), []
        for book in books:
            index = retrieve.index_pages(policy, [policy.encode(data.open_image(path)) for path in book.images])
            for question, _ in asked_of(book, None, -(-self.n(RETRIEVED) // len(books))):
                found.append((book, sorted(retrieve.top_k(policy, index, question.query, 3)), question))
        return found

    # ── asking ──
    def config(self, run: Run, seed: int, out: Path) -> Config:
        """The configuration of a run."""
        given = PAGES_RECIPE | self.recipe | {"backbone": str(self.reader(run.setting)), "method": run.method, "seed": seed}
        return configure(given | {"out": str(out)})

    def reader(self, setting: str) -> Path:
        """The reader of a setting's questions: the shipped one, or what becomes of it."""
        row, folder = SETTINGS[setting], self.out / file_of("reader", setting)
        if not row.leg:
            return reader.EVISRAG

        def make(leg: Leg) -> Policy:
            policy, legs = Policy.load(str(reader.EVISRAG)), {setting: leg, "habit": reader.LEGS["habit"]}
            legs = {name: part._replace(asked=leg.asked, updates=self.n(part.updates)) for name, part in legs.items()}
            reader.teach(policy, legs, 0)
            return policy

        roles.kept(folder, partial(make, row.leg))
        return folder

    def ask(self, policy: Policy, run: Run, config: Config) -> dict:
        """Scores on held-out questions about constructed contexts, and about retrieved pages."""
        asked = SETTINGS[run.setting].asked
        samples = pages.draw_questions(self.books("test"), self.n(TESTED), asked, "test", run.how)
        scores = {"constructed": evaluate(policy, samples, config, f"test {config.seed}")}
        if asked == PLAIN:  # a question without a color does not say which of several pages it is about
            samples = [book.sample(rows, question, f"retrieved-{i}", run.how, asked)
                       for i, (book, rows, question) in enumerate(self.brought)]  # fmt: skip
            rows = evaluate(policy, samples, config, f"retrieved {config.seed}")
            scores["retrieved"] = [row | {"near": in_another_color(*found)} for row, found in zip(rows, self.brought)]
        return scores

    def base(self, how: str, setting: str) -> dict:
        """The scores of a frozen reader."""
        run = Run("rs-grpo", how, setting=setting)
        config = self.config(run, 0, self.out)
        return self.ask(self.looking_once(Policy.load(config.backbone)), run, config)

    def learn(self, name: str, run: Run, seed: int) -> dict:
        """A run of the loop: scores, and the log of its steps."""
        folder = self.out / file_of(name, seed)
        config = self.config(run, seed, folder)
        (go_on if (folder / "config.json").is_file() else claim)(folder, config)
        policy, samples = self.looking_once(train.load_trainable(config)), self.lessons(run, seed)
        if not train.train(policy, samples, config, folder):
            raise InputError(f"stopped in {folder}; the same command continues it")
        rows = [json.loads(line) for line in (folder / "log.jsonl").open()]
        return self.ask(policy, run, config) | {"log": [{key: row[key] for key in LOGGED} for row in rows]}

    def lessons(self, run: Run, seed: int) -> list[data.PagedSample]:
        """Training questions. A method that needs no audit gets no boxes to audit; one that is to do without gold, no gold."""
        asked = SETTINGS[run.setting].asked
        samples = pages.draw_questions(self.books("train"), self.n(TRAINED), asked, f"train {seed}", run.how)
        if run.boxes:
            return [replace(sample, gold="") for sample in samples]
        return [replace(s, pages=tuple(replace(page, boxes=()) for page in s.pages)) for s in samples]

    # ── auditing ──
    def audit(self) -> dict:
        """Margins of the frozen reader's answers on sufficient contexts, in two spans, and whether each record is right."""
        config = self.config(RUNS["rs without gold"], 0, self.out)
        policy, asked = Policy.load(config.backbone), pages.draw_questions(self.books("test"), 2 * AUDITED, PLAIN, "audit")
        asked = [sample for sample in asked if sample.family == "sufficient"][: self.n(AUDITED)]
        config, found = replace(config, temperature=1.0), {"evidence": ([], []), "answer": ([], [])}
        draws = [seeded("audit", sample.id) for sample in asked]
        for group in tqdm(sample_groups(policy, asked, config, 16, draws), "auditing", len(asked), leave=False):
            scores = [score(group.sample, text) for text in group.texts]
            right = [one["told"] == one["said"] == one["gold"] for one in scores]
            for span, (above, below) in found.items():
                judged = judge(policy, group, replace(config, span=span))
                for m, ok, audited in zip(judged.m.tolist(), right, judged.audited.tolist()):
                    if audited:
                        (above if ok else below).append(m)
        return {
            span: {"right": mean_of(above), "wrong": mean_of(below), "AUC": stats.auc(above, below), "n": [*map(len, both)]}
            for span, both in found.items()
            for above, below in [both]
        }


def file_of(name: str, of: int | str) -> str:
    """What a run of a seed, or a reader of a setting, is called in the folder of all parts."""
    return f"{name}-{of}".replace(",", "").replace(" ", "-")


def mean_of(values: Sequence[float]) -> float:
    """The mean, NaN of none."""
    return fmean(values) if values else math.nan


def asked_of(book: Book, kind: str | None, n: int) -> list[tuple[Question, int]]:
    """n questions that exactly one page of a book answers, and which."""
    asks = [(question, page) for question, page in pages.questions_of(book.pages) if kind in (None, question.kind)]
    return random.Random(f"{book.name} {kind}").sample(asks, min(n, len(asks)))


def in_another_color(book: Book, rows: Sequence[int], question: Question) -> int:
    """How many of these pages show the class, but not in the color."""
    plain = replace(question, color="")
    shows = [(plain.shown_by(book.pages[row]), question.shown_by(book.pages[row])) for row in rows]
    return sum(bool(any_color) and not own for any_color, own in shows)


def asks_of(book: Book, kind: str | None = None, n: int = 1000) -> list[tuple[str, int]]:
    """The same, as the retriever is asked."""
    return [(question.query, page) for question, page in asked_of(book, kind, n)]


# ── all of it ───────────────────────────────────────────────────────────────────────────────────────────────────────
def run_all(study: Study, runs: dict[str, Run], seeds: Sequence[int]) -> dict:
    """Every part that is not there yet; and all results."""
    results: dict = {"retrieve": study.kept("retrieve", study.retrieve), "audit": study.kept("audit", study.audit)}
    frozen = dict.fromkeys((run.how, run.setting if SETTINGS[run.setting].leg else "") for run in runs.values())
    results["base"] = {
        ", ".join(filter(None, which)): study.kept(file_of("base", "-".join(which)), partial(study.base, *which))
        for which in frozen
    }
    results["runs"] = {
        name: {seed: study.kept(file_of(name, seed), partial(study.learn, name, run, seed)) for seed in seeds}
        for name, run in runs.items()
    }
    return results


def act(args: argparse.Namespace) -> None:
    """Runs the study, and prints and draws what it found."""
    torch.set_num_threads(1)  # a model this small only loses time to a second thread
    METHODS.update(MISJUDGED)
    make_folder(args.out, "--out")
    runs = RUNS | (HARDER if args.settings else {})
    chosen = {name: run for name, run in runs.items() if name in (args.runs or runs)}
    if unknown := set(args.runs or ()) - runs.keys():
        raise InputError(f"--runs: expected of {'; '.join(runs)}; found {unknown.pop()!r}")
    results = run_all(Study(args.out, args.quick), chosen, args.seeds)
    draw(results, args.out / "evisrag.png")
    print(markdown(results))


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/evisrag"), help="where all parts go (default: %(default)s)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    parser.add_argument("--runs", nargs="+", metavar="NAME", help=f"of {', '.join(RUNS)} (default: all)")
    parser.add_argument("--settings", action="store_true", help=f"also {'; '.join(HARDER)}")
    parser.add_argument("--quick", action="store_true", help="a sixth of everything and ten steps a run: does it work?")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    args = make_parser().parse_args(argv)
    return ranks.command("studies.evisrag", partial(act, args))


if __name__ == "__main__":
    sys.exit(main())
