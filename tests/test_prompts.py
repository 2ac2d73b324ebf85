"""benchmarks/prompts.py: each wording to the character, on hand-made rows and on real ones, and how large images may be."""

import json
import statistics

import pytest
from helpers import random_policy
from PIL import Image
from test_tasks import RAW, SAMPLES, needs_samples, row
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import evaluate
from benchmarks import harness
from benchmarks.harness import Asking
from benchmarks.prompts import FREAK_SYSTEM, PROMPTS, pixels_like, prompt_of
from benchmarks.tasks import BENCHMARKS, find_rows, to_rows
from config import InputError
from models import chat_prompt, token_grid

DIRECTLY = "Answer with the option's letter from the given choices directly."
SELECT = "Please select the correct answer from the options above. \n"
COUNT = "Look at the image carefully and count the objects. Answer with just a number, without any additional text. "
INTEGER = "Hint: Please answer the question requiring an integer answer and provide the final value, e.g., 1, 2, 3, at the end."
LETTER = "Hint: Please answer the question and provide the correct option letter, e.g., A, B, C, D, at the end."


def worded(name: str, like: str | None = None, **changes) -> str:
    return to_rows(name, [RAW[name] | changes], like)[0].question


@pytest.mark.parametrize("name, like, changes, words", [
    ("countbench", None, {}, "How many oaks? Note that: answer with a number directly e.g. 3. Do not include any additional "
                             "text."),
    ("countbench", "lmms-eval", {"question": " How many oaks? "}, COUNT + "How many oaks?"),
    ("hallusionbench", None, {}, "Is it a lake? Please answer yes or no."),
    ("hallusionbench", "vlmevalkit", {}, "Is it a lake?"), ("hallusionbench", "lmms-eval", {}, "Is it a lake?"),
    ("vlmsareblind", None, {}, "How many squares?\nAnswer only in the required format."),
    ("vlmsareblind", "vlmevalkit", {}, "Question: How many squares?\n"),
    ("freak", None, {}, "\nQuestion:Which tree?\nChoices:\nA. an oak\nB. an elm\nC. an asht\nD. The correct answer is not "
                        "listed.\nYour answer:"),
    ("freak", None, {"type": "fib", "options": None}, "\nQuestion:Which tree?\nYour answer:"),
    ("mathvista", None, {}, "Hint: ...\nQuestion: How long?"),
    ("mathvista", "vlmevalkit", {}, "Hint: ...\nQuestion: How long?"),
    ("mathvista", "lmms-eval", {"question": "How long?", "unit": "$"}, f"Question: How long? (Unit: $)\n{INTEGER}"),
    ("mathvista", "lmms-eval", {"question": "How long?", "answer_type": "text", "choices": ["2", "3"]},
     f"Question: How long?\nChoices:\n(A) 2\n(B) 3\n{LETTER}"),
    ("mmbench", None, {}, f"Question: Which tree?\nOptions:\nA. oak\nB. elm\nC. ash\n{SELECT}"),
    ("mmbench", "vlmevalkit", {"hint": "Bark."},
     f"Hint: Bark.\nQuestion: Which tree?\nOptions:\nA. oak\nB. elm\nC. ash\n{SELECT}"),
    ("mmbench", "lmms-eval", {"hint": "Bark."},
     f"Bark. Which tree? There are several options:\nA. oak\nB. elm\nC. ash\n\n{DIRECTLY}"),
    ("mmmu", None, {}, f"Who drew <image 1>?\nA. an oak\nB. an elm\n\n{DIRECTLY}"),
    ("mmmu", None, {"question_type": "open"}, "Who drew <image 1>?\n\nAnswer the question using a single word or phrase."),
    ("mmmu", "vlmevalkit", {}, f"Question: Who drew <image 1>?\nOptions:\nA. an oak\nB. an elm\n{SELECT}"),
    ("mmmu", "vlmevalkit", {"question_type": "open"}, "Question: Who drew <image 1>?\n"),
    ("scienceqa", None, {"hint": "It is tall."}, f"Context: It is tall.\nWhich tree?\nA. oak\nB. elm\n{DIRECTLY}"),
    ("scienceqa", "vlmevalkit", {}, f"Question: Which tree?\nOptions:\nA. oak\nB. elm\n{SELECT}"),
    ("spatialeval", None, {}, "Is there a way? Available options:\nA. Yes\nB. No First, provide a concise answer in one "
                              "sentence. Then, elaborate on the reasoning behind your answer in a detailed, step-by-step "
                              "explanation."),
])  # fmt: skip
def test_hand_made_rows(name, like, changes, words):
    assert worded(name, like, **changes) == words


