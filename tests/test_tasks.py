"""benchmarks/tasks.py: known answers and traps of the real sets (where ../shared is at hand), and the rules on made-up rows."""

import base64
import io
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT
from PIL import Image

from benchmarks.harness import table_rows
from benchmarks.tasks import BENCHMARKS, Row, align, content, continuations, find_rows, read_rows, score, to_rows
from config import InputError

SAMPLES = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "benchmarks"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="no ../shared/data/benchmarks")

FOUR = {"text": ["an oak", "a lake", "a hill", "a road"], "label": ["A", "B", "C", "D"]}
RAW = {  # a made-up row of each benchmark, in the hub's columns
    "countbench": {"image": None, "text": "three oaks", "question": "How many oaks?", "number": 3},
    "spatialeval": {"id": "mazenav.vqa.1.0", "image": None, "oracle_option": "B", "oracle_answer": "No",
                    "text": "Is there a way? Available options:\nA. Yes\nB. No"},
    "hallusionbench": {"category": "VS", "subcategory": "map", "visual_input": "1", "set_id": "0", "figure_id": "1",
                       "question_id": "2", "question": "Is it a lake?", "gt_answer": "0", "image": None},
    "vlmsareblind": {"task": "Nested Squares", "image": None, "prompt": "How many squares?", "groundtruth": "4"},
    "freak": {"id": 7, "question": "Which tree?", "image": None, "type": "mcq", "ground_truth": "an oak", "category": "shape",
              "options": ["an oak", "an elm", "an ash", "The correct answer is not listed."]},
    "mathvista": {"pid": "9", "query": "Hint: ...\nQuestion: How long?", "choices": None, "answer": "14", "precision": None,
                  "question_type": "free_form", "answer_type": "integer", "decoded_image": None, "image": "images/9.jpg"},
    "mmbench": {"index": 5, "question": "Which tree?", "hint": "nan", "A": "oak", "B": "elm", "C": "ash", "D": "nan",
                "answer": "B", "l2-category": "nature", "image": None},
    "mmmu": {"id": "validation_Art_Theory_7", "question": "Who drew <image 1>?", "options": "['an oak', 'an elm']",
             "image_1": None, "answer": "B", "question_type": "multiple-choice"},
    "scienceqa": {"image": None, "question": "Which tree?", "choices": ["oak", "elm"], "answer": 0, "hint": "",
                  "subject": "natural science"},
    "arc_easy": {"id": "x", "question": "Which?", "choices": FOUR, "answerKey": "C"},
    "arc_challenge": {"id": "x", "question": "Which?", "choices": FOUR, "answerKey": "C"},
    "openbookqa": {"id": "x", "question_stem": "It is", "choices": FOUR, "answerKey": "C"},
    "commonsenseqa": {"id": "x", "question": "Which?", "choices": FOUR, "answerKey": "C"},
    "winogrande": {"sentence": "The oak hid the elm as _ was tall.", "option1": "oak", "option2": "elm", "answer": "1"},
    "piqa": {"goal": "Fell an oak.", "sol1": "Saw.", "sol2": "Blow.", "label": 0},
    "boolq": {"question": "is it an oak", "passage": "An oak.", "label": 1},
    "truthfulqa_mc2": {"question": "Which?", "mc2_targets": {"choices": ["an oak", "an elm"], "labels": [0, 1]}},
}


def row(name: str, **changes) -> Row:
    return to_rows(name, [RAW[name] | changes])[0]


def verdict(name: str, response, **changes) -> dict:
    """What `score` says of one response to the made-up row."""
    return score(name, [RAW[name] | changes], [response])["items"][0]


