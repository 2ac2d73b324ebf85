"""VisualProcessBench and the best of N with random models of the three families: scores, batches, resume, wrong input."""

import json
from dataclasses import replace

import pytest
import torch
from helpers import FAMILIES, naive_logits, random_image, random_policy

from benchmarks import processbench
from benchmarks.harness import Asking
from benchmarks.processbench import claims_of, predict, process_rows, process_score, prompted_u, read_chain, score_solutions
from benchmarks.tasks import Row
from config import InputError
from data import Sample

QUICK = Asking(False, False, max_new_tokens=3, batch_size=4)
STEPS = ["there are 2 circles", "look at the star", "the answer is 2"]


def raw(**change) -> dict:
    response = {"steps": STEPS, "process_correctness": [1, -1, 0]}
    return {"image": ["images/a.png"], "question": "how many circles are there", "answer": "2", "response": response,
            "policy_model": "m", "data_source": "MMMU"} | change  # fmt: skip


@pytest.fixture
def source(tmp_path):
    """A folder with three rows: one image, two images, and none."""
    (tmp_path / "images").mkdir()
    for i, name in enumerate("ab"):
        random_image(32 + 16 * i, 32, i).save(tmp_path / "images" / f"{name}.png")
    rows = [raw(), raw(image=["images/a.png", "images/b.png"], data_source="WeMath", question="how many stars are there",
                       response=str(raw()["response"])), raw(image=[])]  # fmt: skip
    write(tmp_path, rows)
    return tmp_path


def write(folder, rows) -> None:
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# ── scores ──
@pytest.mark.parametrize("said, value", [(1, 0.4059), (-1, 0.2406)])
def test_known_answers_of_the_published_counts(said, value):
    labels = [1] * 16_585 + [-1] * 7_691 + [0] * 2_674
    rows = [Row("0", "", None, "steps", meta={"labels": labels, "source": "MMMU"})]
    scores = process_score(rows, [[said] * len(labels)])
    assert scores["all"]["value"] == scores["MMMU"]["value"] == pytest.approx(value, abs=5e-5)


def test_all_rows_are_pooled_not_the_sources_averaged():
    rows = [Row(str(i), "", None, "steps", meta={"labels": own, "source": source})
            for i, (own, source) in enumerate([([1, 1, -1], "a"), ([-1], "b")])]  # fmt: skip
    scores = process_score(rows, [[1, 1, 1], [-1]])
    assert scores["all"] == {"value": pytest.approx((4 / 5 + 2 / 3) / 2), "n": 2}
    assert scores["a"]["value"] == pytest.approx(0.4) and scores["b"]["value"] == pytest.approx(0.5)


def test_a_threshold_comes_from_the_other_half_and_a_question_has_one_half():
    rows = [Row(str(i), q, None, "steps", meta={"labels": [1, -1], "source": ""}) for i, q in enumerate("aabb")]
    rewards = [[0.9, 0.5], [0.8, 0.6], [0.3, 0.1], [0.4, 0.2]]  # κ of a: 0.7; of b: 0.25, as if tuned on their own
    assert predict(rows, rewards) == [[1, 1], [1, 1], [-1, -1], [-1, -1]]


# ── what a backbone says ──
@pytest.mark.parametrize("family", FAMILIES)
def test_u_in_a_batch_is_u_alone_and_that_of_a_naive_forward(family):
    policy, images = random_policy(family), [random_image(32, 32), random_image(48, 32, 1)]
    visions = [policy.encode(image) for image in images]
    together = prompted_u(policy, visions, "is it right", STEPS, 8)
    alone = prompted_u(policy, visions, "is it right", STEPS, 1)
    assert together == pytest.approx(alone, abs=1e-5) and len(set(together)) == 3
    text = processbench.VERDICT.format(question="is it right", steps="\n".join(STEPS))
    ids, _ = processbench.prompt(policy, visions, text)
    with torch.no_grad():
        log_p = naive_logits(policy, ids, images, torch.tensor([0]))[0].log_softmax(-1)
    yes, no = policy.tokenizer.convert_tokens_to_ids(["yes", "no"])
    assert together[-1] == pytest.approx(float((log_p[yes] - log_p[no]).sigmoid()), abs=1e-5)


def test_claims_and_solutions_that_can_and_cannot_be_read():
    assert claims_of(' null."') != [] and claims_of("null") == claims_of("`None`.") == []
    assert claims_of('<think> [["a","b",1]] </think> [["count", "star", 3]]') == [("count", "star", 3.0)]
    assert claims_of("there are three stars") == claims_of('[["count", "star"') == [None]
    steps = '[{"text": "x", "look": [["count","star",3]]}, {"text": "y", "look": "star"}, {"text": "z"}]'
    claims = [[("count", "star", 3.0)], [None], []]
    assert read_chain(f'```json\n{{"steps": {steps}, "answer": 3}}\n```') == (["x", "y", "z"], claims, "3")
    for text in ("", "3", '{"steps": [], "answer": 3}', '{"steps": ["x"], "answer": 3}', '{"answer": 3}', '{"steps": [{"text"',
                 '{"a":' * 9999):  # fmt: skip
        assert read_chain(text) is None


