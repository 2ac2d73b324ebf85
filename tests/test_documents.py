"""One's own pages: what is retrieved becomes a question of sufficient or insufficient context; and a run by one command."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import PAGED
from PIL import Image

import data
import rollout
import train
from config import Config, InputError, configure
from related import documents, retrieve, rs_grpo

QUESTION = {"question": "How many?", "answer": "3", "id": "q", "evidence_pages": None, "evidence_boxes": {}}
LIBRARY = documents.Document({name: data.Page(f"{name}.png", (84, 84)) for name in "abc"}, [])


# ── what people bring ──
def document(folder: Path, *rows) -> Path:
    for name in ("pages/a.png", "pages/deep/b.JPG"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (160, 120)).save(folder / name)
    (folder / "pages" / "notes.txt").write_text("no page")
    (folder / "pages" / ".hidden.png").write_text("no page")
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


ASKED = {"question": "How many?", "answer": 3}


def test_pages_and_questions_are_read(tmp_path):
    evidence = {"evidence_pages": {"a": "3 dogs", "deep/b": "a table"}, "evidence_boxes": {"a": [10, 10, 500, 60]}}
    read = documents.read_document(
        document(tmp_path, ASKED | {"evidence_pages": ["deep/b"]}, ASKED | evidence, ASKED), Counter()
    )
    assert [*read.pages] == ["a", "deep/b"] and read.pages["deep/b"].size == (160, 120)
    assert [q["evidence_pages"] for q in read.questions] == [{"deep/b": data.SOMETHING}, evidence["evidence_pages"], None]
    assert read.questions[1]["evidence_boxes"] == {"a": [(10, 10, 150, 60)]} and read.questions[0]["evidence_boxes"] == {}
    assert [q["id"] for q in read.questions] == ["line-1", "line-2", "line-3"] and read.questions[0]["answer"] == "3"


def test_every_bad_question_is_reported_with_its_number(tmp_path):
    bad = [ASKED, "{", {"question": "?"}, ASKED | {"evidence_pages": ["c"]}, ASKED | {"evidence_pages": {"a": ""}},
           ASKED | {"evidence_boxes": {"a": [500, 0, 5, 5]}}, ASKED | {"evidence_boxes": [1, 2, 3, 4]},
           ASKED | {"id": "line-1"}, ASKED | {"evidence_pages": True}, ASKED | {"evidence_pages": []},
           {"question": "?", "answer": "insufficient to answer", "evidence_pages": []}]  # fmt: skip
    with pytest.raises(InputError) as error:
        documents.read_document(document(tmp_path, *bad), Counter())
    text = str(error.value)
    assert "9 bad lines" in text and all(f"line {n}: " in text for n in range(2, 11)) and "line 1: " not in text
    assert "line 4: evidence_pages: expected the name of one of 2 pages, as 'a'; found 'c'" in text
    assert "line 6: evidence_boxes: box (500, 0, 5, 5) has no area inside page 'a'" in text
    assert "line 8: id: expected ids that differ; found 'line-1' again" in text


def test_a_library_without_pages_or_questions_is_refused(tmp_path):
    (tmp_path / "questions.jsonl").write_text("")
    with pytest.raises(InputError, match="pages: expected images of pages .*; found none"):
        documents.read_document(tmp_path, Counter())
    document(tmp_path)
    with pytest.raises(InputError, match="questions.jsonl: expected questions; found none"):
        documents.read_document(tmp_path, Counter())
    Image.new("RGB", (160, 120)).save(tmp_path / "pages" / "a.webp")
    with pytest.raises(InputError, match="expected ids that differ; found 'a' twice"):
        documents.read_document(tmp_path, Counter())
    (tmp_path / "pages" / "a.webp").write_bytes(b"no image")
    (tmp_path / "pages" / "a.png").unlink()
    with pytest.raises(InputError, match="a.webp: the image does not decode"):
        documents.read_document(tmp_path, Counter())


# ── samples ──
@pytest.mark.parametrize("evidence, found, answer, family, gold", [
    ({"b": "3 stars"}, [2, 1], "3", "sufficient", "contained"),
    ({"b": "3 stars", "a": "2 cats"}, [2, 1], "insufficient to answer", "insufficient", "contained"),
    ({"b": "3 stars"}, [0, 2], "insufficient to answer", "insufficient", "contained"),
    (None, [0, 2], "3", "sufficient", ""),
])  # fmt: skip
def test_a_context_suffices_if_it_holds_every_page_with_evidence(evidence, found, answer, family, gold):
    sample = documents.sample_of(QUESTION | {"evidence_pages": evidence}, LIBRARY, found)
    assert (sample.answer, sample.family, sample.gold) == (answer, family, gold)
    assert [page.evidence for page in sample.pages] == [(evidence or {}).get("abc"[i], "") for i in found]


def test_a_question_that_no_page_answers_is_one_of_insufficient_context():
    sample = documents.sample_of(QUESTION | {"answer": "Insufficient to answer.", "evidence_pages": {}}, LIBRARY, [0])
    assert sample.family == "insufficient"


def test_pages_are_retrieved_by_the_frozen_backbone(library, words):
    """Whatever the adapter says; the best first, as `retrieve` ranks them."""
    read = documents.read_document(library, Counter())
    plain = documents.retrieved(words, read, 2, quiet=True)
    index = retrieve.index_pages(words, [words.encode(data.open_image(page.image)) for page in read.pages.values()])
    queries = [f"{documents.QUERY} {question['question']}" for question in read.questions]
    assert plain == retrieve.ranking(words, index, queries)[:, :2].tolist()
    assert [sorted(row) for row in documents.retrieved(words, read, 9, quiet=True)] == [[0, 1, 2]] * len(read.questions)


def test_one_command_trains_and_resumes_bit_for_bit(paged_run, library, words_folder, tmp_path, undrawn):
    flags, halves = [*PAGED, "--backbone", str(words_folder), "--data", str(library)], str(tmp_path / "halves")
    assert train.main([*flags, "--out", halves, "--stop-after", "1"]) == 0 and train.main(["--resume", halves]) == 0
    states = [torch.load(f"{run}/state.pt", weights_only=True)["adapter"] for run in (paged_run, halves)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert json.loads((paged_run / "results.json").read_text())["after"]
    rows = [json.loads(line) for line in (paged_run / "log.jsonl").open()]
    assert max(row["grad_norm"] for row in rows) > 0 and {"format", "perception", "derivation"} <= rows[0].keys()


def sampled(policy, sample, config, text):
    """A group of one text and its first answer's rival."""
    return rollout.given_group(policy, sample, [text, text.replace("3", "2")], config)