def png(color="red", size=(4, 4)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


# ── traps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

# Traps on which the harnesses disagree, and what is decided here. The rest of them is decided as the file suggests.
POLICY = {
    67: True,  # "The answer is 5, not 6.": what is stated counts, what is negated does not
    89: True,  # MathVista, 7.9 for 7: truncated, for parity with the official code
    101: False,  # MMMU, "2 million" for 2000000: wrong, for parity with the official code
}
# The file says 0.993353 = 1 / (1 + exp(-5)) + exp(-10), which adds the third option after normalising without it. The
# definition gives (1 + exp(-10)) / (1 + exp(-5) + exp(-10)).
CORRECTED = {106: 0.9933075}
OF_KIND = {"mcq": "scienceqa", "yesno": "hallusionbench", "count": "countbench", "vlab": "vlmsareblind",
           "mathvista": "mathvista", "mmmu_open": "mmmu"}


def trap_row(trap: dict) -> dict:
    """A trap as a raw row of the benchmark that its kind belongs to."""
    raw, gold = RAW[OF_KIND[trap["kind"]]], trap["gold"]
    return raw | {
        "mcq": lambda: {"choices": list(trap["options"].values()), "answer": list(trap["options"]).index(gold)},
        "yesno": lambda: {"gt_answer": "1" if gold == "yes" else "0"},
        "count": lambda: {"number": int(gold)},
        "vlab": lambda: {"groundtruth": gold},
        "mathvista": lambda: {key: trap[key] for key in ("answer_type", "precision", "choices")} | {"answer": gold},
        "mmmu_open": lambda: {"question_type": "open", "answer": gold},
    }[trap["kind"]]()


def reply_traps() -> list:
    traps = json.loads((SAMPLES / "traps.json").read_text()) if SAMPLES.is_dir() else []
    return [pytest.param(trap, id=f"{trap['id']}-{trap['kind']}") for trap in traps]


@needs_samples
@pytest.mark.parametrize("trap", [p for p in reply_traps() if p.values[0]["kind"] in OF_KIND])
def test_reply_traps(trap):
    expected = trap["correct"] if trap["must"] else POLICY.get(trap["id"], trap["correct"])
    assert score(OF_KIND[trap["kind"]], [trap_row(trap)], [trap["response"]])["items"][0]["correct"] == expected


@needs_samples
@pytest.mark.parametrize("trap", [p for p in reply_traps() if p.values[0]["kind"] not in OF_KIND])
def test_data_traps(trap):
    if trap["kind"] == "circular":
        options = dict(zip("ABCD", ("oak", "elm", "ash", "fir")))
        raws = [RAW["mmbench"] | options | {"index": 1_000_000 * int(k) + 5, "answer": g} for k, g in trap["gold"].items()]
        result = score("mmbench", raws, list(trap["response"].values()))
        assert (result["metric"], result["n"], result["value"]) == ("circular", 1, float(trap["correct"]))
    elif trap["kind"] == "mc2":
        targets = {"choices": [f"text {i}" for i in range(len(trap["ll"]))], "labels": trap["labels"]}
        value = verdict("truthfulqa_mc2", trap["ll"], mc2_targets=targets)["value"]
        assert value == pytest.approx(CORRECTED.get(trap["id"], trap["value"]), abs=5e-7)
    elif trap["bench"] == "piqa":
        with pytest.raises(InputError, match="row 0: column 'label' holds no answer"):
            row("piqa", label=trap["label"])
    else:
        changes = {"choices": FOUR, "answerKey": trap["answerKey"]} if trap["bench"] == "openbookqa" else {"answer": False}
        raw = {key: value for key, value in RAW[trap["bench"].removesuffix("_google")].items() if key != "label"} | changes
        (found,) = to_rows(trap["bench"].removesuffix("_google"), [raw])
        assert list(found.options).index(found.answer) == trap["value"]


# ── known answers ─────────────────────────────────────────────────────────────────────────────────────────────────────

def percent(result: dict, *names: str) -> list[float]:
    return [round(100 * result["metrics"][name]["value"], 4) for name in names]


def hallusion_rows(seen: bool) -> list[dict]:
    raws = read_rows(SAMPLES / "hallusionbench" / "hallusionbench_all.json")
    return [raw for raw in raws if raw["visual_input"] != "0" or not seen]


@needs_samples
@pytest.mark.parametrize("seen, answer, expected", [
    (True, "No", [57.8339, 12.1387, 20.0]),
    (True, "Yes", [42.1661, 7.2254, 4.6154]),
    (False, "No", [57.1302, 12.1387, 19.3407]),
    (False, "Yes", [42.8698, 7.2254, 3.9560]),
])
def test_hallusionbench_constant_answers(seen, answer, expected):
    raws = hallusion_rows(seen)
    result = score("hallusionbench", raws, [answer] * len(raws))
    assert percent(result, "aAcc_official", "fAcc", "qAcc_official") == expected
    assert [result["metrics"][m]["n"] for m in ("aAcc_official", "fAcc", "qAcc")] == [951 if seen else 1129, 346, 455]
    with_image = {"No": [57.8339, 20.0], "Yes": [42.1661, 4.6154]}[answer]  # whether the others are asked or not
    assert percent(result, "aAcc", "qAcc") == with_image and (result["metric"], result["n"]) == ("aAcc", 951)
    assert sum(part["n"] for part in result["parts"].values()) == 951


@needs_samples
def test_hallusionbench_one_wrong_answer():
    raws = hallusion_rows(seen=True)
    replies = ["Yes" if r["gt_answer"] == "1" else "No" for r in raws]
    replies[0] = "Yes" if replies[0] == "No" else "No"
    assert percent(score("hallusionbench", raws, replies), "aAcc", "fAcc", "qAcc") == [99.8948, 99.7110, 99.7802]


# Right by the official code alone, which takes the option nearest in edit distance: "Sorry, I can't help with images of
# people yet." is nearest to "octopus" (884) and to "Yes" (653), "N/A" to "No" (705) and to "0-5" (688).
NEAREST_IS_RIGHT = {"5", "228", "653", "688", "705", "740", "776", "821", "884"}


@needs_samples
def test_mathvista_official_extractions():
    fixture = json.loads((SAMPLES / "mathvista" / "fixture_bard.json").read_text())
    raws = [RAW["mathvista"] | fixed | {"pid": pid} for pid, fixed in fixture.items()]
    result = score("mathvista", raws, [fixed["extraction"] for fixed in fixture.values()])
    assert [item["official"] for item in result["items"]] == [fixed["true_false"] for fixed in fixture.values()]
    assert result["metrics"]["official"] | {"interval": None} == {"value": 0.348, "n": 1000, "interval": None}

    lost = {item["id"] for item in result["items"] if item["official"] and not item["correct"]}
    gained = {item["id"] for item in result["items"] if item["correct"] and not item["official"]}
    assert lost == NEAREST_IS_RIGHT
    assert not gained and round(1000 * result["value"]) == 339
    assert result["unparsable"] >= 91


@needs_samples
def test_mmmu_official_responses():
    fixture = json.loads((SAMPLES / "mmmu" / "fixture_llava1.5_13b.json").read_text())
    raws = [RAW["mmmu"] | fixed | {"answer": str(fixed["answer"]), "options": str(list((fixed["index2ans"] or {}).values()))}
            for fixed in fixture]
    result = score("mmmu", raws, [fixed["response"] for fixed in fixture])
    metrics = result["metrics"]
    # 327 officially too, but not the same 327 questions. Design_4 is won: "A) Josef Albers" is no letter to the official
    # parser, which then draws one. Pharmacy_27 is lost: the reply lists all four options, of which the official parser
    # takes the last: it is unreadable. Everything else agrees.
    assert round(metrics["multiple_choice"]["value"] * 847) == 327 and metrics["multiple_choice"]["n"] == 847
    correct = {item["id"]: item["correct"] for item in result["items"]}
    assert correct["validation_Design_4"] and not correct["validation_Pharmacy_27"]
    assert [raw["id"] for raw in raws if raw["question_type"] != "multiple-choice" and correct[raw["id"]]] == [
        "validation_Pharmacy_19", "validation_Geography_22"]  # "Step b" for B, "3" for 3
    assert metrics["open"]["n"] == 53 and metrics["accuracy"]["n"] == 900
    assert len(result["parts"]) == 30 and result["unparsable"] == 1
    assert round(metrics["official"]["value"] * 900) == 329  # 327 and two open ones


def test_mc2_is_the_mass_on_the_true_options():
    targets = {"choices": ["a", "b", "c", "d"], "labels": [1, 1, 0, 0]}
    lls = [math.log(p) for p in (0.2, 0.1, 0.3, 0.05)]
    assert verdict("truthfulqa_mc2", lls, mc2_targets=targets)["value"] == pytest.approx(0.461538, abs=5e-7)
    targets = {"choices": ["a", "b", "c"], "labels": [1, 0, 1]}
    assert verdict("truthfulqa_mc2", [-800, -805, -810], mc2_targets=targets)["value"] == pytest.approx(0.9933075, abs=5e-7)


# ── real rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

ASKABLE = {  # sample rows, common rows, and those of them that can be asked: some samples are without their image
    "countbench": (12, 12, 9), "spatialeval": (5, 5, 3), "hallusionbench": (38, 38, 30), "vlmsareblind": (19, 19, 19),
    "freak": (6, 4 * 6 + 2, 26), "mathvista": (16, 16, 5), "mmbench": (14, 14, 14), "mmmu": (7, 7, 7),
    "scienceqa": (16, 16, 16), "arc_easy": (3, 3, 2), "arc_challenge": (2, 2, 2), "openbookqa": (2, 2, 2),
    "commonsenseqa": (2, 2, 2), "winogrande": (2, 2, 2), "piqa": (20, 20, 20), "boolq": (5, 5, 5), "truthfulqa_mc2": (5, 5, 5),
}


@needs_samples
@pytest.mark.parametrize("name", BENCHMARKS)
def test_sample_rows_become_prompts_and_right_answers_score_one(name):
    raws = find_rows(name, SAMPLES)
    rows = to_rows(name, raws)
    asked = [r for r in rows if not r.lacks]
    assert (len(raws), len(rows), len(asked)) == ASKABLE[name]
    for r in asked:
        parts = content(r)
        images = [part for part in parts if not isinstance(part, str)]
        assert len(images) == len(r.images) and all(image.mode == "RGB" and min(image.size) > 20 for image in images)
        assert r.question.strip().endswith(parts[-1].strip()) and not re.search(r"\bnan\b", r.question)
    result = score(name, asked, [right_answer(r) for r in asked])
    assert result["value"] > 0.99 and result["unparsable"] == 0


def right_answer(r: Row):
    if r.kind == "likelihood":
        return [0.0 if label == r.answer else -99.0 for label in r.options]
    if r.kind == "mc2":
        return [0.0 if label in r.answer else -99.0 for label in r.options]
    return str(r.answer[0]) if r.kind == "open" else str(r.answer)


@needs_samples
def test_incomplete_rows_tell_what_they_lack():
    lacking = {name: [(r.id, r.lacks) for r in to_rows(name, find_rows(name, SAMPLES)) if r.lacks] for name in BENCHMARKS}
    assert lacking["countbench"] == [("9", "image"), ("10", "image"), ("11", "image")]
    assert lacking["arc_easy"] == [("NYSEDREGENTS_2015_8_24", "options")]
    assert lacking["scienceqa"] == []


@needs_samples
def test_mmbench_real_rolled_copies():
    raws = read_rows(SAMPLES / "mmbench" / "circular.json")
    gold = [raw["answer"] for raw in raws]
    result = score("mmbench", raws, ["A"] * len(raws))
    assert result["n"] == 14 and result["value"] == 0 and result["metrics"]["vanilla"]["value"] > 0
    assert score("mmbench", raws, gold)["value"] == 1
    assert len({content(r)[0].size for r in to_rows("mmbench", raws)}) > 5


@needs_samples
def test_mmmu_five_images_stand_at_their_marks():
    (raw,) = [raw for raw in find_rows("mmmu", SAMPLES) if raw["id"] == "test_Music_251"]
    sizes = {raw[f"image_{k}"].name: Image.open(raw[f"image_{k}"]).size for k in range(1, 6)}
    parts = content(to_rows("mmmu", [raw])[0])
    shown = [part.size for part in parts if not isinstance(part, str)]
    assert shown == [sizes[f"test_Music_251_{k}.png"] for k in (1, 4, 2, 5, 3)] and len(set(shown)) == 5
    assert parts[1].endswith("\nA. ") and parts[3] == "\nB. "  # options after the question, each with its image


# ── rules on made-up rows ─────────────────────────────────────────────────────────────────────────────────────────────

def test_the_table_names_seventeen_benchmarks():
    assert list(RAW) == list(BENCHMARKS) and len(BENCHMARKS) == 17
    assert all(bench.n > 0 and bench.split and bench.rule for bench in BENCHMARKS.values())


def test_prompts():
    assert row("countbench").question.startswith("How many oaks? Note that") and "three" not in row("countbench").question
    assert row("mmbench").question.startswith("Question: Which tree?\nOptions:\nA. oak\nB. elm\nC. ash\nPlease select")
    assert row("mmbench", hint="Bark.", D="None").question.startswith("Hint: Bark.\nQuestion: Which tree?")
    assert row("mmbench", D="None").options["D"] == "None"
    assert row("mathvista").question == RAW["mathvista"]["query"]
    assert row("scienceqa", hint="It is tall.").question.startswith("Context: It is tall.\nWhich tree?\nA. oak\nB. elm\n")
    assert row("boolq").question == "An oak.\nQuestion: is it an oak?\nAnswer:"
    assert row("commonsenseqa").question.endswith("\nD. a road\nAnswer:")
    assert continuations(row("commonsenseqa"))[2][1] == " C"
    truthful = row("truthfulqa_mc2").question
    assert truthful.count("Q: ") == 7 and truthful.endswith("Barcelona, Spain.\n\nQ: Which?\nA:")


def test_winogrande_scores_the_rest_of_the_sentence():
    assert continuations(row("winogrande")) == [
        ("The oak hid the elm as oak", " was tall."), ("The oak hid the elm as elm", " was tall.")]
    with pytest.raises(InputError, match="no gap"):
        row("winogrande", sentence="No gap here.")


@pytest.mark.parametrize("labels, key, index", [
    (["1", "2", "3", "4"], "3", 2), (["A", "B", "C", "D"], " C", 2), (FOUR["text"], "D", 3), (["A", "B", "C"], "B", 1),
])
def test_labels_of_choices(labels, key, index):
    found = row("arc_easy", choices={"text": FOUR["text"][: len(labels)], "label": labels}, answerKey=key)
    assert list(found.options).index(found.answer) == index


def test_likelihoods_by_sum_and_by_characters():
    choices = {"text": ["a", "a long text"], "label": ["A", "B"]}
    result = score("arc_challenge", [RAW["arc_challenge"] | {"choices": choices, "answerKey": "B"}], [[-3.0, -11.0]])
    assert result["metric"] == "acc_norm" and result["value"] == 1 and result["metrics"]["acc"]["value"] == 0
    assert list(score("arc_easy", [RAW["arc_easy"]], [[-1.0, -2, -3, -4]])["metrics"]) == ["acc", "acc_norm"]
    assert list(score("boolq", [RAW["boolq"]], [[-2.0, -1.0]])["metrics"]) == ["acc"]


@pytest.mark.parametrize("value, answer", [(0, "no"), (1, "yes"), (False, "no"), (True, "yes"), ("False", "no")])
def test_boolq_labels(value, answer):
    assert row("boolq", label=value).answer == answer
    assert to_rows("boolq", [{"question": "q", "passage": "p", "answer": value}])[0].answer == answer


def test_spatialeval_options_are_read_from_the_text():
    assert row("spatialeval").options == {"A": "Yes", "B": "No"}
    assert row("spatialeval", text="No list.").options == {"B": "No"}  # enough to know the right answer
    assert verdict("spatialeval", "Yes") == {
        "id": "mazenav.vqa.1.0", "value": "A", "correct": False, "by": "whole"}


def test_freak_asks_in_six_orders():
    free = {"id": 8, "type": "fib", "options": None, "category": ["ocr", "logic"]}
    rows = to_rows("freak", [RAW["freak"], RAW["freak"] | free])
    assert [r.id for r in rows] == [*(f"7/{i}" for i in range(6)), "8"]
    assert len({tuple(r.options.values()) for r in rows[:6]}) == 6
    assert Counter(r.answer for r in rows[:6]) == {"A": 2, "B": 2, "C": 2}
    assert all(r.options[r.answer] == "an oak" and r.options["D"].startswith("The correct") for r in rows[:6])
    result = score("freak", rows, ["A"] * 6 + ["An oak."])
    assert (result["metric"], result["n"], result["value"]) == ("mcq", 1, pytest.approx(1 / 3))
    assert result["metrics"]["fib_exact"]["value"] == 1 and list(result["parts"]) == ["shape"]  # the score's


def rolled(n: int = 3, copies: int = 3) -> list[dict]:
    options, raws = ["oak", "elm", "ash"], []
    for i in range(n):
        for k in range(copies):
            texts = options[k:] + options[:k]
            name = {"index": str(i + 1_000_000 * k), "answer": "ABC"[texts.index("elm")]}
            raws.append(RAW["mmbench"] | dict(zip("ABC", texts)) | name)
    return raws


def test_mmbench_circular_and_vanilla():
    raws = rolled()
    replies = [raw["answer"] for raw in raws]
    replies[1] = "B"  # wrong in one copy of question 0
    result = score("mmbench", raws, replies)
    assert (result["value"], result["n"], result["metrics"]["vanilla"]["value"]) == (pytest.approx(2 / 3), 3, 1)
    assert score("mmbench", rolled(copies=1), ["B"] * 3)["metric"] == "vanilla"  # never called circular
    assert score("mmbench", rolled(copies=2), ["B", "A"] * 3)["metrics"]["circular"]["n"] == 3  # on the copies that there are
    with pytest.raises(InputError, match="rolled copies"):
        score("mmbench", rolled(n=1)[1:], ["A", "C"])


@pytest.mark.parametrize("gold, response, correct", [
    ("2", "There are {2} points on 5 lines.", True), ("2", "{1}? No, {2}.", True), ("Yes", "Yes, they touch.", True),
    ("No", "{Yes}", False), ("m", "{M}", True), ("m", "<think>{a}</think>{m}", True), ("m", "{a} {m}", False),
    ("4,4", "rows={4} columns={4}", True), ("4,5", "columns={5}, rows={4}", True), ("4,5", "4 rows and 5 columns", True),
    ("4,5", "{4}", False), ("(4, 5)", "rows: 4, so (4,5)", True), ("4,5", "45", False),
])
def test_vlmsareblind_replies(gold, response, correct):
    assert verdict("vlmsareblind", response, groundtruth=gold)["correct"] == correct


def test_vlmsareblind_means_over_items_and_tasks():
    raws = [RAW["vlmsareblind"] | {"task": task} for task in ("lines", "lines", "lines", "grid")]
    result = score("vlmsareblind", raws, ["4", "4", "4", "none of them"])
    assert (result["metric"], result["value"], result["metrics"]["task_mean"]["value"]) == ("accuracy", 0.75, 0.5)
    assert result["parts"]["grid"]["value"] == 0


@pytest.mark.parametrize("response, correct, official", [
    ("D", True, True), ("(D)", True, True), ("18", True, True), ("(B) 12", False, False), ("The answer is 18.", True, True),
    ("I cannot tell.", False, False), ("28", False, True),  # 18 is nearest to 28
])
def test_mathvista_duplicate_choices_are_one_answer(response, correct, official):
    found = verdict("mathvista", response, choices=["9", "12", "18", "18"], answer="18", answer_type="text")
    assert (found["correct"], found["official"]) == (correct, official)


@pytest.mark.parametrize("answer_type, precision, gold, response, correct", [
    ("float", 2.0, "0.13", "It is 0.125 $.", False),  # binary floats: round(0.125, 2) is 0.12, as officially
    ("float", 1.0, "1.2", "<answer>1.2</answer>", True), ("float", 1.0, "1.0", "1", True),
    ("integer", None, "14", "9" * 400, False), ("list", None, "[1, 2]", "So it is [1,2].", True),
    ("list", None, "[1, 2]", "[", False),
])
def test_mathvista_normal_form(answer_type, precision, gold, response, correct):
    found = verdict("mathvista", response, answer_type=answer_type, precision=precision, answer=gold)
    assert found["correct"] == correct


@pytest.mark.parametrize("gold, response, correct", [
    ("B", "b", True), ("embryonic", "The embryonic stage.", True), ("embryonic", "preembryonic", False), ("0.9965", "1", True),
    ("-120", "It is −120 degrees", True), ("4", "", False), ("B", "absorb", False), ("A", "A", True), ("A", "A man.", False),
])
def test_mmmu_open(gold, response, correct):
    assert verdict("mmmu", response, question_type="open", answer=gold)["correct"] == correct


def test_scienceqa_blank_image_and_zero_answer():
    raws = [RAW["scienceqa"], RAW["scienceqa"] | {"image": png(), "answer": 1}]
    rows = to_rows("scienceqa", raws)
    assert [content(r)[0].size for r in rows] == [(448, 448), (4, 4)] and rows[0].answer == "A"
    result = score("scienceqa", raws, ["oak", "oak"])
    with_image = result["metrics"]["with_image"]
    assert (result["value"], with_image["value"], with_image["n"]) == (0.5, 0, 1)


def test_verdicts_from_a_last_resort_are_counted():
    raws = [RAW["mmbench"] | {"index": i} for i in range(3)]
    result = score("mmbench", raws, ["An elm hides an oak. Here is the elm.", "The elm.", "?"])
    assert [item["by"] for item in result["items"]] == ["last", "whole", ""] and result["last_resort"] == 1
    assert "*verdicts from a last resort: 1*" in table_rows(result | {"not_asked": 0})


def test_unparsable_is_wrong_and_counted():
    raws = [RAW["mmbench"] | {"index": i} for i in range(4)]
    result = score("mmbench", raws, ["", "I cannot tell.", "A or B", "B"])
    assert result["unparsable"] == 3 and result["metrics"]["vanilla"]["value"] == 0.25
    assert [item["value"] for item in result["items"]] == [None, None, None, "B"]


def test_the_interval_is_wilsons():
    result = score("countbench", [RAW["countbench"]] * 10, ["3"] * 9 + ["4"])
    assert result["interval"] == pytest.approx((0.5958, 0.9821), abs=1e-4)  # the textbook value for 9 of 10
    assert result["units"] == [1.0] * 9 + [0.0] and result["expected_n"] == 491
    assert json.loads(json.dumps(result))["n"] == 10


def test_scoring_needs_no_model_library():
    """Anybody's replies can be scored where neither transformers nor peft is installed, or has the time to load."""
    code = "import sys, benchmarks; print([name for name in ('transformers', 'peft', 'pyarrow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ── files and images ──────────────────────────────────────────────────────────────────────────────────────────────────

def test_an_image_is_shown_once_at_its_first_mark():
    images = [Image.new("RGB", (n, n)) for n in (1, 2, 3)]
    asked = Row("x", "See <image 2> and <image 1>, then <image 2>.", "A", "mcq", images=tuple(images))
    shown = [part if isinstance(part, str) else part.size[0] for part in content(asked)]
    assert shown == [3, "See ", 2, " and ", 1, ", then ", "<image 2>", "."]
    with pytest.raises(InputError, match="row y: the question names <image 2>"):
        content(Row("y", "<image 2>", "A", "mcq", images=(images[0],)))


def test_image_cells(tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    cells = [png(), base64.b64encode(png()).decode(), tmp_path / "a.png", {"bytes": png(), "path": None},
             {"bytes": None, "path": str(tmp_path / "a.png")}, Image.new("RGB", (4, 4), "red")]
    for cell in cells:
        assert content(row("countbench", image=cell))[0].getpixel((0, 0)) == (255, 0, 0)
    clear = content(row("countbench", image=Image.new("RGBA", (4, 4), (0, 0, 0, 0))))[0]
    assert clear.getpixel((0, 0)) == (255, 255, 255)  # not black


@pytest.mark.parametrize("cell, why", [
    (None, "is missing"), (b"no image", "does not decode"), (png()[:40], "does not decode"), ("no base64!", "does not decode"),
    (Path("absent.png"), "does not decode"),
])
def test_images_that_do_not_decode_name_their_row(cell, why):
    with pytest.raises(InputError, match=f"row 0, image 1: the image {why}"):
        content(row("countbench", image=cell))


def test_reading_json_jsonl_tsv_and_parquet(tmp_path):
    rows = [{"index": 1, "A": "None", "image": "pictures/1.png"}, {"index": 2, "A": "NA", "image": None}]
    (tmp_path / "r.json").write_text(json.dumps(rows))
    (tmp_path / "d.json").write_text(json.dumps({"7": {"A": "None"}}))
    (tmp_path / "r.jsonl").write_text("\n".join(json.dumps(r) for r in rows) + "\n\n")
    assert read_rows(tmp_path / "r.json") == read_rows(tmp_path / "r.jsonl")
    assert read_rows(tmp_path / "r.json")[0]["image"] == tmp_path / "pictures" / "1.png"
    assert read_rows(tmp_path / "d.json") == [{"id": "7", "A": "None"}]

    image = base64.b64encode(png()).decode()
    (tmp_path / "r.tsv").write_text(f'index\tA\tB\timage\n1\tNone\t"two\nlines"\t{image}\n2\tnan\t\t1\n')
    first, second = read_rows(tmp_path / "r.tsv")
    assert (first["A"], first["B"], second["B"], second["image"]) == ("None", "two\nlines", "", image)

    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet
    table = arrow.Table.from_pylist([{"choices": FOUR, "image": {"bytes": png(), "path": "x"}}])
    pyarrow.parquet.write_table(table, tmp_path / "r.parquet")
    (raw,) = read_rows(tmp_path / "r.parquet")
    assert raw["choices"] == FOUR and content(row("countbench", image=raw["image"]))[0].size == (4, 4)


def test_a_tsv_of_mmbench_is_scored(tmp_path):
    image = base64.b64encode(png()).decode()
    raws = [RAW["mmbench"] | {"D": "None", "image": image}, RAW["mmbench"] | {"index": 6, "image": "5"}]
    lines = ["\t".join(raws[0]), *("\t".join(str(cell) for cell in raw.values()) for raw in raws)]
    (tmp_path / "mmbench.tsv").write_text("\n".join(lines))
    rows = to_rows("mmbench", find_rows("mmbench", tmp_path))
    assert [content(r)[0].size for r in rows] == [(4, 4)] * 2 and rows[0].options["D"] == "None" and "D" not in rows[1].options
    assert score("mmbench", rows, ["None", "B"])["metrics"]["vanilla"]["value"] == 0.5


@pytest.mark.parametrize("file, text", [
    ("r.json", ""), ("r.json", "[]"), ("r.jsonl", "\n"), ("r.json", "{"), ("r.json", "[1]"), ("r.tsv", "index\n"),
    ("r.parquet", ""), ("r.txt", "x"), ("absent.json", None), ("r.jsonl", '{"id": 1}\n{"id": \n'),
])
def test_unreadable_files_are_named(tmp_path, file, text):
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=file):
        read_rows(tmp_path / file)


def test_rows_of_other_splits_are_left_out(tmp_path):
    (tmp_path / "mmmu").mkdir()
    raws = [RAW["mmmu"] | {"split": split, "id": f"{split}_Art_{i}"} for i, split in enumerate(("dev", "validation"))]
    (tmp_path / "mmmu" / "rows.json").write_text(json.dumps(raws))
    assert [raw["id"] for raw in find_rows("mmmu", tmp_path)] == ["validation_Art_1"]
    (tmp_path / "mmmu" / "rows.json").write_text(json.dumps(raws[:1]))
    with pytest.raises(InputError, match="no row of the split 'validation'"):
        find_rows("mmmu", tmp_path)
    with pytest.raises(InputError, match="found no piqa"):
        find_rows("piqa", tmp_path)


def test_the_hubs_folders_are_found(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet
    files = {"hallusionbench/data": ("image", "non_image"), "arc_easy/ARC-Easy": ("test", "train"),
             "arc_easy/ARC-Challenge": ("test",), "mmmu/Art": ("validation", "dev"), "mmmu/Music": ("validation",)}
    for folder, splits in files.items():
        (tmp_path / folder).mkdir(parents=True)
        for split in splits:
            table = arrow.Table.from_pylist([{"from": f"{folder}/{split}"}])
            pyarrow.parquet.write_table(table, tmp_path / folder / f"{split}-00000-of-00001.parquet")
    found = {name: [raw["from"] for raw in find_rows(name, tmp_path)] for name in ("hallusionbench", "arc_easy", "mmmu")}
    assert found == {"hallusionbench": ["hallusionbench/data/image", "hallusionbench/data/non_image"],
                     "arc_easy": ["arc_easy/ARC-Easy/test"], "mmmu": ["mmmu/Art/validation", "mmmu/Music/validation"]}
    assert find_rows("mmmu", tmp_path / "mmmu") == find_rows("mmmu", tmp_path)  # a copy of one repository


# ── wrong input ───────────────────────────────────────────────────────────────────────────────────────────────────────

# Columns that nothing is read from, or that are read only when the row is asked, or that only name the row.
UNUSED = {"countbench": {"text", "image"}, "spatialeval": {"image"}, "hallusionbench": {"image"}, "vlmsareblind": {"image"},
          "freak": {"image", "ground_truth"}, "mathvista": {"image", "decoded_image", "pid", "question_type"},
          "mmbench": {"image", "l2-category"}, "mmmu": {"image_1"}, "arc_easy": {"id"}, "arc_challenge": {"id"},
          "openbookqa": {"id"}, "commonsenseqa": {"id"}}


@pytest.mark.parametrize("name, column", [
    (name, column) for name, raw in RAW.items() for column in raw if column not in UNUSED.get(name, ())])
def test_missing_columns_name_row_and_column(name, column):
    raw = {key: value for key, value in RAW[name].items() if key != column}
    expected = "answer" if (name, column) == ("boolq", "label") else column
    with pytest.raises(InputError, match=rf"{name}, row .+: column '{expected}' is missing"):
        to_rows(name, [raw])


@pytest.mark.parametrize("name, changes", [
    ("piqa", {"label": -1}), ("winogrande", {"answer": ""}), ("commonsenseqa", {"answerKey": ""}), ("boolq", {"label": -1}),
    ("mathvista", {"answer": ""}), ("mmbench", {"answer": None}), ("mmbench", {"answer": "D"}), ("freak", {"options": None}),
    ("hallusionbench", {"gt_answer": ""}), ("countbench", {"number": None}), ("scienceqa", {"answer": 2}),
    ("mmmu", {"answer": "?"}), ("mmmu", {"options": "['a"}), ("vlmsareblind", {"groundtruth": ""}),
    ("truthfulqa_mc2", {"mc2_targets": {"choices": ["a"], "labels": [0]}}),
])
def test_rows_without_an_answer_are_refused(name, changes):
    with pytest.raises(InputError, match=f"{name}, row "):
        row(name, **changes)


def test_rows_and_responses_must_fit():
    with pytest.raises(InputError, match="unknown benchmark 'mathvistas'; expected one of countbench"):
        score("mathvistas", [], [])
    with pytest.raises(InputError, match="piqa: found no rows"):
        score("piqa", [], [])
    with pytest.raises(InputError, match="a response to each of 6 rows; found 1"):
        score("freak", [RAW["freak"]], ["A"])
    with pytest.raises(InputError, match="several rows have the id 5"):
        score("mmbench", [RAW["mmbench"]] * 2, ["A"] * 2)
    for response in (None, 3, ["A"]):
        with pytest.raises(InputError, match="row 0: expected a text"):
            score("countbench", [RAW["countbench"]], [response])
    for response in ("A", [-1.0], [-1.0, math.nan], [-1.0, -math.inf], [-1.0, "x"], None, []):
        with pytest.raises(InputError, match="row 0: expected 2 finite log-likelihoods"):
            score("piqa", [RAW["piqa"]], [response])
    with pytest.raises(InputError, match="expected 0 finite"):  # its option texts are missing
        score("arc_easy", [RAW["arc_easy"] | {"choices": {"text": None, "label": ["1", "2"]}, "answerKey": "2"}], [[]])


def test_align_orders_replies_and_names_what_is_wrong():
    rows = to_rows("mmbench", [RAW["mmbench"] | {"index": i} for i in (3, 4)])
    replies = [{"id": 4, "response": "B"}, {"id": "3", "response": "A"}]
    assert align(rows, replies) == ["A", "B"]
    for wrong, match in [(replies[:1], "1 rows without a reply: 3"), ([*replies, replies[0]], "reply 3: row 4 has one"),
                         ([*replies, {"id": 9, "response": ""}], "1 replies without a row: 9"), ([{"id": 3}], "expected 'id'")]:
        with pytest.raises(InputError, match=match):
            align(rows, wrong)


def test_common_rows_are_taken_as_they_are():
    rows = to_rows("mmmu", [RAW["mmmu"]])
    assert to_rows("mmmu", rows) == rows
    assert score("mmmu", rows, ["B"])["value"] == 1 and BENCHMARKS["mmmu"].revision is None


# ── what people bring ─────────────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("options", [
    ["an oak", "an elm"], "['an oak', 'an elm']", '["an oak", "an elm"]', '["an oak", "an elm", null]',
    ["an oak", "an elm", None],
])
def test_options_as_a_list_or_as_a_text(options):
    assert row("mmmu", options=options).options == {"A": "an oak", "B": "an elm"}
    for name in ("mathvista", "scienceqa"):
        assert list(row(name, choices=options).options.values()) == ["an oak", "an elm"]