def test_solutions_are_scored_and_unreadable_ones_score_nothing(tmp_path):
    sample = Sample("s", "i", tmp_path, (8, 8), "How many stars?", "3", "counting", ((0, 0, 4, 4),))
    chain = '{"steps": [{"text": "x", "look": [["count","star",%d]]}, {"text": "y", "look": null}], "answer": "%d"}'
    reply = {"facts": '[["count", "star", 3]]', "solutions": [chain % (2, 2), chain % (3, 3), "3"],
             "u": [[0.9, 0.9], [0.8, 0.8], []]}  # fmt: skip
    scores = score_solutions(sample, reply)
    assert scores["right"] == [0, 1, 0] and scores["majority"] == [1, 1, 0]
    assert scores["base"] == pytest.approx([0.9, 0.8, 0]) and scores["trajectory"][1] > scores["trajectory"][0] > 0
    blind = score_solutions(sample, reply | {"facts": "no list"})  # every claim UNKNOWN: one gate for all
    assert blind["trajectory"][0] > blind["trajectory"][1]


# ── end to end ──
def test_a_bench_end_to_end_resumes_and_leaves_out_rows_without_images(source, tmp_path, monkeypatch):
    policy, asking = random_policy("qwen3_vl"), replace(QUICK, source=source)
    text = processbench.bench(policy, tmp_path / "run", asking, "random")
    assert "2 of 2866 rows; 1 not asked" in text and "the facts of 2 rows, the claims of 6 steps" in text
    assert "| Macro-F1 | all | MMMU | WeMath |" in text and "| trajectory |" in text
    lines = (tmp_path / "run" / "evpv" / "visualprocessbench.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["0", "1"]
    (tmp_path / "run" / "evpv" / "visualprocessbench.jsonl").write_text(lines[0] + "\n" + lines[1][:20])  # killed in the second
    asked, verify = [], processbench.verify

    def noted(policy, rows, asking):
        asked.extend(row.id for row in rows)
        return verify(policy, rows, asking)

    monkeypatch.setattr(processbench, "verify", noted)
    assert processbench.bench(policy, tmp_path / "run", asking, "random") == text and asked == ["1"]
    with pytest.raises(InputError, match="asked otherwise"):
        processbench.bench(policy, tmp_path / "run", asking, "another")


@pytest.mark.parametrize("change, message", [
    ({"response": {"steps": STEPS, "process_correctness": [1]}}, "line 2: .*labels"),
    ({"response": {"steps": STEPS, "process_correctness": [1, 2, 0]}}, "line 2: .*labels"),
    ({"response": {"steps": []}}, "line 2: expected image, question, and a response"),
    ({"response": "{'steps': ["}, "line 2: expected image, question, and a response"),
    ({"image": 3}, "row 1, column 'image': expected an image"),
    ({"question": None}, "line 2: expected image"),
])  # fmt: skip
def test_a_malformed_row_is_named(source, change, message):
    write(source, [raw(), raw(**change)])
    with pytest.raises(InputError, match=message):
        process_rows(source)


def test_wrong_files_and_flags_are_refused(source, tmp_path, capsys):
    write(source, [raw(image=["images/none.png"])])
    with pytest.raises(InputError, match=r"row 0.*none\.png"):
        processbench.bench(random_policy("qwen3_vl"), tmp_path / "run", replace(QUICK, source=source), "random")
    write(source, [raw(image=[])])
    with pytest.raises(InputError, match="without its image"):
        processbench.bench(random_policy("qwen3_vl"), tmp_path / "run", replace(QUICK, source=source), "random")
    assert processbench.main(["bench", "--backbone", "tiny", "--source", str(tmp_path / "nowhere")]) == 2
    assert processbench.main(["best-of-n", "--backbone", "tiny", "--data", "x", "--n", "0"]) == 2
    assert "nowhere" in (err := capsys.readouterr().err) and "--n: expected at least 1" in err


def test_best_of_n_end_to_end(world, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["best-of-n", "--backbone", "tiny", "--data", str(world["conflict"]), "--limit", "3", "--n", "2"]
    assert processbench.main([*argv, "--max-new-tokens", "4"]) == 0
    out = capsys.readouterr().out
    assert "3 questions, 6 solutions. Unreadable: 6 solutions" in out and "| one solution (Pass@1) | 0.000 |" in out