def test_the_record_is_audited_and_the_answer_is_not(library, words):
    """`--span evidence` asks of the tokens between the tags; where nothing on the pages decides, nothing is audited."""
    read = documents.read_document(library, Counter())
    sample = documents.sample_of(read.questions[0], read, [0, 1, 2])
    text = ("<observe> look [1]: </observe> <evidence> [1]: 3 stars [2]: no relevant information [3]: no relevant information "
            "</evidence> <think> 3 </think> <answer> 3 </answer><|im_end|>")  # fmt: skip
    config = configure({"method": "rs-ced", "group_size": 2})
    group = sampled(words, sample, config, text)
    spans = rollout.audited_spans(words, group, config)
    assert words.decode(group.responses.ids[0][slice(*spans[0])]).startswith("[1]: 3 stars")
    judgement = rollout.judge(words, group, config)
    assert judgement.audited.all() and (judgement.s != 0).any() and judgement.masks.shape == (4, 108)
    answer = rollout.judge(words, group, replace(config, span="answer"))
    assert not torch.equal(answer.s, judgement.s)
    assert rollout.audited_spans(words, group, replace(config, span="answer")) == group.spans
    scoped = rs_grpo.ced_rewards(judgement, config)
    assert scoped.rewards.shape == (3, 2) and scoped.rewards[0].tolist() == [1, 1]
    for boxes in ((), ((0.0, 0.0, 84.0, 84.0),)):  # nothing is evidence, or everything
        bare = replace(sample, pages=tuple(replace(page, boxes=boxes) for page in sample.pages))
        silent = rollout.judge(words, sampled(words, bare, config, text), config)
        assert not silent.audited.any() and (silent.m == 0).all() and not silent.masks.any()
        assert silent.r_ans.tolist() == judgement.r_ans.tolist()


@pytest.mark.parametrize("method, message", [
    ("papo", "--method papo: expected questions about one image; found questions about pages"),
    ("rs-ced", "--method rs-ced: expected evidence_boxes of some pages"),
])  # fmt: skip
def test_a_method_that_does_not_fit_the_questions_is_refused(library, method, message):
    read = documents.read_document(library, Counter())
    sample = documents.sample_of(read.questions[0] | {"evidence_boxes": {}}, read, [0, 1])
    with pytest.raises(InputError, match=message):
        train.check_samples([sample], Config(method=method))


def test_rs_grpo_is_not_for_questions_about_one_image(samples):
    with pytest.raises(InputError, match="--method rs-grpo: expected questions about pages"):
        train.check_samples(samples, Config(method="rs-grpo"))
    train.check_samples(samples, Config())
