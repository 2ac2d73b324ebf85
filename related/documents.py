"""One's own pages and questions, as samples of the loop: retrieve, then ask (EVisRAG, arXiv 2510.09733).

    pages/ + questions.jsonl ─data.read_document─▶ pages, questions ─retrieve, frozen─▶ k pages a question ─▶ PagedSample

What is retrieved may lack the evidence. Where it is known which pages hold it, a question without all of them is one of
insufficient context, and to abstain is right; where it is not, the context is taken to suffice.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

import answers
import data
from config import Config
from models import Policy
from related import retrieve
from support import questions, ranks

QUERY = "Represent this query for retrieving relevant documents:"
INSUFFICIENT = "insufficient to answer"


def load_samples(
    config: Config, policy: Policy, scratch: Path, quiet: bool = False
) -> tuple[list[data.Sample], dict[str, list[data.Sample]]]:
    """Training samples, and the held-out splits by name: of a library of pages if config.data is one, else of images."""
    folder = Path(config.data)
    if not (folder / data.QUESTIONS).is_file():
        return questions.load_samples(config, policy, scratch, quiet)
    counts: data.Counter = data.Counter()
    library = data.read_document(folder, counts)
    found = retrieved(policy, library, config.pages, quiet)
    samples = [sample_of(question, library, pages) for question, pages in zip(library.questions, found)]
    questions.check_prompts(policy, samples, config)
    for sample in samples:
        counts[f"{sample.family} context"] += 1
    splits = data.by_split(samples)
    if not splits["train"]:
        raise data.InputError(f"{folder}: expected samples to train on; all {len(samples)} questions fall in other splits")
    if not quiet:
        print(f"data: {len(library.pages)} pages,", *(f"  {name}: {n}" for name, n in counts.items()), sep="\n")
        print("  samples:", ", ".join(f"{len(own)} {name}" for name, own in splits.items()))
    return splits.pop("train"), {name: own for name, own in splits.items() if own}


def retrieved(policy: Policy, library: data.Document, k: int, quiet: bool) -> list[list[int]]:
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


def sample_of(question: dict, library: data.Document, found: Sequence[int]) -> data.PagedSample:
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
