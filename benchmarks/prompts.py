"""How a question is put: the wording of each visual benchmark, equal to that of a harness to the character.

    benchmark        the first, without --like           vlmevalkit                   lmms-eval
    countbench       VLMEvalKit                          the same                     countbench
    spatialeval      official (README.md)                –                            –
    hallusionbench   VLMEvalKit for Qwen2-VL             the question alone           the question alone
    vlmsareblind     lmms-eval                           VLMBlind                     the same
    freak            official (eval/prompt_adapter.py)   –                            –
    mathvista        official (column `query`)           the same                     mathvista_testmini_cot
    mmbench          VLMEvalKit                          the same                     mmbench_en_dev
    mmmu             lmms-eval                           MMMU_DEV_VAL                 mmmu_val
    scienceqa        lmms-eval                           ScienceQA_TEST               the same

`--like` takes what a harness does for Qwen2.5-VL, which is not what it does for other models: VLMEvalKit has wordings of its
own for Qwen2-VL (vlmeval/vlm/qwen2_vl/prompt.py), and switches them off for Qwen2.5-VL and Qwen3-VL (use_custom_prompt=False in
vlmeval/config.py), so that each data set's own wording is left. It also sets how large an image may be (`LIKE`).

Read in VLMEvalKit's and FREAK's repositories and in lmms-eval 0.7.3. What is known to differ: VLMEvalKit repeats an image at
every mark of MMMU's, lmms-eval shows MMMU's images in the order of their numbers and strips the blanks around them, and here
each image stands at its own first mark. The column `question` of VLMEvalKit's tables is taken to be the hub's question (`query`
for MathVista). The text-only benchmarks are asked as in lm-evaluation-harness: tasks.py has their contexts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from config import InputError

Item = dict[str, Any]  # the fields of a Row before its question is worded, and `hint`


@dataclass(frozen=True)
class Prompt:
    whose: str  # as results name it
    ask: Callable[[Item], str]
    source: str  # the file in which its words stand
    system: dict[str, str] = field(default_factory=dict)  # kind of question → system message; else the chat template's own


def listed(question: str, options: dict[str, str]) -> str:
    """The question, and below it an option a line."""
    return "\n".join([question, *(f"{letter}. {text}" for letter, text in options.items())])


def ending(text: str) -> Callable[[Item], str]:
    return lambda item: item["question"] + text


def alone(item: Item) -> str:
    return item["question"]


# ── VLMEvalKit ────────────────────────────────────────────────────────────────────────────────────────────────────────

def vlmevalkit_bare(item: Item) -> str:
    return f"Question: {item['question']}\n"


def vlmevalkit_choice(item: Item) -> str:
    """A question with its hint and its options; an open one has its first line alone."""
    question = (f"Hint: {item['hint']}\n" if item.get("hint") else "") + vlmevalkit_bare(item)
    if item["kind"] == "open":
        return question
    return listed(f"{question}Options:", item["options"]) + "\nPlease select the correct answer from the options above. \n"


# ── lmms-eval ─────────────────────────────────────────────────────────────────────────────────────────────────────────
DIRECTLY = "Answer with the option's letter from the given choices directly."


def lmms_mmbench(item: Item) -> str:
    hint = f"{item['hint']} " if item.get("hint") else ""
    return listed(f"{hint}{item['question']} There are several options:", item["options"]) + f"\n\n{DIRECTLY}"


def lmms_mmmu(item: Item) -> str:
    if item["kind"] == "open":
        return f"{item['question']}\n\nAnswer the question using a single word or phrase."
    return listed(item["question"], item["options"]) + f"\n\n{DIRECTLY}"


def lmms_scienceqa(item: Item) -> str:
    context = f"Context: {item['hint']}\n" if item.get("hint") else ""
    return listed(context + item["question"], item["options"]) + f"\n{DIRECTLY}"


NUMBERS = {  # answer type, decimal places → what is asked for, and examples of it
    ("integer", 0): ("requiring an integer answer", "final value", "1, 2, 3"),
    ("float", 1): ("requiring a floating-point number with one decimal place", "final value", "1.2, 1.3, 1.4"),
    ("float", 2): ("requiring a floating-point number with two decimal places", "final value", "1.23, 1.34, 1.45"),
    ("list", 0): ("requiring a Python list as an answer", "final list", "[1, 2, 3], [1.2, 1.3, 1.4]"),
}


def lmms_mathvista(item: Item) -> str:
    """The official hint after the question, not before it. Raises KeyError for a row without the bare question."""
    meta = item["meta"]
    if meta["bare"] is None:
        raise KeyError("question")
    question = f"Question: {meta['bare']}" + (f" (Unit: {meta['unit']})" if meta["unit"] else "")
    if item["options"]:
        lines = [question, "Choices:", *(f"({letter}) {text}" for letter, text in item["options"].items())]
        wanted = "and provide the correct option letter, e.g., A, B, C, D"
    else:
        lines = [question]
        what, value, examples = NUMBERS[meta["part"], meta["precision"] if meta["part"] == "float" else 0]
        wanted = f"{what} and provide the {value}, e.g., {examples}"
    return "\n".join([*lines, f"Hint: Please answer the question {wanted}, at the end."])


# ── the benchmarks' own repositories ──────────────────────────────────────────────────────────────────────────────────

FREAK_SYSTEM = """
You are a helpful agent.Here is an image with a multiple choice question about the image content. You should reply the \
question according to the image faithfully. Please note that the question maybe confusing or the image content might be \
uncommon, you should answer the question ONLY with the correct choice letter.
Here is an example:
#########
[IMAGE]
Question:Does the Teapot in the picture have a handle? If so, where is it located?
Choices:
A. Not visible / Can't see.
B. Yes, on the side.
C. Yes, arched over the top.
D. The correct answer is not listed.

