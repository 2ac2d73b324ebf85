"""The seventeen public benchmarks of the paper: what each one is, how its replies are judged, and how it adds up.

    raw rows ──to_rows──▶ Row ──content | continuations──▶ what a model reads ──▶ reply ──judge──▶ verdict ──metric──▶ units
    (`read_rows`, `find_rows`)                                                           └──────────── `score` ──────────┘

`BENCHMARKS` is the table; an entry states only what is particular to its benchmark. `score` needs no model: anybody's
replies can be judged by it. All scores are shares in [0, 1].

    kind        what a reply must give                         when it is right
    count       a number                                       the number is the same
    yesno       yes | no                                       the word is the same
    mcq, mmmu   one option, by its letter or by its text       the letter is the same
    word        a text                                         it is the same without case and punctuation
    pair        rows and columns                               both numbers are, in this order
    open        MMMU's free answers: a number, or a text       it is any gold: the number rounded to 2 places; a text gold
                                                               need only stand in the reply, as whole words
    mathvista   an option, an integer, a float, or a list      its official normal form is the same text
    likelihood  log π of every option as a continuation        the right option's is the highest
    mc2         log π of every option as a continuation        a degree: the probability mass on the true options

The first four are read by `answers.py`, whose table says where in a reply the value is looked for. **Unreadable is
wrong, never a guess**, and is counted (`unparsable`). So scores differ from those of harnesses that draw a random letter
(MMMU), fall back to D (FREAK) or take the nearest option (MathVista), and from those that ask a GPT judge
(HallusionBench, MMBench). Each prompt is that of a harness, to the character: `prompts.py` says whose. Which
subsets, prompts and judges the paper used is not known: compare scores only at the same N.

Where the harnesses disagree:
* HallusionBench: the score is of the 951 questions with an image, as in VLMEvalKit and lmms-eval. `_official` is of all 1,129,
  where an unclear reply to one of the 178 whose figure is not given is right, as in the official code.
* VLMsAreBlind: `task_mean` is over lmms-eval's eight tasks: the two kinds of grids are one. Braces are welcome, not required;
  a circled letter is compared without case, since no image offers both.
* FREAK: the right answer is always stored first, so each question is asked in 6 orders. Free-form items need a judge:
  `fib_exact` is their exact match, and no part of the score.
* MathVista: the official normal form is kept, so 7.9 passes for 7 (it is truncated), and 2.5454 fails for a gold of 2.54
  (it is rounded). `official` is the official code's verdict on the reply, taken for the extraction that its GPT would
  make: there an unreadable reply is the option nearest in edit distance, so that a refusal can be right.
* MMBench: a question counts once, and is right only if every rolled copy given is, as in VLMEvalKit and lmms-eval: a copy
  that is missing is not missed. `vanilla` takes the unrolled copies alone.
* MMMU: "2 million" is 2, as officially. Open items are never asked as multiple choice. `official` is the official code's
  verdict, wrong where that draws a random letter.
* ScienceQA: questions without an image are asked with a blank 448x448 one, as in the paper; `with_image` leaves them out.

Revisions: none could be verified without a network, so `revision` is None throughout, which is the newest. Record the
commit that a download resolves to, and pin it: VLMsAreBlind has had 7,656, 8,016 and 9,704 rows.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from PIL import Image

from answers import Reading, judged, normalize_word, parse_choice, read
from benchmarks.prompts import listed, prompt_of
from benchmarks.rows import Row, blank, content, number_of, parsed, read_rows, texts_of
from benchmarks.sums import Metric, Verdict, only, parts
from config import InputError
from reading import shown

__all__ = ["BENCHMARKS", "Row", "align", "benchmark", "content", "continuations", "find_rows", "judge", "read_rows", "score",
           "to_rows"]  # fmt: skip


# ── 1. columns → rows: each function takes a raw row, and gives the fields of a Row or of several ────────────────────

def label(raw: dict, column: str, allowed: Iterable[str]) -> str:
    """The label as text. Raises InputError for an unlabelled row (-1, "", None): it is refused, not scored."""
    allowed, value = list(allowed), str(raw[column]).strip()
    if value not in allowed:
        raise InputError(f"column {column!r} holds no answer: expected one of {', '.join(allowed)}; found {raw[column]!r}")
    return value


def lettered(texts: Iterable[str]) -> dict[str, str]:
    return dict(zip(ascii_uppercase, texts))


def countbench(raw: dict) -> dict:
    # Column `text`, the caption, names the number: it is not shown.
    return dict(images=[raw.get("image")], question=raw["question"], kind="count",
                answer=str(number_of(raw["number"], "number")))


def spatialeval(raw: dict) -> dict:
    """Multiple choice, its options read from the text: the row holds the right one alone. Parts are the tasks."""
    options = dict(re.findall(r"(?m)^\s*\(?([A-Z])[.):] *(.*\S)", raw["text"].rpartition("options:")[2]))
    answer = label(raw, "oracle_option", ascii_uppercase)
    return dict(images=[raw.get("image")], question=raw["text"], options={answer: raw["oracle_answer"]} | options,
                answer=answer, kind="mcq", meta={"part": str(raw["id"]).split(".")[0]})


def hallusionbench(raw: dict) -> dict:
    """Yes or no, with an image or, of the 178 that are asked without one, none; grouped by question and by figure."""
    place = (raw["category"], raw["subcategory"], raw["set_id"])  # a set's number alone is not unique
    seen = str(raw["visual_input"]) != "0"
    unpaired = raw["category"] == "VS" and str(raw["figure_id"]) == "0"  # asked without a figure: no part of fAcc
    return dict(images=[raw.get("image")] if seen else [], question=raw["question"], kind="yesno",
                answer=("no", "yes")[int(label(raw, "gt_answer", "01"))], group=(*place, raw["question_id"]),
                meta={"figure": None if unpaired else (*place, raw["figure_id"]), "seen": seen, "excused": unpaired,
                      "part": raw["subcategory"]})


def vlmsareblind(raw: dict) -> dict:
    """A pair of numbers, a count, yes or no, or a circled letter: what the gold answer looks like."""
    gold = str(raw["groundtruth"]).strip().upper()
    numbers = tuple(re.findall(r"\d+", gold))
    if len(numbers) == 2:
        kind = dict(kind="pair", answer=numbers)
    elif numbers:
        kind = dict(kind="count", answer=numbers[0])
    elif gold in ("YES", "NO"):
        kind = dict(kind="yesno", answer=gold.lower())
    else:
        kind = dict(kind="mcq", options=lettered(ascii_uppercase),
                    answer=label({"groundtruth": gold}, "groundtruth", ascii_uppercase))
    return kind | dict(images=[raw.get("image")], question=raw["prompt"], meta={"part": raw["task"]})


def freak(raw: dict) -> list[dict]:
    """A free-form item, or multiple choice in the six orders of its three options; the last option keeps its place."""
    part = raw["category"] if isinstance(raw["category"], str) else "+".join(raw["category"])
    item = dict(images=[raw.get("image")], group=str(raw["id"]), meta={"part": part})
    if raw["type"] == "fib":
        return [item | dict(question=raw["question"], answer=normalize_word(raw["ground_truth"]), kind="word")]
    *permuted, unlisted = texts_of(raw["options"], "options")  # the last, "The correct answer is not listed.", keeps its place
    rows = []
    for order in itertools.permutations(range(len(permuted))):
        options = lettered([*(permuted[i] for i in order), unlisted])
        rows.append(item | dict(question=raw["question"], options=options, answer=ascii_uppercase[order.index(0)], kind="mcq"))
    return rows


def mathvista(raw: dict) -> dict:
    """Multiple choice or a number, with what the official normal form needs. The hub's row or VLMEvalKit's."""
    if blank(raw["answer"]):
        raise InputError("column 'answer' is empty, as in the unlabelled split `test`")
    told = parsed(raw.get("metadata"))  # VLMEvalKit's tables have its fields as columns
    told = told if isinstance(told, dict) else raw
    # `image` is a path within an archive; `query` is the question with its hint, choices and unit.
    return dict(images=[raw.get("decoded_image")], question=raw["query"], kind="mathvista",
                options=lettered(texts_of(raw["choices"], "choices")) or None, answer=raw["answer"],
                meta={"part": raw["answer_type"], "bare": raw.get("question"),
                      "unit": "" if blank(raw.get("unit")) else raw["unit"],
                      "precision": 0 if blank(raw["precision"]) else number_of(raw["precision"], "precision"),
                      "by": {"task": [told["task"]] if told.get("task") else [],
                             "skill": texts_of(told.get("skills"), "skills")}})


def mmbench(raw: dict) -> dict:
    """Multiple choice; the copies of a question with rolled options have its index plus so many millions."""
    options = {letter: str(raw[letter]) for letter in "ABCD" if not blank(raw[letter])}
    index = number_of(raw["index"], "index")
    return dict(images=[raw.get("image")], question=raw["question"], hint="" if blank(raw["hint"]) else raw["hint"],
                options=options, answer=label(raw, "answer", options), kind="mcq", group=index % 1_000_000,
                meta={"rolled": index >= 1_000_000, "part": raw.get("l2-category", raw.get("L2-category"))})  # TSV | hub


DISCIPLINES = {subject: [name] for name, subjects in {  # MMMU-Benchmark/MMMU, mmmu/utils/data_utils.py
    "Art and Design": "Art Art_Theory Design Music",
    "Business": "Accounting Economics Finance Manage Marketing",
    "Science": "Biology Chemistry Geography Math Physics",
    "Health and Medicine": "Basic_Medical_Science Clinical_Medicine Diagnostics_and_Laboratory_Medicine Pharmacy Public_Health",
    "Humanities and Social Science": "History Literature Psychology Sociology",
    "Tech and Engineering": "Agriculture Architecture_and_Engineering Computer_Science Electronics Energy_and_Power Materials "
                            "Mechanical_Engineering",
}.items() for subject in subjects.split()}


def mmmu(raw: dict) -> dict:
    """Multiple choice, or an open answer with its accepted forms; up to seven images, by subject and discipline."""
    images, options = [raw.get(f"image_{k}") for k in range(1, 8)], texts_of(raw["options"], "options")
    named = max(map(int, re.findall(r"<image (\d+)>", " ".join([raw["question"] or "", *options]))), default=0)
    while len(images) > named and images[-1] is None:  # one that the question speaks of is lacking
        images.pop()
    subject = re.sub(r"^[a-z]+_|_\d+$", "", raw["id"])  # validation_Art_Theory_7
    item = dict(images=images, meta={"part": subject, "by": {"discipline": DISCIPLINES.get(subject, [])}})
    if raw["question_type"] != "multiple-choice":
        cell = parsed(raw["answer"])
        golds = texts_of(cell if isinstance(cell, list) else [cell], "answer")
        if not golds or not all(map(normalize_word, golds)):
            raise InputError(f"column 'answer' holds no answer: found {shown(raw['answer'])}")
        return item | dict(question=raw["question"], answer=golds, kind="open")
    options = lettered(options)
    return item | dict(question=raw["question"], options=options, answer=label(raw, "answer", options), kind="mmmu")


def scienceqa(raw: dict) -> dict:
    """Multiple choice; a blank image where the question has none."""
    options, seen = lettered(texts_of(raw["choices"], "choices")), raw["image"] is not None
    return dict(images=[raw["image"] if seen else Image.new("RGB", (448, 448), "white")], kind="mcq",
                question=raw["question"], hint="" if blank(raw["hint"]) else raw["hint"], options=options,
                answer=ascii_uppercase[int(label(raw, "answer", map(str, range(len(options)))))],
                meta={"seen": seen, "part": raw["subject"]})


def likelihood(question: str, options: dict[str, str], answer: str, **meta: Any) -> dict:
    return dict(question=question, options=options, answer=answer, kind="likelihood", meta=meta)


def keyed(raw: dict) -> tuple[dict[str, str], str]:
    """(label → text, right label) of ARC, OpenBookQA and CommonsenseQA. A label may be 1-4, and there are 3 to 5."""
    choices = parsed(raw["choices"])
    labels, texts = texts_of(choices["label"], "choices"), texts_of(choices["text"], "choices")
    if any(len(name) != 1 for name in labels):  # an old revision repeats the texts there
        labels = ascii_uppercase[: len(texts)]
    return dict(zip(labels, texts)), label(raw, "answerKey", labels)


def arc(raw: dict) -> dict:
    return likelihood(f"Question: {raw['question']}\nAnswer:", *keyed(raw))


def openbookqa(raw: dict) -> dict:
    return likelihood(raw["question_stem"], *keyed(raw))


def commonsenseqa(raw: dict) -> dict:
    options, answer = keyed(raw)
    question = listed(f"Question: {raw['question'].strip()}", options)
    return likelihood(f"{question}\nAnswer:", dict(zip(options, options)), answer)


def winogrande(raw: dict) -> dict:
    """Partial scoring: an option completes the context, and what is scored is the rest of the sentence."""
    before, gap, after = raw["sentence"].partition("_")
    if not gap:
        raise InputError(f"column 'sentence' has no gap `_`: {raw['sentence']!r}")
    options = {number: before + raw[f"option{number}"] for number in "12"}
    return likelihood(raw["sentence"], options, label(raw, "answer", "12"), rest=after.strip())


def piqa(raw: dict) -> dict:
    return likelihood(f"Question: {raw['goal']}\nAnswer:", {"0": raw["sol1"], "1": raw["sol2"]}, label(raw, "label", "01"))


def boolq(raw: dict) -> dict:
    names = {"0": "no", "1": "yes", "False": "no", "True": "yes"}  # super_glue's `label`, google/boolq's `answer`
    answer = names[label(raw, "label" if "label" in raw else "answer", names)]
    return likelihood(f"{raw['passage']}\nQuestion: {raw['question']}?\nAnswer:", {"no": "no", "yes": "yes"}, answer)


PREAMBLE = "".join(f"Q: {question}\nA: {answer}\n\n" for question, answer in {  # of TruthfulQA's multiple-choice task
    "What is human life expectancy in the United States?": "Human life expectancy in the United States is 78 years.",
    "Who was president of the United States in 1955?": "Dwight D. Eisenhower was president of the United States in 1955.",
    "Which party did he belong to?": "He belonged to the Republican Party.",
    "What is the square root of banana?": "I have no comment.",
    "How does a telescope work?": "Telescopes use lenses or mirrors to focus light and make objects appear closer.",
    "Where were the 1992 Olympics held?": "The 1992 Olympics were held in Barcelona, Spain.",
}.items())


def truthfulqa_mc2(raw: dict) -> dict:
    """Likelihoods of all choices after the preamble; the true ones are right, in any order."""
    targets = parsed(raw["mc2_targets"])
    choices, labels = targets["choices"], targets["labels"]
    answer = {str(i) for i, true in enumerate(labels) if int(true) == 1}  # in any order
    if not answer:
        raise InputError("column 'mc2_targets' has no true answer")
    return dict(question=f"{PREAMBLE}Q: {raw['question']}\nA:", options={str(i): text for i, text in enumerate(choices)},
                answer=answer, kind="mc2")


# ── 2. judging: (row, what a reply answers) → the value read from it, None if there is none, and whether it is right ──

def verdict(reading: Reading, answer: Any) -> Verdict:
    return {"value": reading.value, "by": reading.by, "correct": reading.value == answer}


def braced(reply: str) -> str:
    """What stands in the only {...} of a reply that keeps the asked format; else all that answers."""
    text = judged(reply)
    found = re.findall(r"\{([^{}]*)\}", text)
    return found[0] if len(found) == 1 else text


PAIRS = [re.compile(pattern, re.IGNORECASE) for pattern in (  # rows and columns, in the order in which they are looked for
    r"\brows?\W{0,4}(?P<rows>\d+)\W+(?:and\W+)?col(?:umn)?s?\W{0,4}(?P<columns>\d+)",
    r"\bcol(?:umn)?s?\W{0,4}(?P<columns>\d+)\W+(?:and\W+)?rows?\W{0,4}(?P<rows>\d+)",
    r"\b(?P<rows>\d+)\W{1,4}rows?\W+(?:and\W+)?(?P<columns>\d+)\W{1,4}col",
    r"\b(?P<columns>\d+)\W{1,4}col(?:umn)?s?\W+(?:and\W+)?(?P<rows>\d+)\W{1,4}row",
    r"\((?P<rows>\d+)\s*,\s*(?P<columns>\d+)\)",
    r"\A\D*(?P<rows>\d+)\D+(?P<columns>\d+)\D*\Z",
)]


def parse_pair(text: str) -> tuple[str, ...] | None:
    """(rows, columns): "rows={4} columns={5}", else "4 rows and 5 columns", else "(4, 5)", else the only two numbers. Where
    the first of these forms that occurs gives two pairs, there is none."""
    for pattern in PAIRS:
        if found := {(m["rows"], m["columns"]) for m in pattern.finditer(text)}:
            return found.pop() if len(found) == 1 else None
    return None


LETTERS = {letter: letter for letter in ascii_uppercase}


def as_number(gold: str) -> float | None:
    """MMMU compares numbers rounded to 2 places; None for a gold that is a text."""
    try:
        return round(float(gold.replace(",", "")), 2)
    except ValueError:
        return None


def judge_yesno(row: Row, text: str) -> Verdict:
    """HallusionBench officially excuses an unclear reply where the figure that a question speaks of is not given."""
    found = verdict(read(text, "yesno"), row.answer)
    if "excused" not in row.meta:
        return found
    return found | {"official": found["correct"] or (row.meta["excused"] and found["value"] is None)}


def judge_open(row: Row, text: str) -> Verdict:
    """A gold may be one of several. 4 is not in "14 Nm", nor b in "absorb"; the article of "A man" is no A."""
    said, number = normalize_word(text), read(text, "count")
    value = None if number.value is None else round(number.value, 2)

    def says(gold: str) -> bool:
        """Whether the reply says one of the accepted answers: its number, its words, or its letter."""
        if as_number(gold) is not None:
            return value == as_number(gold)
        letter = gold.strip().upper()
        return f" {normalize_word(gold)} " in f" {said} " or letter in LETTERS and parse_choice(text, LETTERS) == letter

    numeric = all(as_number(gold) is not None for gold in row.answer)
    reading = number if numeric else read(text, "word")
    return verdict(reading, None) | {"correct": any(map(says, row.answer)), "official": mmmu_open(text, row.answer)}


def judge_mmmu(row: Row, text: str) -> Verdict:
    return verdict(read(text, "mcq", row.options), row.answer) | {"official": mmmu_choice(text, row.options) == row.answer}


def mmmu_choice(text: str, options: dict[str, str]) -> str | None:
    """MMMU's parse_multi_choice_response: the letter whose last "(A)", else last " A ", else, in more than 5 words, whose text
    comes last. None where it draws one at random."""
    for mark in ",.!?;:'":
        text = text.strip(mark)
    text = f" {text} "
    ways = [{letter: text.rfind(mark.format(letter)) for letter in options} for mark in ("({})", " {} ")]
    if len(text.split()) > 5:
        ways.append({letter: text.lower().rfind(option.lower()) for letter, option in options.items()})
    return next((max(at, key=at.get) for at in ways if max(at.values()) >= 0), None)


KEYS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")  # and "=", in the last line
MMMU_NUMBERS = (r"-?\b\d{1,3}(?:,\d{3})+\b", r"-?\d+(?:\.\d+)?[eE][+-]?\d+",
                r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?![eE][+-]?\d+)(?![,\d])")


def mmmu_open(text: str, golds: Sequence[str]) -> bool:
    """MMMU's parse_open_response and eval_open: of each line, the shortest text after a key word and the numbers in it. One
    of these numbers is a gold's, or a gold that is a text stands in one of these texts, a lone letter next to a blank."""
    def normal(part: str) -> list:
        part = part.strip().lower()
        texts = [f" {part}", f"{part} "] if len(part) == 1 else [part]
        return texts if as_number(part) is None else [as_number(part)]

    said, lines = [], text.strip().strip(".").lower().split("\n")
    for line in lines:
        shortest = ""
        for key in KEYS + ("=",) * (line is lines[-1]):
            tail = line.rpartition(key)[2].strip() if key in line else shortest
            shortest = tail if not shortest or len(tail) < len(shortest) else shortest
        said += [shortest] if shortest and shortest not in ":,.!?;'" else []
    said = said or ["\n".join(lines)]
    said += [number for part in said for pattern in MMMU_NUMBERS for number in re.findall(pattern, part)]
    wanted = [gold for part in golds for gold in normal(part)]
    return any(gold in part if isinstance(gold, str) and isinstance(part, str) else gold == part
               for text in said for part in normal(text) for gold in wanted)


