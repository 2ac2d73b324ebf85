"""Makes the project's modules importable and gives tests their small policies and data folders."""

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
    """The toy world's splits."""
    from toy.world import draw_world

    return draw_world(tmp_path_factory.mktemp("world"), seed=0)


@pytest.fixture
def small_world(monkeypatch):
    """`train.py` draws a world of a tenth of the images, for time."""
    from toy import world

    monkeypatch.setattr(world, "WORLD_SPLITS", {"train": 60, "consistent": 10, "conflict": 10})


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


@pytest.fixture(scope="session", autouse=True)
def pair(request, tmp_path_factory):
    """The jobs of two ranks that test_ranks.py waits for, and their folder: started with the first test, on the other core."""
    if not any(item.path.name == "test_ranks.py" for item in request.session.items):
        yield None
        return
    import test_ranks

    folder, world, backbone = tmp_path_factory.mktemp("pair"), *map(request.getfixturevalue, ("world", "backbone"))
    jobs = test_ranks.start_training_and_asking(folder, world, backbone), test_ranks.start_failing(folder, world)
    yield *jobs, folder
    for job in jobs:
        job.kill()