@pytest.mark.parametrize("name, column", [("mmmu", "options"), ("mathvista", "choices"), ("scienceqa", "choices"),
                                          ("freak", "options")])
@pytest.mark.parametrize("cell", ["cat, dog", "['cat'", '["cat", null, "dog"]', {"A": "cat"}, 3])
def test_a_text_is_never_split_into_its_characters(name, column, cell):
    with pytest.raises(InputError, match=rf"{name}, row .+: column '{column}': expected a list of texts; found"):
        row(name, **{column: cell})


@pytest.mark.parametrize("cell, number", [(2.0, "2"), ("2.0", "2"), ("2", "2"), (0, "0")])
def test_whole_numbers_as_tables_have_them(cell, number):
    assert row("countbench", number=cell).answer == number
    assert row("mathvista", precision=cell).meta["precision"] == int(number)


@pytest.mark.parametrize("cell", [None, "", "nan", float("nan"), "two", 2.5, [2]])
def test_other_numbers_are_refused(cell):
    with pytest.raises(InputError, match="countbench, row 0: column 'number': expected a whole number; found"):
        row("countbench", number=cell)


@pytest.mark.parametrize("answer", [["8", "eight"], "['8', 'eight']", '["8", "eight"]'])
def test_open_answers_may_be_several(answer):
    assert row("mmmu", question_type="open", answer=answer, options="[]").answer == ["8", "eight"]
    with pytest.raises(InputError, match="column 'answer' holds no answer"):
        row("mmmu", question_type="open", answer="", options="[]")