def options(raw: dict) -> str:
    return "\n".join(f"{letter}. {raw[letter]}" for letter in "ABCD" if raw[letter] != "nan")


@needs_samples
@pytest.mark.parametrize("name, like, words", [
    ("countbench", None, lambda raw: f"{raw['question']} Note that: answer with a number directly e.g. 3. Do not include any "
                                     "additional text."),
    ("mmbench", None, lambda raw: ("" if raw["hint"] == "nan" else f"Hint: {raw['hint']}\n")
     + f"Question: {raw['question']}\nOptions:\n{options(raw)}\n{SELECT}"),
    ("mmbench", "lmms-eval", lambda raw: ("" if raw["hint"] == "nan" else f"{raw['hint']} ")
     + f"{raw['question']} There are several options:\n{options(raw)}\n\n{DIRECTLY}"),
    ("vlmsareblind", "lmms-eval", lambda raw: raw["prompt"] + "\nAnswer only in the required format."),
    ("mathvista", "vlmevalkit", lambda raw: raw["query"]),
    ("spatialeval", None, lambda raw: raw["text"] + " First, provide a concise answer in one sentence. Then, elaborate on the "
                                      "reasoning behind your answer in a detailed, step-by-step explanation."),
    ("hallusionbench", None, lambda raw: raw["question"] + " Please answer yes or no."),
])  # fmt: skip
def test_real_rows(name, like, words):
    raws = find_rows(name, SAMPLES)
    pairs = [(r.question, words(raw)) for raw, r in zip(raws, to_rows(name, raws, like)) if r.question]
    assert pairs and all(ours == theirs for ours, theirs in pairs)


@needs_samples
def test_mathvistas_query_holds_the_words_of_lmms_evals_prompt():
    """lmms-eval makes its prompt of the columns, and puts the hint last: otherwise it is the official query."""
    for raw, r in zip(raws := find_rows("mathvista", SAMPLES), to_rows("mathvista", raws, "lmms-eval")):
        hint, *rest = raw["query"].split("\n")
        assert r.question == "\n".join([*rest, hint])


def test_the_table_names_a_source_for_each_wording():
    assert list(PROMPTS) == list(BENCHMARKS)[:9] and prompt_of("piqa").whose == "lm-evaluation-harness"
    assert all(prompt.source.count("/") >= 1 and prompt.whose for styles in PROMPTS.values() for prompt in styles.values())


@pytest.mark.parametrize("name", ["freak", "spatialeval", "piqa"])
def test_a_harness_without_a_benchmark_has_no_wording_of_it(name):
    with pytest.raises(InputError, match=f"--like vlmevalkit: expected a benchmark of which it has .*; found {name}"):
        worded(name, "vlmevalkit")


def test_freak_has_its_system_message(monkeypatch):
    policy, seen = random_policy("qwen2_5_vl"), []
    template = policy.tokenizer.apply_chat_template
    monkeypatch.setattr(policy.tokenizer, "apply_chat_template", lambda m, **more: seen.extend(m) or template(m, **more))
    asked = row("freak", image=Image.new("RGB", (56, 56)))
    harness.prompt_of(policy, asked, Asking())
    assert [m["role"] for m in seen] == ["system", "user"] and seen[0]["content"] == [{"type": "text", "text": FREAK_SYSTEM}]
    assert row("freak", type="fib", options=None).system.endswith("depends on yhe image.") and row("mmbench").system == ""


QWEN = SAMPLES.parent / "qwen"


@pytest.mark.skipif(not QWEN.is_dir(), reason="no ../shared/data/qwen")
def test_qwens_template_puts_a_system_message_first(real_tokenizer):
    tokenizer = real_tokenizer("qwen2_5_vl_7b")
    ids = chat_prompt(tokenizer, ["Why?"], tokenizer.convert_tokens_to_ids("<|image_pad|>"), True, FREAK_SYSTEM)
    assert tokenizer.decode(ids).startswith(f"<|im_start|>system\n{FREAK_SYSTEM}<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>")


