"""A toy library: questions whose evidence stands on one page of several, or on none.

    page       a scene of two classes, one in the left and one in the right column; count and color are uniform, so that no
               prior holds but by chance (a count once in three, a side once in two)
    book       18 pages; each of the 36 (shape, color) pairs stands on exactly one of them
    question   how many stars, or on which side: of a context of k pages at most one shows the class; 7 of 10 have one
    evidence   what each page says about it: `3 stars`, or `no relevant information`

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
from dataclasses import dataclass
from pathlib import Path

import data
from toy import world
from toy.world import Shapes

Page = list[Shapes]

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

    @property
    def usual(self) -> str:
        """What habit answers."""
        _, count, side = world.PRIOR[self.name]
        return str(count) if self.kind == "counting" else side

    def shown_by(self, page: Page) -> Shapes | None:
        """What a page shows of the class, in the color if one is asked for."""
        return next((group for group in page if group.name == self.name and self.color in ("", group.color)), None)

    def told_by(self, page: Page) -> str | None:
        """What a page says about it; None if it does not show the class."""
        group = self.shown_by(page)
        return group and (str(len(group.boxes)) if self.kind == "counting" else side_of(group))


@dataclass(frozen=True)
class Context:
    """A question and what each of its k pages says about it."""

    question: Question
    told: tuple[str | None, ...]

    @property
    def gold(self) -> list[str]:
        """What should be recorded of each page."""
        return [NOTHING if value is None else f"{value} {self.question.noun}" for value in self.told]

    @property
    def answer(self) -> str:
        """The right answer."""
        return next((value for value in self.told if value is not None), INSUFFICIENT)


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


def choose_pages(pages: Sequence[Page], k: int, rng: random.Random) -> tuple[list[int], list[str], list[str]]:
    """k pages such that some class stands on exactly one of them and some on none; and these classes."""
    while True:
        rows = rng.sample(range(len(pages)), k)
        shown = Counter(group.name for row in rows for group in pages[row])
        once, never = ([name for name in world.SHAPES if shown[name] == n] for n in (1, 0))
        if once and never:
            return rows, once, never


def ask(pages: Sequence[Page], once: Sequence[str], never: Sequence[str], rng: random.Random) -> Context:
    """A question about chosen pages: about one of the classes `once` if these are sufficient, else about one of `never`."""
    name = rng.choice(once if rng.random() < SUFFICIENT else never)
    question = Question(rng.choice(KINDS), name)
    return Context(question, tuple(map(question.told_by, pages)))


@dataclass(frozen=True)
class Book:
    """A book, and where its pages are drawn."""

    name: str
    pages: list[Page]
    images: list[Path]

    def sample(self, rows: Sequence[int], question: Question, name: str, how: str = "stages") -> data.PagedSample:
        """A question about some of its pages, as the loop asks and judges it. how is of INSTRUCTION."""
        context = Context(question, tuple(question.told_by(self.pages[row]) for row in rows))
        shown = [question.shown_by(self.pages[row]) for row in rows]
        drawn = [
            data.Page(self.images[row], SIZE, tuple(group.boxes) if group else (), line if group else "")
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


def draw_questions(books: Sequence[Book], n: int, k: int, key: str, how: str = "stages") -> list[data.PagedSample]:
    """n questions, each about k pages of one book, of which at most one shows the class."""
    samples = []
    for i in range(n):
        rng, book = random.Random(f"{key} {i}"), books[i % len(books)]
        rows, once, never = choose_pages(book.pages, k, rng)
        question = ask([book.pages[row] for row in rows], once, never, rng).question
        samples.append(book.sample(rows, question, f"{key}-{i}", how))
    return samples


# ── responses ───────────────────────────────────────────────────────────────────────────────────────────────────────
def mark(i: int) -> str:
    """The mark of page i, counted from 0."""
    return f"[{i + 1}]:"


def respond(context: Context, looks: bool, follows: bool, rng: random.Random) -> str:
    """The response whose evidence comes from looking or from habit, and whose answer follows the evidence or habit."""
    question, told = context.question, list(context.told)
    if not looks:
        page = next((i for i, value in enumerate(told) if value is not None), rng.randrange(len(told)))
        told[page] = question.usual
    recorded = Context(question, tuple(told))
    found = next((mark(i) for i, value in enumerate(told) if value is not None), "no")
    lines = " ".join(f"{mark(i)} {line}" for i, line in enumerate(recorded.gold))
    observed = f"look at the {question.noun} {found}"
    return f"<observe> {observed} </observe> <evidence> {lines} </evidence> {conclude(recorded, follows)}"


def conclude(recorded: Context, follows: bool) -> str:
    """The last two stages; alone, a response without a record."""
    question, answer = recorded.question, recorded.answer
    if not follows:
        return f"<think> as usual for {question.noun} </think> <answer> {question.usual} </answer>"
    seen = "no" if answer == INSUFFICIENT else answer
    return f"<think> {seen} {question.noun} </think> <answer> {answer} </answer>"
