"""A toy task for process rewards: two looks and a conclusion, each of which can be wrong on its own.

    kind    question                                     looks          conclusion                       answer
    total   How many stars and circles are there?        count, count   3 + 1 = 4                        2 … 6
    more    Are there more stars than circles?           count, count   3 is [not] more than 1           yes | no
    same    Are the stars the same color as the circles? color, color   red is [not] the same as white   yes | no
    order   Are the stars left of the circles?           side, side     left is [not] left of right      yes | no

A solution states, beside each step, the visual fact that it rests on:

    <think> there are 3 stars ["count", "star", 3] . there are 1 circles ["count", "circle", 1] . 3 + 1 = 4 null . </think>
    <answer> 4 </answer>

Labels come from the scene. A look is right if its *words* are so; a conclusion is right if it follows from the two looks *as
stated*, whether these are true or not: that separates "seen wrongly" from "reasoned wrongly". Three of four kinds are answered
yes or no, so wrong steps may end in a right answer: a solution is `sound` if all of its steps are right.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

import data
from answers import answer_text
from toy import world

# What the embedded tokenizer lacks: each is added as one token.
WORDS = "and more than same not middle count side null + = list facts each step".split()
MARKS = ['["', '[["', '",', '"', '"]', '"],', '"]]', "]", "],", "]]"]

COLUMNS = ("left", "middle", "right")
# In the order in which an extractor states them: what has been located is counted twice as well (0.96 against 0.58, see docs).
OPTIONS = {"color": tuple(world.COLORS), "side": COLUMNS, "count": world.COUNTS}
PREDICATE = {"total": "count", "more": "count", "same": "color", "order": "side"}  # what a kind's looks see
QUESTION = {
    "total": "How many {a} and {b} are there?",
    "more": "Are there more {a} than {b}?",
    "same": "Are the {a} the same color as the {b}?",
    "order": "Are the {a} left of the {b}?",
}
RELATION = {"more": "more than", "same": "the same as", "order": "left of"}
LOOK = {"count": "there are {v} {n}", "color": "the {n} are {v}", "side": "the {n} are on the {v}"}
TRUTH, SLIP, FALLACY = 0.5, 0.02, 0.25  # looks that see (others recall what is usual), random values, wrong conclusions

SINGULAR = {data.plural(name): name for name in world.SHAPES}
READ_LOOK = {  # words → plural noun and value
    "count": re.compile(r"there are (?P<v>\w+) (?P<n>\w+)"),
    "color": re.compile(r"the (?P<n>\w+) are (?P<v>\w+)"),
    "side": re.compile(r"the (?P<n>\w+) are on the (?P<v>\w+)"),
}


@dataclass(frozen=True)
class Question:
    """A question about two classes of a scene, and what is true of them."""

    kind: str
    names: tuple[str, str]
    truth: dict[str, dict[str, int | str]]  # class → predicate → value

    @property
    def text(self) -> str:
        """The question in words."""
        a, b = map(data.plural, self.names)
        return QUESTION[self.kind].format(a=a, b=b)

    @property
    def facts(self) -> list[tuple[str, str, int | str]]:
        """All that an extractor should see: color, side and count of both classes."""
        return [(predicate, name, self.truth[name][predicate]) for name in self.names for predicate in OPTIONS]

    @property
    def answer(self) -> str:
        """The right answer."""
        predicate = PREDICATE[self.kind]
        return conclude(self.kind, *(self.truth[name][predicate] for name in self.names))[1]


@dataclass(frozen=True)
class Solution:
    """A response that could be read."""

    words: list[str]  # of each step
    claims: list[str]  # of each step: JSON, "" for `null`
    answer: str


# ── scenes and questions ────────────────────────────────────────────────────────────────────────────────────────────
def make_scene(mode: str, rng: random.Random) -> list[world.Shapes]:
    """A scene of `world.make_scene` with two classes at least."""
    while len(scene := world.make_scene(mode, rng)) < 2:
        pass
    return scene


def traits(group: world.Shapes) -> dict[str, int | str]:
    """What can be seen of a class."""
    column = COLUMNS[group.boxes[0][0] // world.CELL]
    return {"count": len(group.boxes), "color": group.color, "side": column}


def ask(scene: Sequence[world.Shapes], rng: random.Random) -> Question:
    """A random question about two random classes. Only classes of the outer columns have a usual side: `order` takes these."""
    truth = {group.name: traits(group) for group in scene}
    outer = [name for name in truth if truth[name]["side"] != "middle"]
    kind = rng.choice(list(QUESTION) if len(outer) == 2 else [kind for kind in QUESTION if kind != "order"])
    names = rng.sample(outer if kind == "order" else list(truth), 2)
    return Question(kind, tuple(names), truth)


# ── solutions ───────────────────────────────────────────────────────────────────────────────────────────────────────
def conclude(kind: str, x: int | str, y: int | str, right: bool = True, slip: int = 1) -> tuple[str, str]:
    """The conclusion from two values and the answer that it gives; a wrong total is `slip` numbers further on in 2 … 6."""
    if kind == "total":
        total = x + y if right else (x + y - 2 + slip) % 5 + 2
        return f"{x} + {y} = {total}", str(total)
    true = {"more": lambda: x > y, "same": lambda: x == y, "order": lambda: COLUMNS.index(x) < COLUMNS.index(y)}[kind]()
    said = true == right
    return f"{x} is {'' if said else 'not '}{RELATION[kind]} {y}", "yes" if said else "no"


def write_solution(kind: str, names: Sequence[str], values: Sequence[int | str], conclusion: str, answer: str) -> str:
    """A response in the task's form."""
    predicate, steps = PREDICATE[kind], ""
    for name, value in zip(names, values):
        words = LOOK[predicate].format(n=data.plural(name), v=value)
        steps += f"{words} {json.dumps([predicate, name, value])} . "
    return f"<think> {steps}{conclusion} null . </think> <answer> {answer} </answer><|im_end|>"