def test_a_row_that_speaks_of_an_image_it_lacks_is_not_asked():
    assert row("mmmu").lacks == row("mmmu", image_1=png(), options="['<image 2>', 'an elm']").lacks == "image"
    assert row("mmmu", question="Who drew it?").lacks == row("mmmu", image_1=png()).lacks == ""


@pytest.mark.parametrize("cell", [
    {"path": "x.png"}, {"bytes": None, "path": "x.png"}, {"url": "x.png"}, ["x.png"], "x.png", "images/abc",
    [{"path": "x.png"}],
])
def test_an_image_cell_is_looked_for_beside_its_rows(tmp_path, cell):
    (tmp_path / "images").mkdir()
    for name in ("x.png", "images/abc"):
        (tmp_path / name).write_bytes(png())
    (tmp_path / "countbench.json").write_text(json.dumps([RAW["countbench"] | {"image": cell}]))
    assert content(*to_rows("countbench", find_rows("countbench", tmp_path)))[0].size == (4, 4)


@pytest.mark.parametrize("cell", ["", None, [], {"bytes": None, "path": None}])
def test_an_empty_image_cell_is_an_image_that_lacks(tmp_path, cell):
    (tmp_path / "countbench.json").write_text(json.dumps([RAW["countbench"] | {"image": cell}]))
    assert to_rows("countbench", find_rows("countbench", tmp_path))[0].lacks == "image"