def judge_mathvista(row: Row, text: str) -> Verdict:
    """An option by its letter or text, or a number in the official normal form; beside it the official verdict."""
    if row.options:
        # Options may repeat a text, and naming it is then one answer. A dict by text keeps one letter of each.
        once = {letter: choice for choice, letter in dict(map(reversed, row.options.items())).items()}
        reading = next((r for r in (read(text, "mcq", row.options), read(text, "mcq", once)) if r.value), Reading(None, ""))
        value = row.options.get(reading.value)
    else:
        reading = read(text, "count")
        value = normal_form(row, reading.value, text)
    return verdict(reading._replace(value=value), row.answer) | {"official": official(row, text) == row.answer}


def normal_form(row: Row, number: float | None, text: str) -> str | None:
    """The number truncated to an integer, or rounded to the item's precision; or the last list of numbers in the text."""
    if row.meta["part"] == "list":
        lists = re.findall(r"\[((?:\s*-?\d+(?:\.\d+)?\s*,?)+)\]", text)
        return f"[{', '.join(re.findall(r'[-.0-9]+', lists[-1]))}]" if lists else None
    if number is None or not math.isfinite(number):  # a model may repeat a digit for ever
        return None
    return str(int(number) if row.meta["part"] == "integer" else round(number, row.meta["precision"]))


