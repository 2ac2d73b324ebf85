"""The reader's lessons: their words, their loss against a naive forward, and that assets/evisrag still reads."""

import random

import pytest
import torch
from helpers import naive_log_probs
from PIL import Image

import data
from models import Policy, seeded
from related.rs_grpo import well_formed
from toy import pages, reader, roles, world

LEG = reader.LEGS["read"]


@pytest.fixture(scope="module")
def policy():
    return reader.base(0)


@pytest.fixture(scope="module")
def pool(policy):
    return reader.draw_pages(policy, 24, "test")


def test_the_tokenizer_says_and_reads_all_of_it(policy):
    rng, unknown = random.Random(0), policy.tokenizer.unk_token_id
    assert len(policy.tokenizer) == policy.head.weight.shape[0] == 103
    for name in world.SHAPES:
        for kind in pages.KINDS:
            question = pages.Question(kind, name, "red")
            value = "3" if kind == "counting" else "left"
            for facts in (({}, {name: value}, {}), ({},) * pages.MOST, ({name: value, "cross": value, "ring": value},) * 3):
                context = pages.Context(question, facts)
                text = pages.respond(context, rng.random() < 0.5, rng.random() < 0.5, rng)
                ids = roles.encode(policy, text)
                assert unknown not in ids and policy.decode(ids) == text and len(ids) < 48
            assert unknown not in roles.encode(policy, question.query)
            assert all(unknown not in reader.prompt_of(policy, question.text, 3, how) for how in pages.INSTRUCTION)


def test_a_lesson_asks_as_the_loop_asks(policy, tmp_path):
    (book,) = pages.draw_library(tmp_path, 1, "book")
    for how in pages.INSTRUCTION:
        for asked in (pages.PLAIN, pages.Asked(k=2)):
            sample = pages.draw_questions([book], 1, asked, "asked", how)[0]
            prompt = policy.prompt_of_pages(sample.question, [36] * asked.k, sample.template)
            assert torch.equal(prompt, reader.prompt_of(policy, sample.question, asked.k, how))


def test_the_loss_of_a_batch_is_what_each_row_costs_alone(policy, tmp_path, monkeypatch):
    """Contexts are read once and forked; alone, each row goes through transformers' own model, from the pixels."""
    monkeypatch.setattr(reader, "CONTEXTS", 2)
    monkeypatch.setattr(reader, "QUESTIONS", 2)
    (book,) = pages.draw_library(tmp_path, 1, "book")
    images = [data.open_image(path) for path in book.images]
    visions = [policy.encode(image) for image in images]
    stacked = visions[0].edited([torch.cat(maps) for maps in zip(*(v.features for v in visions))])
    chosen, take = [], pages.choose_pages
    monkeypatch.setattr(pages, "choose_pages", lambda *given: (chosen.append(take(*given)), chosen[-1])[1])
    lesson = next(reader.lessons(policy, LEG, book.pages, stacked, random.Random(0)))
    total = expected = 0.0
    for row, (ids, weights) in enumerate(zip(lesson.ids, lesson.weights)):
        which = int(lesson.owner[row])
        said = int((weights > 0).nonzero()[0])
        last = int((weights > 0).nonzero()[-1]) + 1
        prompt = torch.cat([lesson.contexts[which][0], ids[:said]])
        with torch.no_grad():
            log_p = naive_log_probs(policy, prompt, [images[i] for i in chosen[which][0]], ids[said:last], 1.0)
        total, expected = total + float(weights.sum()), expected - float((log_p * weights[said:last]).sum())
    with torch.no_grad():
        loss, shown = reader.loss_of(policy, lesson)
    assert float(loss) == pytest.approx(expected / total, abs=1e-4) and set(shown) == {"where", "right"}


def test_where_is_the_share_of_looks_that_name_the_page(policy, pool, monkeypatch):
    monkeypatch.setattr(reader, "CONTEXTS", 2)
    lesson = next(reader.lessons(policy, LEG._replace(honest=1.0), *pool, random.Random(1)))
    close = policy.tokenizer.convert_tokens_to_ids("</observe>")
    page = lesson.ids.roll(-1, 1) == close
    assert page.any() and (lesson.weights[page] == LEG.weight).all()

    def says(ids: torch.Tensor):
        """A head that predicts these tokens where there is a loss."""
        wanted = ids[lesson.weights > 0]
        monkeypatch.setattr(policy, "head", lambda hidden: torch.nn.functional.one_hot(wanted, 103).float())
        with torch.no_grad():
            return reader.loss_of(policy, lesson)[1]

    assert says(lesson.ids) == {"where": 1.0, "right": 1.0}
    wrong = lesson.ids.masked_fill(page, policy.tokenizer.convert_tokens_to_ids("left"))
    assert says(wrong)["where"] == 0.0 and says(wrong)["right"] > 0.7


def test_a_few_updates_learn(pool, monkeypatch):
    monkeypatch.setattr(reader, "CONTEXTS", 2)
    monkeypatch.setattr(reader, "draw_pages", lambda policy, n, key: pool)
    policy, losses, loss_of = reader.base(0), [], reader.loss_of

    def noted(policy, lesson):
        loss, shown = loss_of(policy, lesson)
        losses.append(loss.item())
        return loss, shown

    monkeypatch.setattr(reader, "loss_of", noted)
    reader.teach(policy, {"some": reader.Leg(4, 3e-3, 0.85, 6.0)}, 0)
    assert losses[-1] < 0.8 * losses[0]


# ── what ships ──
def test_the_shipped_reader_keeps_the_form_and_reads_and_has_habits(tmp_path):
    """24 questions, greedy and at temperature 1: it fails if the weights, the tokenizer or the prompt are others."""
    policy = Policy.load(str(reader.EVISRAG))
    samples = pages.draw_questions(pages.draw_library(tmp_path, 4, "guard"), 24, pages.PLAIN, "guard")
    prompts = [
        (policy.prompt_of_pages(s.question, [36] * 3, s.template), [policy.encode(Image.open(p.image)) for p in s.pages])
        for s in samples
    ]
    with torch.inference_mode():
        prefix = policy.read_batch(prompts)
    draws = [seeded("guard", sample.id) for sample in samples]
    said = policy.sample(prefix, 4, 48, 1.0, draws)
    texts = [policy.decode(ids[own]) for ids, own in zip(said.ids, said.mask)]
    right = [f"<answer> {samples[i // 4].answer} </answer>" in text for i, text in enumerate(texts)]
    assert sum(map(well_formed, texts)) >= 90  # of 96
    assert 0.3 < sum(right) / 96 < 0.65
    assert 0.2 < sum("as usual for" in text for text in texts) / 96 < 0.7
    assert sum(file.stat().st_size for file in reader.EVISRAG.iterdir()) <= 4e6