# ── pixels ──
def tokens(policy, asking: Asking, size=(56, 84)) -> int:
    harness.limit_pixels(policy, asking)
    return policy.encode(Image.new("RGB", size)).features[0].shape[1]


def test_limits_of_pixels_set_the_number_of_visual_tokens():
    policy = random_policy("qwen2_5_vl")
    own = policy.pixels
    merged = policy.image_processor.patch_size * policy.image_processor.merge_size
    cells = tokens(policy, Asking())
    most, least = (tokens(policy, Asking(**{key: merged**2 * n})) for key, n in (("min_pixels", 30), ("max_pixels", 4)))
    assert most >= 30 > cells > 4 >= least
    assert harness.limit_pixels(policy, Asking()) == own  # the checkpoint's again
    assert harness.limit_pixels(policy, Asking(like="lmms-eval")) == (256 * 28 * 28, 1_605_632)
    assert harness.limit_pixels(policy, Asking(like="vlmevalkit", max_pixels=2_000_000)) == (1280 * 28 * 28, 2_000_000)
    with pytest.raises(InputError, match="--min-pixels 1003520: expected at most --max-pixels, which is 5"):
        harness.limit_pixels(policy, Asking(like="vlmevalkit", max_pixels=5))


def test_how_it_was_asked_is_stored_and_printed(tmp_path):
    (tmp_path / "hallusionbench").mkdir()
    Image.new("RGB", (56, 56)).save(tmp_path / "hallusionbench" / "a.png")
    (tmp_path / "hallusionbench" / "rows.json").write_text(json.dumps([RAW["hallusionbench"] | {"image": "a.png"}]))
    policy, asking = random_policy("qwen2_5_vl"), Asking(source=tmp_path, max_new_tokens=1, min_pixels=3136, max_pixels=6272)
    result = harness.evaluate(policy, "hallusionbench", tmp_path, asking, "random")
    assert {key: result["settings"][key] for key in ("min_pixels", "max_pixels", "prompt")} == {
        "min_pixels": 3136, "max_pixels": 6272, "prompt": "VLMEvalKit for Qwen2-VL"}
    assert "| VLMEvalKit for Qwen2-VL | 3136–6272 |" in harness.table_rows(result)
    with pytest.raises(InputError, match="asked otherwise .max_pixels 6272, not 12544; prompt 'VLMEvalKit for Qwen2-VL', not"):
        harness.evaluate(policy, "hallusionbench", tmp_path, Asking(source=tmp_path, max_new_tokens=1, min_pixels=3136,
                                                                    max_pixels=12544, like="lmms-eval"), "random")  # fmt: skip
    other = {"settings": result["settings"] | {"max_pixels": 1}}
    with pytest.raises(InputError, match="asked in different ways .max_pixels 1 and 6272"):
        harness.gain("hallusionbench", other, result)


@needs_samples
def test_the_median_of_countbench():
    """Visual tokens of the sample images: 63 by Qwen2.5-VL's own limits, 266 by lmms-eval's, 1,326 by VLMEvalKit's."""
    sizes = [Image.open(raw["image"]).size for raw in find_rows("countbench", SAMPLES) if raw["image"]]

    def median(low: int, high: int) -> float:
        processor = Qwen2VLImageProcessorPil(size={"shortest_edge": low, "longest_edge": high})
        return statistics.median(a * b for a, b in (token_grid(processor, size) for size in sizes))

    assert [median(3136, 12845056), median(*pixels_like("lmms-eval", "qwen2_5_vl")),
            median(*pixels_like("vlmevalkit", "qwen2_5_vl"))] == [63, 266, 1326]  # fmt: skip


@pytest.mark.parametrize("flags, message", [
    (["--like", "vlmevalkit", "--benchmarks", "freak"], "expected a benchmark of which it has a wording"),
    (["--min-pixels", "0", "--benchmarks", "piqa"], "--min-pixels: expected at least 1; found 0"),
    (["--replies-as", "vlmevalkit", "--benchmarks", "piqa"], "--replies-as vlmevalkit: expected a benchmark that it has"),
])
def test_wrong_flags(flags, message, capsys):
    assert evaluate.main(["--backbone", "tiny", *flags]) == 2 and message in capsys.readouterr().err