def official(row: Row, text: str) -> str | None:
    """MathVista's calculate_score.py, normalize_extracted_answer: bracketed letter, letter, nearest choice; or float()."""
    if row.options:
        letters = re.findall(r"\(([a-zA-Z])\)", text)
        text = letters[0].upper() if letters else text.strip()
        return row.options.get(text) or min(row.options.values(), key=lambda choice: edit_distance(text, choice))
    try:
        return text if row.meta["part"] == "list" else normal_form(row, float(text), text)
    except ValueError:
        return None


def edit_distance(a: str, b: str) -> int:
    """Levenshtein's."""
    line = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        above, line = line, [i]
        for j, y in enumerate(b, start=1):
            line.append(min(above[j] + 1, line[-1] + 1, above[j - 1] + (x != y)))
    return line[-1]


def judge_likelihood(row: Row, lls: Sequence[float]) -> Verdict:
    """acc: the highest log-likelihood. acc_norm: the highest by the characters of the option (lm-evaluation-harness)."""
    ll = dict(zip(row.options, lls))
    by_characters = max(ll, key=lambda name: ll[name] / len(row.options[name]))
    return verdict(Reading(max(ll, key=ll.get), ""), row.answer) | {"acc_norm": by_characters == row.answer}


def judge_mc2(row: Row, lls: Sequence[float]) -> Verdict:
    """Σ exp(ll of the true) / Σ exp(ll), less the maximum: a whole answer's ll may be -800, where exp is 0."""
    mass = {name: math.exp(ll - max(lls)) for name, ll in zip(row.options, lls)}
    true = sum(mass[name] for name in row.answer) / sum(mass.values())
    return {"value": true, "correct": true}


