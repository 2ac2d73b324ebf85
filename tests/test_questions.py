"""Which questions a configuration means, and prompts that are too long for it."""

import json
from dataclasses import replace

import pytest
from PIL import Image

import data
from config import Config, InputError
from support.questions import check_prompts, load_samples

CONFIG = Config(data="toy")


def test_the_toy_world_is_drawn_and_counted(small_world, tiny_policy, tmp_path, capsys):
    train, held_out = load_samples(CONFIG, tiny_policy, tmp_path / "a")
    assert train and list(held_out) == ["consistent", "conflict"] and all(held_out.values())
    assert f"{len(train)} train, {len(held_out['consistent'])} consistent" in capsys.readouterr().out
    again, _ = load_samples(CONFIG, tiny_policy, tmp_path / "b", quiet=True)
    assert [s.question for s in again] == [s.question for s in train] and capsys.readouterr().out == ""


def test_a_folder_of_ones_own_is_divided_by_image(world, tiny_policy, tmp_path):
    train, held_out = load_samples(replace(CONFIG, data=str(world["consistent"])), tiny_policy, tmp_path, quiet=True)
    parts = [{s.image_id for s in samples} for samples in (train, *held_out.values())]
    assert all(parts) and sum(map(len, parts)) == len(set.union(*parts))
    assert all(data.split_of(image) == "train" for image in parts[0])


def test_a_prompt_that_is_too_long_is_refused_and_named(world, tiny_policy):
    samples = data.load(world["conflict"], tiny_policy.grid, 0.005, 0.6, 2)[0]
    longest = max(len(tiny_policy.prompt(s.question, 36)) for s in samples)
    check_prompts(tiny_policy, samples, replace(CONFIG, max_prompt_tokens=longest))
    with pytest.raises(InputError, match=rf"png: its prompt has {longest} tokens, 36 of them visual; .*allows {longest - 1}"):
        check_prompts(tiny_policy, samples, replace(CONFIG, max_prompt_tokens=longest - 1))


def test_the_families_asked_for_are_trained_on_and_all_are_measured(small_world, world, tiny_policy, tmp_path):
    config = replace(CONFIG, families="spatial, counting")
    train, held_out = load_samples(config, tiny_policy, tmp_path, quiet=True)
    assert {s.family for s in train} == {"counting", "spatial"}
    assert all({s.family for s in samples} == set(data.FAMILIES) for samples in held_out.values())
    asked = replace(one_image(tmp_path, "train"), families="attribute")
    with pytest.raises(InputError, match="--families attribute: expected families of .*; it has none to train on"):
        load_samples(asked, tiny_policy, tmp_path)


def one_image(tmp_path, split: str):
    """A folder with one image, whose id falls in a split."""
    image_id = next(i for i in range(1000) if data.split_of(str(i)) == split)
    Image.new("RGB", (84, 84)).save(tmp_path / "1.png")
    (tmp_path / "instances.json").write_text(json.dumps({
        "images": [{"id": image_id, "file_name": "1.png", "width": 84, "height": 84}],
        "annotations": [{"image_id": image_id, "category_id": 1, "bbox": [5, 5, 30, 30]}],
        "categories": [{"id": 1, "name": "star"}],
    }))  # fmt: skip
    return replace(CONFIG, data=str(tmp_path))


def test_a_small_folder_is_trained_on_and_its_empty_splits_named(tiny_policy, tmp_path, capsys):
    train, held_out = load_samples(one_image(tmp_path, "train"), tiny_policy, tmp_path)
    assert train and held_out == {} and "no image falls in val and probe" in capsys.readouterr().out


@pytest.mark.parametrize("split", ["val", "probe"])
def test_a_folder_without_training_images_is_refused_with_its_counts(tiny_policy, tmp_path, split):
    with pytest.raises(InputError, match=rf"expected samples to train on; .*0 train, .*[1-9] {split}"):
        load_samples(one_image(tmp_path, split), tiny_policy, tmp_path)
