"""The reader of `toy.pages`: the embedded backbone that has learned the four stages, by looking and by habit.

python -m toy.reader [--out DIR] [--seed N]      rebuilds assets/evisrag (11 minutes of one core, at 0.2 s an update)

    leg         honest   lr       updates   what comes of it
    two pages   1.00     1.5e-3   600       which of two pages shows the class: 0.8 of the looks are right, by chance 0.65
    read        0.85     1.5e-3   2000      which of three: 0.5 for 500 updates, 0.95 after 1000, which is all that can be known
    habit       0.45     7e-4     300       the habit that a reward has to break, at either stage

Which page shows what was asked is the one thing that is hard to learn: the log has it as `where` from the first update, since
all other tokens together hide it. Without the first leg it is 0.58 after 1600 updates of the second. The language model is
trained whole, the vision tower stays frozen. A context is read once for all its questions. A fifth of the responses has no
record (`Think, then answer.`), so that the same reader serves as the control without stages.
"""

import argparse
import functools
import math
import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import sft
from models import Policy, Vision, chat_prompt
from toy import pages, roles, world
from toy.pages import INSTRUCTION, PLAIN, Asked, Context, Page

EVISRAG = Path(__file__).parent.parent / "assets" / "evisrag"
POOL = 4000  # pages, drawn once
CONTEXTS, QUESTIONS = 8, 3  # of an update
GENERIC = 0.2  # of the responses
CONTENT = [*map(str, world.COUNTS), *world.SIDES, "no", "usual", pages.INSUFFICIENT]  # and all of <observe>


class Leg(NamedTuple):
    """Some updates: the share of honest coins at either stage, how much more a token counts that says something, and what is
    asked."""

    updates: int
    lr: float
    honest: float
    weight: float
    asked: Asked = PLAIN


LEGS = {
    "two pages": Leg(600, 1.5e-3, 1.0, 6.0, Asked(k=2)),
    "read": Leg(2000, 1.5e-3, 0.85, 6.0),
    "habit": Leg(300, 7e-4, 0.45, 2.0),
}


class Lesson(NamedTuple):
    """A batch: contexts as `Policy.read_batch` takes them, which of them each row continues, and the rows."""

    contexts: list[tuple[Tensor, list[Vision]]]
    owner: Tensor  # (B,)
    ids: Tensor  # (B, L) the question and the response
    weights: Tensor  # (B, L) 0 on the question


# ── prompts ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@functools.cache
def prompt_of(policy: Policy, question: str, k: int, how: str) -> Tensor:
    """The prompt (P,) of a question about k pages, for `stages` or `generic`."""
    parts = [part for i in range(k) for part in (pages.mark(i), math.prod(policy.grid(pages.SIZE)))]
    parts.append(f"{question} {INSTRUCTION[how]}")
    return torch.tensor(chat_prompt(policy.tokenizer, parts, policy.image_token, True))


def cut(policy: Policy, prompt: Tensor) -> int:
    """How many tokens of a prompt (P,) its pages take: what is the same for all questions about them."""
    return int((prompt == policy.image_token).nonzero()[-1]) + 1


def draw_pages(policy: Policy, n: int, key: str) -> tuple[list[Page], Vision]:
    """n pages of random pairs, and what the tower makes of them: maps (n, N, D)."""

    def make(mode: str, rng: random.Random) -> Page:
        names, colors = rng.sample(world.SHAPES, 2), rng.choices(list(world.COLORS), k=2)
        return pages.make_page(list(zip(names, colors)), rng)

    return roles.draw_scenes(policy, "pages", n, key, make)


# ── lessons ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def lesson_row(policy: Policy, context: Context, leg: Leg, rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """A question's prompt (P,), and ids (L,) and weights (L,) of what follows its pages: the question and a response."""
    looks, follows = rng.random() < leg.honest, rng.random() < leg.honest
    how = "generic" if rng.random() < GENERIC else "stages"
    recorded = pages.recall(context, leg.honest, rng)
    said = pages.conclude(recorded, follows) if how == "generic" else pages.respond(recorded, looks, follows, rng)
    ids = roles.encode(policy, said + "<|im_end|>")
    content = torch.isin(ids, torch.tensor(policy.tokenizer.convert_tokens_to_ids(CONTENT)))
    if how == "stages":
        content[: ids.tolist().index(policy.tokenizer.convert_tokens_to_ids("</observe>"))] = True
    prompt = prompt_of(policy, context.question.text, leg.asked.k, how)
    return prompt, *sft.example(prompt[cut(policy, prompt) :], ids, torch.where(content, leg.weight, 1.0))


def lessons(policy: Policy, leg: Leg, pool: Sequence[Page], vision: Vision, rng: random.Random) -> Iterator[Lesson]:
    """Endless batches of CONTEXTS contexts with QUESTIONS questions each. vision holds the pool's maps."""
    while True:
        contexts, batch = [], []
        for _ in range(CONTEXTS):
            rows, tell, never = pages.choose_pages(pool, leg.asked, rng)
            for _ in range(QUESTIONS):
                context = pages.ask([pool[row] for row in rows], leg.asked, tell, never, rng)
                prompt, *example = lesson_row(policy, context, leg, rng)
                batch.append(tuple(example))
            contexts.append((prompt[: cut(policy, prompt)], [roles.view(vision, [row]) for row in rows]))
        owner = torch.arange(CONTEXTS).repeat_interleave(QUESTIONS)
        yield Lesson(contexts, owner, *sft.batch_of(batch, policy.pad_id))


def loss_of(policy: Policy, lesson: Lesson) -> tuple[Tensor, dict[str, float]]:
    """The loss of a batch; `where` is the share of records that begin with the lesson's page, or with there being none."""
    ids, scored = lesson.ids, lesson.weights > 0
    branch = policy.read_batch(lesson.contexts).fork(lesson.owner)
    logits = policy.head(policy.states(branch, ids)[scored])
    right = torch.zeros_like(scored).masked_scatter(scored, logits.argmax(-1) == ids[scored])
    close = policy.tokenizer.convert_tokens_to_ids("</observe>")
    where = ids.roll(-1, 1) == close
    shown = {"where": float(right[where].float().mean()), "right": float(right[lesson.weights > 1].float().mean())}
    return sft.response_loss(logits, ids[scored], lesson.weights[scored]), shown


def teach(policy: Policy, legs: dict[str, Leg], seed: int) -> None:
    """Trains the language model in legs."""
    pool, vision = draw_pages(policy, POOL, f"pool {seed}")
    parameters = list(policy.trunk.language_model.parameters())
    for name, leg in legs.items():
        source = lessons(policy, leg, pool, vision, random.Random(f"{name} {seed}"))
        sft.train(parameters, source, partial(loss_of, policy), leg.updates, leg.lr, name)


# ── all of it ───────────────────────────────────────────────────────────────────────────────────────────────────────
def base(seed: int) -> Policy:
    """The embedded backbone with the task's words, whose embeddings are random."""
    return roles.base(seed, pages.WORDS + pages.MARKS)


def save(policy: Policy, out: Path) -> None:
    """Writes a reader in transformers format."""
    for part in (policy.model, policy.tokenizer, policy.image_processor):
        part.save_pretrained(out)


def main(argv: Sequence[str] | None = None) -> None:
    """Rebuilds the reader from the embedded backbone."""
    parser = argparse.ArgumentParser("python -m toy.reader", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=EVISRAG, help="where it goes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    policy = base(args.seed)
    teach(policy, LEGS, args.seed)
    save(policy, args.out)


if __name__ == "__main__":
    main()
