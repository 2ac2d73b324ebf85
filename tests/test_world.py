"""The toy world: its priors, and that it is a function of its seed."""

import data
from toy import world as toy


def test_priors_hold_on_train_and_fail_on_conflict(world):
    prior = {data.plural(n): v for n, v in toy.PRIOR.items()} | {data.singular(n): v for n, v in toy.PRIOR.items()}
    for split in ("train", "consistent", "conflict"):
        samples, counts = data.load(world[split], lambda size: (6, 6), 0.005, 0.6, 2)
        assert {s.family for s in samples} == set(data.FAMILIES)
        assert not any("dropped" in name and n for name, n in counts.items())
        for s in samples:
            noun = next((w for w in s.question.replace("?", "").split() if w in prior), None)
            usual = {"attribute": prior[noun][0], "counting": str(prior[noun][1]), "spatial": prior[noun][2], "presence": "yes"}
            assert (s.answer == usual[s.family]) == (split != "conflict"), s


def test_world_is_a_function_of_its_seed(small_world, tmp_path):
    one, again, other = (toy.draw_world(tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    content = [(w["conflict"] / "instances.json").read_text() for w in (one, again, other)]
    assert content[0] == content[1] != content[2]
    images = [(w["conflict"] / "images" / "000001.png").read_bytes() for w in (one, again)]
    assert images[0] == images[1]