def demonstrate(question: Question, rng: random.Random) -> str:
    """A response for the policy to learn: half of its looks recall what is usual, and a quarter of its conclusions is wrong."""
    predicate, values = PREDICATE[question.kind], []
    for name in question.names:
        usual = dict(zip(("color", "count", "side"), world.PRIOR[name]))[predicate]
        seen = question.truth[name][predicate] if rng.random() < TRUTH else usual
        values.append(rng.choice(OPTIONS[predicate]) if rng.random() < SLIP else seen)
    x, y = values
    ended = conclude(question.kind, x, y, rng.random() >= FALLACY, rng.randint(1, 4))
    return write_solution(question.kind, question.names, values, *ended)


def write_facts(question: Question) -> str:
    """The response that an extractor should give."""
    return f"{json.dumps(question.facts)}<|im_end|>"


def read_solution(text: str) -> Solution | None:
    """A response's steps and answer; None if it has not the task's form: two looks and a conclusion, no other control token."""
    form = r"\s*<think>(?P<steps>[^<]*)</think>\s*<answer>(?P<answer>[^<.]*)</answer>\s*(<\|im_end\|>)?\s*"
    found = re.fullmatch(form, text)
    parts = [part.strip() for part in re.split(r" \.(?= |$)", found["steps"].rstrip())] if found else []
    if len(parts) != 4 or parts[3] or not answer_text(text):  # what follows the last point is empty
        return None
    words, claims = zip(*(read_step(part) for part in parts[:3]))
    return Solution(list(words), list(claims), found["answer"].strip())


def read_step(part: str) -> tuple[str, str]:
    """A step's words and its claim. A step with neither JSON nor `null` claims something that nobody can read: all of it."""
    words, bracket, claim = part.partition("[")
    if bracket:
        return words.strip(), bracket + claim
    return part.removesuffix("null").strip(), "" if part.endswith("null") else part


# ── labels ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_look(predicate: str, words: str) -> tuple[str, int | str] | None:
    """The class and value that a look's words state; None if they are no look of this kind."""
    found = READ_LOOK[predicate].fullmatch(words)
    if not found or found["n"] not in SINGULAR:
        return None
    return SINGULAR[found["n"]], int(found["v"]) if found["v"].isdigit() else found["v"]


def label_steps(question: Question, solution: Solution) -> list[int]:
    """1 or −1 for each step: two looks at what was asked, true or not, and a conclusion that follows from them or not."""
    predicate = PREDICATE[question.kind]
    looks = [read_look(predicate, words) for words in solution.words[:2]]
    true = [look == (name, question.truth[name][predicate]) for look, name in zip(looks, question.names)]
    values = [look[1] for look in looks if look and look[1] in OPTIONS[predicate]]
    follows = len(values) == 2 and solution.words[2] == conclude(question.kind, *values)[0]
    return [1 if right else -1 for right in (*true, follows)]