Your answer: A
#########
Now please answer the question following the above format STRICTLY.
            """
FREAK_SYSTEM_FREE = """
You are a helpful agent.Here is an image with a question about the image content. You should reply the question according to \
the image faithfully. Please note that the question maybe confusing or the image content might be uncommon, you should answer \
the question strongly depends on yhe image."""


def freak(item: Item) -> str:
    """Officially a `t` is stuck to option C (of four): scores are those of that prompt."""
    if item["kind"] == "word":
        return f"\nQuestion:{item['question']}\nYour answer:"
    options = {letter: text + "t" * (letter == "C") for letter, text in item["options"].items()}
    return listed(f"\nQuestion:{item['question']}\nChoices:", options) + "\nYour answer:"


# ── the table: benchmark → style → prompt; the first style is the one without --like ──────────────────────────────────

def vlmevalkit(ask: Callable[[Item], str], file: str) -> dict[str, Prompt]:
    return {"vlmevalkit": Prompt("VLMEvalKit", ask, f"open-compass/VLMEvalKit, vlmeval/dataset/{file}")}


def lmms(ask: Callable[[Item], str], task: str) -> dict[str, Prompt]:
    return {"lmms-eval": Prompt("lmms-eval", ask, f"EvolvingLMMs-Lab/lmms-eval, lmms_eval/tasks/{task}")}


PROMPTS: dict[str, dict[str, Prompt]] = {
    "countbench": vlmevalkit(
        ending(" Note that: answer with a number directly e.g. 3. Do not include any additional text."),
        "image_vqa.py, CountBenchQA")
    | lmms(lambda item: "Look at the image carefully and count the objects. Answer with just a number, without any additional "
           f"text. {item['question'].strip()}", "countbench/countbench.yaml"),
    "spatialeval": {"official": Prompt("official", ending(
        " First, provide a concise answer in one sentence. Then, elaborate on the reasoning behind your answer in a detailed, "
        "step-by-step explanation."), "jiayuww/SpatialEval, README.md")},
    "hallusionbench": {"qwen2-vl": Prompt(
        "VLMEvalKit for Qwen2-VL", ending(" Please answer yes or no."),
        "open-compass/VLMEvalKit, vlmeval/vlm/qwen2_vl/prompt.py")}
    | vlmevalkit(alone, "image_yorn.py, ImageYORNDataset") | lmms(alone, "hallusion_bench/hallusion_bench_image.yaml"),
    "vlmsareblind": lmms(ending("\nAnswer only in the required format."), "vlmsareblind/vlmsareblind.yaml")
    | vlmevalkit(vlmevalkit_bare, "image_mcq.py, VLMBlind"),
    "freak": {"official": Prompt("official", freak, "Hans-M-Yin/FREAK, eval/prompt_adapter.py",
                                 {"mcq": FREAK_SYSTEM, "word": FREAK_SYSTEM_FREE})},
    "mathvista": {"official": Prompt("official", alone, "lupantech/MathVista, data/query.json")}
    | vlmevalkit(alone, "image_vqa.py, MathVista") | lmms(lmms_mathvista, "mathvista/mathvista_evals.py"),
    "mmbench": vlmevalkit(vlmevalkit_choice, "image_mcq.py, ImageMCQDataset")
    | lmms(lmms_mmbench, "mmbench/en_utils.py"),
    "mmmu": lmms(lmms_mmmu, "mmmu/utils.py") | vlmevalkit(vlmevalkit_choice, "image_mcq.py, MMMUDataset"),
    "scienceqa": lmms(lmms_scienceqa, "scienceqa/utils.py") | vlmevalkit(vlmevalkit_choice, "image_mcq.py, ImageMCQDataset"),
}  # fmt: skip
TEXT_ONLY = Prompt("lm-evaluation-harness", alone, "EleutherAI/lm-evaluation-harness, lm_eval/tasks")

# Pixels of the smallest and the largest image that is not resized, by the architecture of the backbone; () is any other.
# VLMEvalKit: vlmeval/config.py for Qwen2.5-VL; for Qwen3-VL it states none, and qwen_vl_utils' 4 to 16,384 tokens hold.
# lmms-eval: lmms_eval/models/simple/qwen2_5_vl.py and qwen3_vl.py.
LIKE: dict[str, dict[str, tuple[int, int]]] = {
    "vlmevalkit": {"qwen2_5_vl": (1280 * 28 * 28, 16384 * 28 * 28), "qwen3_vl": (4 * 32 * 32, 16384 * 32 * 32)},
    "lmms-eval": dict.fromkeys(("qwen2_5_vl", "qwen3_vl", "qwen3_5"), (256 * 28 * 28, 1_605_632)),
}


def prompt_of(name: str, like: str | None = None) -> Prompt:
    """The wording of a benchmark. Raises InputError where that harness has none."""
    styles = PROMPTS.get(name, {"lm_eval": TEXT_ONLY})
    if like and like not in styles:
        having = [name for name, own in PROMPTS.items() if like in own]
        raise InputError(f"--like {like}: expected a benchmark of which it has a wording: {', '.join(having)}; found {name}")
    return styles[like] if like else next(iter(styles.values()))


def pixels_like(like: str, architecture: str) -> tuple[int, int]:
    """The smallest and the largest number of pixels. Raises InputError for an architecture without limits in the table."""
    if architecture not in LIKE[like]:
        raise InputError(f"--like {like}: expected a backbone of {' or '.join(LIKE[like])}, whose limits it has; found "
                         f"{architecture}: give --min-pixels and --max-pixels")  # fmt: skip
    return LIKE[like][architecture]