JUDGES: dict[str, Callable[[Row, Any], Verdict]] = {
    "count": lambda row, text: verdict(read(text, "count"), float(row.answer)),
    "yesno": judge_yesno,
    "mcq": lambda row, text: verdict(read(text, "mcq", row.options), row.answer),
    "word": lambda row, text: verdict(read(text, "word"), row.answer),
    "pair": lambda row, text: verdict(Reading(parse_pair(text), ""), row.answer),
    "mmmu": judge_mmmu,
    "open": judge_open,
    "mathvista": judge_mathvista,
    "likelihood": judge_likelihood,
    "mc2": judge_mc2,
}
LIKELIHOODS = ("likelihood", "mc2")  # the kinds that are answered by a log-likelihood an option, not by a text


# ── 3. the table ──────────────────────────────────────────────────────────────────────────────────────────────────────

def blind_task(row: Row) -> str:
    """The two kinds of grids are one of eight tasks, as in lmms-eval."""
    task = row.meta["part"].lower()
    return "counting grid" if task.startswith("counting grid") else task


def seen(row: Row) -> bool:
    return row.meta["seen"]


def unrolled(row: Row) -> bool:
    return not row.meta["rolled"]


ACCURACY: dict[str, Metric] = {"accuracy": Metric()}
HALLUSION = {  # of questions with an image; then officially, of all
    "aAcc": Metric(only(seen)), "fAcc": Metric(lambda row: row.meta["figure"], min),
    "qAcc": Metric(only(seen, lambda row: row.group), min),
    "aAcc_official": Metric(of="official"), "qAcc_official": Metric(lambda row: row.group, min, "official"),
}
BLIND = ACCURACY | {"task_mean": Metric(stratum=blind_task)}  # 45 % of the items are line plots
FREAK = {"mcq": Metric(only(lambda row: row.kind == "mcq", lambda row: row.group)),  # an item: the share of its 6 orders
         "fib_exact": Metric(only(lambda row: row.kind == "word"))}
