"""Makes the project's modules importable and gives tests their small policies and data folders."""

import functools
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
SHARED = ROOT.parent / "shared" / "data"

torch.set_num_threads(1)  # models this small only lose time to a second thread


@pytest.fixture(scope="session")
def coco_mini() -> Path:
    """100 real COCO images with instances; absent on machines that have no copy."""
    if not (SHARED / "coco_mini").is_dir():
        pytest.skip("no ../shared/data/coco_mini")
    return SHARED / "coco_mini"


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> dict[str, Path]:
    """The toy world's splits, the first with a tenth of its images, for time: an image is a function of its number."""
    from toy import world

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "WORLD_SPLITS", world.WORLD_SPLITS | {"train": 60})
        return world.draw_world(tmp_path_factory.mktemp("world"), seed=0)


@pytest.fixture
def small_world(monkeypatch):
    """`train.py` draws a world of a few images, in each split some for each family, for time."""
    from toy import world

    monkeypatch.setattr(world, "WORLD_SPLITS", {"train": 24, "consistent": 6, "conflict": 6})


@pytest.fixture(scope="session")
def tiny_policy():
    """The embedded backbone as shipped, without an adapter. Tests must not train it."""
    from models import Policy

    return Policy.load("tiny")


@pytest.fixture(scope="session")
def samples(world, tiny_policy):
    """The questions of the consistent split."""
    import data

    return data.load(world["consistent"], tiny_policy.grid, 0.005, 0.6, 2)[0]


@pytest.fixture(scope="session")
def plain_run(samples, tmp_path_factory):
    """The folder of a run of helpers.SMALL, and the weights that it ends with."""
    from helpers import SMALL, trained

    run = tmp_path_factory.mktemp("plain")
    return run, trained(SMALL, samples, run)


@pytest.fixture
def few_proposals(monkeypatch):
    """For time."""
    from studies import proposals

    for name, values in {"IOUS": (0.5,), "SHIFTS": (), "SCALES": ()}.items():
        monkeypatch.setattr(proposals, name, values)


@pytest.fixture
def few_resamples(monkeypatch):
    """For time."""
    from support import stats

    monkeypatch.setattr(stats, "RESAMPLES", 100)


@pytest.fixture
def unlaid(monkeypatch):
    lay_nothing_out(monkeypatch)


def lay_nothing_out(patch: pytest.MonkeyPatch) -> None:
    """Figures are drawn, and nobody makes room for their labels: that is matplotlib's work, and half of the time."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    patch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)


@pytest.fixture
def undrawn(monkeypatch):
    """Checkpoints draw no pictures, for time."""
    import report

    monkeypatch.setattr(report, "draw", lambda *_: None)


@pytest.fixture(scope="session")
def real_tokenizer():
    """The tokenizer of a backbone in ../shared/data/qwen, by its folder's name: one takes a second. Tests must leave it so."""
    from transformers import AutoTokenizer

    return functools.cache(lambda name: AutoTokenizer.from_pretrained(SHARED / "qwen" / name))


@pytest.fixture(scope="session")
def policy():
    """A random Qwen2.5-VL. Tests must leave it as it is."""
    from helpers import random_policy

    return random_policy("qwen2_5_vl")


@pytest.fixture(scope="session")
def backbone(policy, tmp_path_factory) -> Path:
    """The same policy as a directory, for the command line."""
    out = tmp_path_factory.mktemp("backbone") / "random"
    for part in (policy.model, policy.tokenizer, policy.image_processor):
        part.save_pretrained(out)
    return out


# A run of RS-GRPO on the library of three pages: all are retrieved, so every context is sufficient.
PAGED = ["--method", "rs-grpo", "--steps", "2", "--prompts-per-step", "3", "--group-size", "4", "--max-new-tokens", "14",
         "--eval-prompts", "1", "--eval-group", "2", "--lr", "1e-4"]  # fmt: skip


@pytest.fixture(scope="session")
def words():
    """The embedded backbone with the words of four stages, which it has not learnt to say. Tests must leave it as it is."""
    from toy import reader

    return reader.base(0)


@pytest.fixture(scope="session")
def words_folder(words, tmp_path_factory) -> Path:
    """The same policy as a directory, for the command line."""
    from toy import reader

    out = tmp_path_factory.mktemp("words") / "words"
    reader.save(words, out)
    return out


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """Three pages of a toy book, and their questions, as people bring them."""
    import json
    import shutil

    from toy import pages

    out = tmp_path_factory.mktemp("library")
    (book,) = pages.draw_library(out / "books", 1, "three")
    (out / "pages").mkdir()
    lines = []
    for i in range(3):
        shutil.copy(book.images[i], out / "pages" / f"{i}.png")
        for question, _ in pages.questions_of([book.pages[i]]):
            (told,) = question.told_by(book.pages[i]).values()
            boxes = [list(box) for box in question.shown_by(book.pages[i]).boxes]
            lines.append({"question": question.text, "answer": told, "evidence_pages": {i: f"{told} {question.noun}"},
                          "evidence_boxes": {i: boxes}})  # fmt: skip
    (out / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return out


@pytest.fixture(scope="session")
def paged_run(library, words_folder, tmp_path_factory) -> Path:
    """The run of PAGED on one rank."""
    import train

    out = tmp_path_factory.mktemp("paged") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        lay_nothing_out(patch)
        assert train.main([*PAGED, "--backbone", str(words_folder), "--data", str(library), "--out", str(out)]) == 0
    return out


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for the jobs of `pair` comes last."""
    items.sort(key=lambda item: item.path.name == "test_ranks.py")


@pytest.fixture(scope="session", autouse=True)
def pair(request, tmp_path_factory):
    """The jobs of two ranks that test_ranks.py waits for, and their folder: started with the first test, on the other core."""
    if not any(item.path.name == "test_ranks.py" for item in request.session.items):
        yield None
        return
    import test_ranks

    folder, world, *others = tmp_path_factory.mktemp("pair"), *map(request.getfixturevalue, test_ranks.NEEDED)
    jobs = test_ranks.start_training_and_asking(folder, world, *others), test_ranks.start_failing(folder, world)
    yield *jobs, folder
    for job in jobs:
        job.kill()
