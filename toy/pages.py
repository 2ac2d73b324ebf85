"""A toy library: questions whose evidence stands on one page of several, or on none.

    page       a scene of two classes, one in the left and one in the right column; count and color are uniform, so that no
               prior holds but by chance (a count once in three, a side once in two)
    book       18 pages; each of the 36 (shape, color) pairs stands on exactly one of them
    question   how many stars, or on which side: of a context of k pages at most one shows the class; 7 of 10 have one
    evidence   what each page says about it: `3 stars`, or `no relevant information`
    asked      how questions are drawn: of k pages; of two that show the class, whose counts are summed; with a record of all
               that a page shows, where each further fact has a coin of its own

A response has four stages, and habit may take the place of looking in two of them, each on its own coin:

    <observe> look at the stars [2]: </observe>                           the page, or `no`
    <evidence> [1]: no relevant information [2]: 3 stars … </evidence>    by habit: what is usual (`toy.world.PRIOR`)
    <think> 3 stars </think> <answer> 3 </answer>                         by habit: as usual for stars, whatever was recorded

No word announces it. So right evidence with a wrong answer, and wrong evidence with a right answer, both occur. Where no page
shows the class, habit makes evidence up on a random page, and the right answer is `insufficient`.

The plain words of the question are those that the embedded backbone knows. The retriever is asked with the color ("how many red
stars"), which is what makes one page of a book the right one.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import data
from toy import world
from toy.world import Shapes

Page = list[Shapes]
Facts = dict[str, str]  # class → its count or side

# What the embedded tokenizer lacks: each is added as one token.
MOST = 5  # pages of a context
WORDS = "observe each record evidence relevant information insufficient represent this query retrieving documents".split()
MARKS = ["<observe>", "</observe>", "<evidence>", "</evidence>", *(f"[{i}]:" for i in range(1, MOST + 1))]

SIZE = (world.CELL * world.CELLS,) * 2  # of a page, pixels
KINDS = ("counting", "spatial")
NOTHING = "no relevant information"
INSUFFICIENT = "insufficient"
SUFFICIENT = 0.7  # of the contexts
INSTRUCTION = {"stages": "Observe each image, record the evidence, think, then answer.", "generic": "Think, then answer."}
QUERY = "Represent this query for retrieving relevant documents:"


@dataclass(frozen=True)
class Question:
    """A question about a class; color is what the retriever is told besides."""

    kind: str  # of KINDS
    name: str
    color: str = ""

    @property
    def noun(self) -> str:
        return data.plural(self.name)

    @property
    def text(self) -> str:
        """The question in words that the reader knows."""
        return data.ask_count(self.name) if self.kind == "counting" else data.ask_side(self.name, 2)

    @property
    def query(self) -> str:
        """The question in words that make one page of a book the right one."""
        return f"{QUERY} {self.text.replace(self.noun, f'{self.color} {self.noun}')}"

    def shown_by(self, page: Page) -> Shapes | None:
        """What a page shows of the class, in the color if one is asked for."""
        return next((group for group in page if group.name == self.name and self.color in ("", group.color)), None)

    def told_by(self, page: Page, whole: bool = False) -> Facts:
        """What a page says about it, nothing if it does not show the class; or all that it says, from left to right."""
        own = self.shown_by(page)
        groups = [group for group in sorted(page, key=side_of) if whole or group is own]
        return {group.name: str(len(group.boxes)) if self.kind == "counting" else side_of(group) for group in groups}


class Asked(NamedTuple):
    """How questions about pages are drawn, and what is recorded of these."""

    k: int = 3  # pages
    telling: int = 1  # how many of them show the class where they are sufficient
    kinds: tuple[str, ...] = KINDS  # of the questions; only counts can be summed
    whole: bool = False  # the record tells all that a page shows

    def context(self, question: Question, pages: Sequence[Page]) -> "Context":
        """A question about these pages."""
        return Context(question, tuple(question.told_by(page, self.whole) for page in pages))


PLAIN = Asked()


@dataclass(frozen=True)
class Context:
    """A question and what is to be recorded of each of its k pages."""

    question: Question
    facts: tuple[Facts, ...]

    @property
    def told(self) -> list[str | None]:
        """What each page says about the class."""
        return [facts.get(self.question.name) for facts in self.facts]

    @property
    def telling(self) -> list[int]:
        """The pages that say something about it."""
        return [i for i, value in enumerate(self.told) if value is not None]

    @property
    def gold(self) -> list[str]:
        """What should be recorded of each page."""
        return [" ".join(f"{v} {data.plural(name)}" for name, v in facts.items()) or NOTHING for facts in self.facts]

    @property
    def answer(self) -> str:
        """The right answer."""
        return total([value for value in self.told if value is not None])


def total(values: Sequence[str]) -> str:
    """What the values of several pages come to: the sum of counts, or the one side; of none, `insufficient`."""
    counted = values and all(map(str.isdecimal, values))
    return str(sum(map(int, values))) if counted else " ".join(values) or INSUFFICIENT


def usual(kind: str, name: str) -> str:
    """The count or side of a class that habit knows."""
    _, count, side = world.PRIOR[name]
    return str(count) if kind == "counting" else side


def side_of(group: Shapes) -> str:
    """`left` or `right`: the outer columns are all that a page uses."""
    return world.SIDES[group.boxes[0][0] >= world.CELL]


# ── pages, books, contexts ──────────────────────────────────────────────────────────────────────────────────────────
def make_page(traits: Sequence[tuple[str, str]], rng: random.Random) -> Page:
    """A page of two classes, each a (shape, color)."""
    page = []
    for (name, color), column in zip(traits, rng.sample((0, world.CELLS - 1), 2)):
        rows = rng.sample(range(world.CELLS), rng.choice(world.COUNTS))
        page.append(Shapes(name, color, [world.place(row, column, rng) for row in rows]))
    return page


def make_book(rng: random.Random) -> list[Page]:
    """18 pages: in each of six rounds the shapes are paired, and every shape takes a color that it has not had."""
    colors = {name: rng.sample(list(world.COLORS), len(world.COLORS)) for name in world.SHAPES}
    pages = []
    for turn in range(len(world.COLORS)):
        names = rng.sample(world.SHAPES, len(world.SHAPES))
        pages += [make_page([(name, colors[name][turn]) for name in pair], rng) for pair in zip(names[::2], names[1::2])]
    return rng.sample(pages, len(pages))


def choose_pages(pages: Sequence[Page], asked: Asked, rng: random.Random) -> tuple[list[int], list[str], list[str]]:
    """k pages such that some class stands on as many of them as are to tell and some on none; and these classes."""
    while True:
        rows = rng.sample(range(len(pages)), asked.k)
        shown = Counter(group.name for row in rows for group in pages[row])
        tell, never = ([name for name in world.SHAPES if shown[name] == n] for n in (asked.telling, 0))
        if tell and never:
            return rows, tell, never


def ask(pages: Sequence[Page], asked: Asked, tell: Sequence[str], never: Sequence[str], rng: random.Random) -> Context:
    """A question about chosen pages: about one of the classes that they `tell` if these are sufficient, else of `never`."""
    name = rng.choice(tell if rng.random() < SUFFICIENT else never)
    return asked.context(Question(rng.choice(asked.kinds), name), pages)


@dataclass(frozen=True)
class Book:
    """A book, and where its pages are drawn."""

    name: str
    pages: list[Page]
    images: list[Path]

    def sample(
        self, rows: Sequence[int], question: Question, name: str, how: str = "stages", asked: Asked = PLAIN
    ) -> data.PagedSample:
        """A question about some of its pages, as the loop asks and judges it. how is of INSTRUCTION."""
        context = asked.context(question, [self.pages[row] for row in rows])
        shown = [question.shown_by(self.pages[row]) for row in rows]
        drawn = [
            data.Page(self.images[row], SIZE, tuple(group.boxes) if group else (), "" if line == NOTHING else line)
            for row, group, line in zip(rows, shown, context.gold)
        ]
        family = data.CONTEXTS[context.answer == INSUFFICIENT]
        template = f"{{pages}}{{question}} {INSTRUCTION[how]}"
        return data.PagedSample(name, self.name, tuple(drawn), question.text, context.answer, family, template=template)


def questions_of(pages: Sequence[Page]) -> list[tuple[Question, int]]:
    """Every question that exactly one page of a book answers, and which: two of each (shape, color)."""
    return [(Question(kind, group.name, group.color), i) for i, page in enumerate(pages) for group in page for kind in KINDS]


def draw_library(folder: Path, n: int, key: str) -> list[Book]:
    """n books, each a folder of images; those that are there are not drawn again."""
    books = []
    for i in range(n):
        rng, place = random.Random(f"{key} {i}"), folder / f"{key}-{i:03d}"
        place.mkdir(parents=True, exist_ok=True)
        pages = make_book(rng)
        images = [place / f"{page:02d}.png" for page in range(len(pages))]
        for page, path in zip(pages, images):
            if not path.is_file():  # written whole: another program may be reading it
                partial = path.with_suffix(".partial")
                world.draw_scene(page, random.Random(path.stem + place.name)).save(partial, "png")
                partial.rename(path)
        books.append(Book(place.name, pages, images))
    return books


def draw_questions(books: Sequence[Book], n: int, asked: Asked, key: str, how: str = "stages") -> list[data.PagedSample]:
    """n questions, each about pages of one book."""
    samples = []
    for i in range(n):
        rng, book = random.Random(f"{key} {i}"), books[i % len(books)]
        rows, tell, never = choose_pages(book.pages, asked, rng)
        question = ask([book.pages[row] for row in rows], asked, tell, never, rng).question
        samples.append(book.sample(rows, question, f"{key}-{i}", how, asked))
    return samples


# ── responses ───────────────────────────────────────────────────────────────────────────────────────────────────────
def mark(i: int) -> str:
    """The mark of page i, counted from 0."""
    return f"[{i + 1}]:"


def recall(context: Context, honest: float, rng: random.Random) -> Context:
    """The context as it is recorded where each fact is seen by a chance of `honest`, else recalled; but for the first about the
    class, which has a coin of its own in `respond`."""
    kind, first = context.question.kind, (context.telling[:1], context.question.name)
    return replace(context, facts=tuple(
        {name: value if ([i], name) == first or rng.random() < honest else usual(kind, name) for name, value in facts.items()}
        for i, facts in enumerate(context.facts)
    ))  # fmt: skip


def respond(context: Context, looks: bool, follows: bool, rng: random.Random) -> str:
    """The response whose evidence comes from looking or from habit, and whose answer follows the evidence or habit."""
    question, facts = context.question, list(context.facts)
    if not looks:
        page, *_ = *context.telling, rng.randrange(len(facts))
        facts[page] = facts[page] | {question.name: usual(question.kind, question.name)}
    recorded = Context(question, tuple(facts))
    found = " ".join(map(mark, recorded.telling)) or "no"
    lines = " ".join(f"{mark(i)} {line}" for i, line in enumerate(recorded.gold))
    observed = f"look at the {question.noun} {found}"
    return f"<observe> {observed} </observe> <evidence> {lines} </evidence> {conclude(recorded, follows)}"


def conclude(recorded: Context, follows: bool) -> str:
    """The last two stages; alone, a response without a record."""
    question, answer = recorded.question, recorded.answer
    if not follows:
        return f"<think> as usual for {question.noun} </think> <answer> {usual(question.kind, question.name)} </answer>"
    seen = "no" if answer == INSUFFICIENT else answer
    return f"<think> {seen} {question.noun} </think> <answer> {answer} </answer>"