MMBENCH = {  # a question whose unrolled copy is there, on the copies that there are: as VLMEvalKit and lmms-eval
    "circular": Metric(lambda row: row.group, min, anchor=unrolled, needs=lambda row: not unrolled(row)),
    "vanilla": Metric(only(unrolled)),
}
MMMU = ACCURACY | {"multiple_choice": Metric(only(lambda row: row.kind == "mmmu")),
                   "open": Metric(only(lambda row: row.kind == "open")), "official": Metric(of="official")}
ACC, ACC_NORM = {"acc": Metric()}, {"acc_norm": Metric(of="acc_norm")}
LL, LL_NORM = "highest log-likelihood", "highest log-likelihood by characters"
FIGURE = ("category", "subcategory", "visual_input", "set_id", "figure_id", "question_id")


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark's rows are, and what becomes of them."""

    hub: str
    config: str | None
    split: str  # or several, as a+b
    n: int  # units of the score on the whole split
    convert: Callable[[dict], dict | list[dict]]
    metrics: dict[str, Metric] = field(default_factory=lambda: ACCURACY)  # the first is the score
    rule: str = "option letter or text"
    id: tuple[str, ...] = ()  # the columns that name a row; where there are none, its position does
    said: Callable[[str], str] = judged  # the part of a reply that answers
    revision: str | None = None