@pytest.mark.parametrize("cell", ["https://host/x.png", {"url": "https://host/x.png"}, ["a.png", "ftp://b"], 7])
def test_other_image_cells_are_refused_with_row_and_column(tmp_path, cell):
    (tmp_path / "countbench.json").write_text(json.dumps([RAW["countbench"], RAW["countbench"] | {"image": cell}]))
    with pytest.raises(InputError, match=r"countbench\.json, row 1, column 'image': expected"):
        find_rows("countbench", tmp_path)


def test_several_images_in_the_cell_of_one_are_refused(tmp_path):
    (tmp_path / "countbench.json").write_text(json.dumps([RAW["countbench"] | {"image": ["a.png", "b.png"]}]))
    with pytest.raises(InputError, match="row 0, image 1: expected one image; found 2"):
        content(*to_rows("countbench", find_rows("countbench", tmp_path)))


def test_official_replies_are_read(tmp_path):
    """MMMU's: one object, id → text. Excel's: a table with a byte-order mark."""
    (tmp_path / "r.json").write_text(json.dumps({RAW["mmmu"]["id"]: "B"}))
    (tmp_path / "r.tsv").write_text(f"id\tresponse\n{RAW['mmmu']['id']}\tB\n", encoding="utf-8-sig")
    (tmp_path / "16.tsv").write_text(f"id\tresponse\n{RAW['mmmu']['id']}\tB\n", encoding="utf-16")
    for name in ("r.json", "r.tsv", "16.tsv"):
        assert align(to_rows("mmmu", [RAW["mmmu"]]), read_rows(tmp_path / name)) == ["B"]


@pytest.mark.parametrize("file", ["r.xlsx", "r.jsonl.gz", "r"])
def test_other_files_are_refused_by_their_ending(tmp_path, file):
    (tmp_path / file).write_bytes(b"PK")
    with pytest.raises(InputError, match=f"{file}: expected .parquet, .json, .jsonl or .tsv"):
        read_rows(tmp_path / file)


@pytest.mark.parametrize("choices", [str(FOUR), json.dumps(FOUR)])
def test_choices_with_labels_may_be_a_text(choices):
    assert row("arc_easy", choices=choices).options == row("arc_easy").options
