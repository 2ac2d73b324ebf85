"""One's own pages and questions, as samples of the loop: retrieve, then ask (EVisRAG, arXiv 2510.09733).

    pages/ + questions.jsonl ─read_document─▶ pages, questions ─retrieve, frozen─▶ k pages a question ─▶ PagedSample

What is retrieved may lack the evidence. Where it is known which pages hold it, a question without all of them is one of
insufficient context, and to abstain is right; where it is not, the context is taken to suffice.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import answers
import data
from config import Config, InputError
from models import Policy
from reading import ID, TEXT, Field, fields, id_of, ids_of, object_of, optional, shown, text_of, unique
from related import retrieve
from support import questions, ranks

QUERY = "Represent this query for retrieving relevant documents:"
INSUFFICIENT = "insufficient to answer"
QUESTIONS = "questions.jsonl"  # a folder that holds it is a library of pages
PAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")


# ── what people bring ────────────────────────────────────────────────────────────────────────────────────────────────
def evidence_of(value: Any) -> dict[str, str]:
    """What each page with evidence says, by its name: from an object, or a list of names, which tells no words."""
    if isinstance(value, dict):
        return {id_of(name): text_of(text) for name, text in value.items()}
    return dict.fromkeys(ids_of([value] if not isinstance(value, list) else value), data.SOMETHING)


def page_boxes_of(value: Any) -> dict[str, list]:
    """The boxes of each page with evidence, by its name."""
    return {id_of(name): data.boxes_of(boxes) for name, boxes in object_of(value).items()}


DOCUMENT_QUESTION = {  # a line of questions.jsonl
    "question": TEXT,
    "answer": data.ANSWER,
    "id": optional(ID),
    "evidence_pages": optional(Field("a list of pages by their names, or an object of what each of them says", evidence_of)),
    "evidence_boxes": optional(Field("an object of a box, or a list of boxes, for each page by its name", page_boxes_of)),
}


@dataclass(frozen=True)
class Document:
    """One's own pages, and what is asked about them."""

    pages: dict[str, data.Page]  # by their names, in order; their evidence differs from question to question
    questions: list[dict]  # the fields of DOCUMENT_QUESTION


def read_document(folder: Path, counts: Counter) -> Document:
    """A folder of `pages/`, images that are named by their path in it without its ending, and `questions.jsonl`.

    Raises InputError for what is not there, with the numbers of all bad lines.
    """
    paths = sorted(p for p in (folder / "pages").rglob("*") if p.suffix.lower() in PAGE_ENDINGS and not p.name.startswith("."))
    if not paths:
        raise InputError(f"{folder / 'pages'}: expected images of pages ({', '.join(PAGE_ENDINGS)}); found none")
    names = [path.relative_to(folder / "pages").with_suffix("").as_posix() for path in paths]
    unique(names, folder / "pages", "names of pages without their endings")
    pages = {name: data.Page(path, data.check_image(path, None, counts)) for name, path in zip(names, paths)}
    questions = list(data.good_lines(folder / QUESTIONS, lambda entry, number: document_question(entry, number, pages)))
    if not questions:
        raise InputError(f"{folder / QUESTIONS}: expected questions; found none")
    return Document(pages, questions)


def document_question(entry: Any, number: int, pages: dict[str, data.Page]) -> dict:
    """The fields of one line. Raises InputError without the line's place."""
    values = fields(entry, DOCUMENT_QUESTION, "line")
    values["id"] = values["id"] or f"line-{number}"
    for field in ("evidence_pages", "evidence_boxes"):
        for name in values[field] or {}:
            if name not in pages:
                known = f"the name of one of {len(pages)} pages, as {next(iter(pages))!r}"
                raise InputError(f"{field}: expected {known}; found {name!r}")
    if values["evidence_pages"] == {} and not answers.abstains(values["answer"]):
        raise InputError(f"evidence_pages: expected the pages that tell the answer, {shown(values['answer'])}; found none")
    boxes = values["evidence_boxes"] or {}
    clipped = {name: [data.clip(box, pages[name].size) for box in own] for name, own in boxes.items()}
    for name, own in clipped.items():
        if None in own:
            raise InputError(f"evidence_boxes: box {boxes[name][own.index(None)]} has no area inside page {name!r}")
    return values | {"evidence_boxes": clipped}


# ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def load_samples(
    config: Config, policy: Policy, scratch: Path, quiet: bool = False
) -> tuple[list[data.Sample], dict[str, list[data.Sample]]]:
    """Training samples, and the held-out splits by name: of a library of pages if config.data is one, else of images."""
    folder = Path(config.data)
    if not (folder / QUESTIONS).is_file():
        return questions.load_samples(config, policy, scratch, quiet)
    counts: Counter = Counter()
    library = read_document(folder, counts)
    found = retrieved(policy, library, config.pages, quiet)
    samples = [sample_of(question, library, pages) for question, pages in zip(library.questions, found)]
    questions.check_prompts(policy, samples, config)
    for sample in samples:
        counts[f"{sample.family} context"] += 1
    splits = data.by_split(samples)
    if not splits["train"]:
        raise InputError(f"{folder}: expected samples to train on; all {len(samples)} questions fall in other splits")
    if not quiet:
        print(f"data: {len(library.pages)} pages,", *(f"  {name}: {n}" for name, n in counts.items()), sep="\n")
        print("  samples:", ", ".join(f"{len(own)} {name}" for name, own in splits.items()))
    return splits.pop("train"), {name: own for name, own in splits.items() if own}


def retrieved(policy: Policy, library: Document, k: int, quiet: bool) -> list[list[int]]:
    """The k pages, or all if there are fewer, that fit each question best, the best first. The ranks share the work."""
    pages, k = list(library.pages.values()), min(k, len(library.pages))
    mine = tqdm(ranks.share(pages), desc="reading pages", disable=quiet)
    asked = [f"{QUERY} {question['question']}" for question in library.questions]
    with policy.reference() if policy.adapter else nullcontext():  # a trained reader retrieves what it was trained on
        index = torch.stack(ranks.gather([embedding(policy, page) for page in mine])).to(policy.device)  # (P, D)
        return ranks.gather([retrieve.top_k(policy, index, query, k) for query in ranks.share(asked)])


def embedding(policy: Policy, page: data.Page) -> Tensor:
    """The embedding (D,) of one page, on the CPU."""
    return retrieve.index_pages(policy, [policy.encode(data.open_image(page.image))])[0].cpu()


def sample_of(question: dict, library: Document, found: Sequence[int]) -> data.PagedSample:
    """A question about the pages that were found for it."""
    gold = "" if question["evidence_pages"] is None else "contained"
    evidence, boxes, names = question["evidence_pages"] or {}, question["evidence_boxes"], list(library.pages)
    shown = [names[i] for i in found]
    pages = tuple(
        replace(library.pages[name], evidence=evidence.get(name, ""), boxes=tuple(boxes.get(name, ()))) for name in shown
    )
    answer = question["answer"] if evidence.keys() <= set(shown) else INSUFFICIENT
    family = data.CONTEXTS[answers.abstains(answer)]
    return data.PagedSample(question["id"], question["id"], pages, question["question"], answer, family, gold)