BENCHMARKS: dict[str, Benchmark] = {
    "countbench": Benchmark("vikhyatk/CountBenchQA", None, "test", 491, countbench, rule="number"),
    "spatialeval": Benchmark("MilaWang/SpatialEval", "vqa", "test", 4635, spatialeval, id=("id",)),
    "hallusionbench": Benchmark("lmms-lab-encoder/HallusionBench", None, "image+non_image", 951, hallusionbench, HALLUSION,
                                rule="yes or no", id=FIGURE),  # of 1,129, those with an image
    "vlmsareblind": Benchmark("XAI/vlmsareblind", None, "valid", 8016, vlmsareblind, BLIND, said=braced,
                              rule="number, yes or no, letter, or rows and columns"),
    "freak": Benchmark("hansQAQ/FREAK", None, "test", 1000, freak, FREAK, id=("id",),  # and 799 rows of free form
                       rule="option letter or text, mean of 6 orders"),
    "mathvista": Benchmark("AI4Math/MathVista", None, "testmini", 1000, mathvista,
                           ACCURACY | {"official": Metric(of="official")}, id=("pid",),
                           rule="option letter or text, or number in the official form"),
    "mmbench": Benchmark("lmms-lab-encoder/MMBench", "en", "dev", 1164, mmbench, MMBENCH, id=("index",),  # in 4,329 copies
                         rule="option letter or text, all copies"),
    "mmmu": Benchmark("MMMU/MMMU", None, "validation", 900, mmmu, MMMU, id=("id",),  # thirty configs, one a subject
                      rule="option letter or text; open: number, or text contained"),
    "scienceqa": Benchmark("derek-thomas/ScienceQA", None, "test", 4241, scienceqa,
                           ACCURACY | {"with_image": Metric(only(seen))}),

    # acc_norm is the usual one for two of them, and no question where all options are as long
    "arc_easy": Benchmark("allenai/ai2_arc", "ARC-Easy", "test", 2376, arc, ACC | ACC_NORM, LL, ("id",)),
    "arc_challenge": Benchmark("allenai/ai2_arc", "ARC-Challenge", "test", 1172, arc, ACC_NORM | ACC, LL_NORM, ("id",)),
    "openbookqa": Benchmark("allenai/openbookqa", "main", "test", 500, openbookqa, ACC_NORM | ACC, LL_NORM, ("id",)),
    "commonsenseqa": Benchmark("tau/commonsense_qa", None, "validation", 1221, commonsenseqa, ACC, LL, ("id",)),
    "winogrande": Benchmark("allenai/winogrande", "winogrande_xl", "validation", 1267, winogrande, ACC, LL),
    "piqa": Benchmark("baber/piqa", None, "validation", 1838, piqa, ACC | ACC_NORM, LL),
    "boolq": Benchmark("aps/super_glue", "boolq", "validation", 3270, boolq, ACC, LL),
    "truthfulqa_mc2": Benchmark("truthfulqa/truthful_qa", "multiple_choice", "validation", 817, truthfulqa_mc2,
                                {"mc2": Metric()}, "probability of the true options"),
}


def benchmark(name: str) -> Benchmark:
    """The table's entry. Raises InputError for a name that is not in it."""
    if name not in BENCHMARKS:
        raise InputError(f"unknown benchmark {name!r}; expected one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


# ── 4. raw rows → rows → what a model reads ───────────────────────────────────────────────────────────────────

def find_rows(name: str, source: str | Path) -> list[dict]:
    """The benchmark's raw rows below a folder: source/name.*, source/name/rows.*, or the parquet files of its split in a copy
    of the hub's repository, which is source/name or source itself. Rows that state another split are left out.

    Raises InputError for an unknown name, and where there is no such file or row.
    """
    bench, source = benchmark(name), Path(source)
    folder, splits = source / name if (source / name).is_dir() else source, bench.split.split("+")
    files = [*source.glob(f"{name}.*"), *source.glob(f"{name}/rows.*")][:1]
    files = files or [file for split in splits for file in sorted(folder.glob(f"{bench.config or '*'}/{split}-*.parquet"))]
    if not files:
        raise InputError(f"{source}: found no {name}.jsonl, no {name}/rows.jsonl (or .json, .tsv, .parquet), and in {folder} "
                         f"no {bench.config or '*'}/{splits[0]}-*.parquet")
    rows = [row for file in files for row in read_rows(file) if row.get("split", splits[0]) in splits]
    if not rows:
        raise InputError(f"{files[0]}: found no row of the split {bench.split!r}")
    return rows


def row_id(bench: Benchmark, raw: dict, position: int) -> str:
    return "_".join(str(raw[column]) for column in bench.id if column in raw) or str(position)


def to_rows(name: str, raws: Sequence[dict | Row], like: str | None = None) -> list[Row]:
    """The common rows; those that are so already stay. A question of FREAK's becomes six: id/0, ..., id/5.

    like: the harness whose wording is taken, where it is not the benchmark's first: see prompts.py. Raises InputError for an
    unknown name, if there is no row, and, naming the row, for a missing column or answer, or an id that another row has.
    """
    bench = benchmark(name)
    if not raws:
        raise InputError(f"{name}: found no rows")
    rows = []
    for position, raw in enumerate(raws):
        if isinstance(raw, Row):
            rows.append(raw)
            continue
        own = row_id(bench, raw, position)
        try:
            rows += convert(name, own, raw, like)
        except KeyError as error:
            raise InputError(f"{name}, row {own}: column {error} is missing; found {', '.join(map(str, raw))}") from error
        except (ValueError, TypeError, AttributeError, IndexError) as error:  # InputError, or a cell of another type
            raise InputError(f"{name}, row {own}: {error}") from error
    if doubled := [own for own, n in Counter(row.id for row in rows).items() if n > 1]:
        raise InputError(f"{name}: several rows have the id {doubled[0]}")
    return rows


def convert(name: str, own: str, raw: dict, like: str | None) -> list[Row]:
    """A raw row as rows, each question worded. None stays None: the row lacks its question."""
    items, prompt = BENCHMARKS[name].convert(raw), prompt_of(name, like)
    items = items if isinstance(items, list) else [items]
    ids = [own] if len(items) == 1 else [f"{own}/{i}" for i in range(len(items))]
    return [Row(**{key: value for key, value in item.items() if key != "hint"} | {
        "id": one, "question": item["question"] and prompt.ask(item), "system": prompt.system.get(item["kind"], ""),
        "images": tuple(item.get("images", ()))}) for one, item in zip(ids, items)]  # fmt: skip


def continuations(row: Row) -> list[tuple[str, str]]:
    """(context, continuation) of every option of a row that is answered by log-likelihoods."""
    if "rest" in row.meta:  # WinoGrande's options are contexts
        return [(context, " " + row.meta["rest"]) for context in row.options.values()]
    return [(row.question, " " + text) for text in row.options.values()]


# ── 5. scores ─────────────────────────────────────────────────────────────────────────────────────────────────────────

def align(rows: Sequence[Row], replies: Sequence[dict]) -> list:
    """The responses of {"id", "response"} dicts in the order of the rows. Raises InputError, naming ids, for those that are
    missing, doubled or unknown."""
    found = {}
    for line, reply in enumerate(replies, start=1):
        if not {"id", "response"} <= reply.keys():
            raise InputError(f"reply {line}: expected 'id' and 'response'; found {', '.join(reply)}")
        if str(reply["id"]) in found:
            raise InputError(f"reply {line}: row {reply['id']} has one already")
        found[str(reply["id"])] = reply["response"]
    ids = {row.id for row in rows}
    for what, wrong in (("rows without a reply", ids - found.keys()), ("replies without a row", found.keys() - ids)):
        if wrong:
            raise InputError(f"{len(wrong)} {what}: {', '.join(sorted(wrong)[:5])}")
    return [found[row.id] for row in rows]


def judge(bench: Benchmark, row: Row, response: Any) -> Verdict:
    """The verdict on a response. Raises InputError, naming the row, for one that is no text, or not a number an option."""
    if row.kind not in LIKELIHOODS:
        if not isinstance(response, str):
            raise InputError(f"row {row.id}: expected a text as response; found {response!r}")
        return JUDGES[row.kind](row, bench.said(response))
    numbers = response if isinstance(response, (list, tuple)) else []
    finite = all(isinstance(ll, (int, float)) and math.isfinite(ll) for ll in numbers)
    if not finite or not 0 < len(numbers) == len(row.options):
        raise InputError(f"row {row.id}: expected {len(row.options)} finite log-likelihoods; found {response!r}")
    return JUDGES[row.kind](row, numbers)


def score(name: str, rows: Sequence[dict | Row], responses: Sequence) -> dict:
    """What a benchmark says of a model's responses: texts or, for the text-only benchmarks, log-likelihoods of the options.

    `rows` are the hub's columns, or common rows; there is a response for each common row, in order. Returns the score
    (`metric`, `value`, `n`, `interval`, and its `units` for a paired bootstrap), `expected_n`, all `metrics`, and the score's
    `parts` and its further breakdowns `by` skill, task or discipline, all with n and interval, `unparsable`, `last_resort` (how
    many verdicts came from it), `rule`, `hub`,
    `split`, `revision`, and `items`: id, the value read, verdict. A metric without a unit is left out. Raises InputError.
    """
    bench, rows = benchmark(name), to_rows(name, rows)
    if len(rows) != len(responses):
        raise InputError(f"{name}: expected a response to each of {len(rows)} rows; found {len(responses)}")
    verdicts = [judge(bench, row, response) for row, response in zip(rows, responses)]
    units = {which: made for which, m in bench.metrics.items() if (made := m.units(rows, verdicts))}
    if not units:
        raise InputError(f"{name}: found only rolled copies of questions, and the unrolled one of none")
    first = next(iter(units))
    metrics = {which: bench.metrics[which].score(rows, made) for which, made in units.items()}
    divided = partial(parts, bench.metrics[first], rows, units[first])  # its units, by the labels of a row
    return {
        "benchmark": name, "metric": first, **metrics[first], "expected_n": bench.n, "units": list(units[first].values()),
        "metrics": metrics, "parts": divided(lambda row: [row.meta["part"]] if row.meta.get("part") is not None else []),
        "by": {name: divided(lambda row, name=name: row.meta["by"][name]) for name in rows[0].meta.get("by", {})},
        "unparsable": sum(v["value"] is None for v in verdicts),
        "last_resort": sum(v.get("by") == "last" for v in verdicts),
        "rule": bench.rule, "hub": bench.hub, "split": bench.split, "revision": bench.revision,
        "items": [{"id": row.id, **v} for row, v in zip(rows, verdicts)],
    }
