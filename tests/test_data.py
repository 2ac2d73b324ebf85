"""From annotations to samples: real COCO, hand-made folders, and every kind of bad input."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

import data
from config import InputError

FILTERS = (lambda size: (max(1, size[1] // 16), max(1, size[0] // 16)), 0.005, 0.6, 1)


def folder_of(tmp_path: Path, annotations: list[dict], image: dict | None = None, mode: str = "RGB") -> Path:
    """A COCO folder with one 160 × 120 image. Annotations: {name, bbox, …}."""
    names = ["dog", "cat", "bus"]
    (tmp_path / "images").mkdir()
    Image.new("RGB", (160, 120), (200, 30, 30)).convert(mode).save(
        tmp_path / "images" / ("a.jpg" if mode in ("CMYK", "L") else "a.png")
    )
    entry = {"id": 7, "file_name": "a.jpg" if mode in ("CMYK", "L") else "a.png", "width": 160, "height": 120} | (image or {})
    rows = [{"id": i, "image_id": 7, "category_id": 1 + names.index(a.pop("name")), **a} for i, a in enumerate(annotations, 1)]
    content = {"images": [entry], "annotations": rows, "categories": [{"id": i, "name": n} for i, n in enumerate(names, 1)]}
    (tmp_path / "instances.json").write_text(json.dumps(content))
    return tmp_path


def questions(folder: Path) -> dict[str, str]:
    return {s.question: s.answer for s in data.load(folder, *FILTERS)[0]}


def test_questions_of_one_image(tmp_path):
    folder = folder_of(tmp_path, [
        {"name": "dog", "bbox": [10, 10, 50, 60]},
        {"name": "bus", "bbox": [90, 20, 20, 20]},
        {"name": "bus", "bbox": [120, 60, 30, 40]},
        {"name": "cat", "bbox": [70, 90, 25, 25]},
    ])  # fmt: skip
    asked = questions(folder)
    assert asked["How many dogs are there in the image?"] == "1"
    assert asked["How many buses are there in the image?"] == "2"
    assert asked["Is the dog on the left or on the right of the image?"] == "left"
    assert asked["Are the buses on the left or on the right of the image?"] == "right"
    assert "Is the cat on the left or on the right of the image?" not in asked  # it straddles the middle
    (larger,) = [q for q in asked if q.startswith("Which is larger")]
    assert asked[larger] == "dog" and "cat" in larger
    assert sum(q.startswith("Is there") for q in asked) == 1


def test_evidence_of_counting_is_every_instance(tmp_path):
    folder = folder_of(tmp_path, [{"name": "bus", "bbox": [90, 20, 20, 20]}, {"name": "bus", "bbox": [120, 60, 30, 40]}])
    (sample,) = [s for s in data.load(folder, *FILTERS)[0] if s.family == "counting"]
    assert sample.boxes == ((90, 20, 20, 20), (120, 60, 30, 40)) and sample.kind == "count"


def test_color_is_asked_where_annotations_carry_one(tmp_path):
    folder = folder_of(
        tmp_path, [{"name": "dog", "bbox": [10, 10, 50, 60], "color": "red"}, {"name": "cat", "bbox": [90, 20, 20, 20]}]
    )
    asked = questions(folder)
    assert asked["What color is the dog?"] == "red"
    assert not any(q.startswith("Which is larger") for q in asked)


def test_crowds_are_not_counted(tmp_path):
    folder = folder_of(
        tmp_path, [{"name": "dog", "bbox": [10, 10, 50, 60]}, {"name": "dog", "bbox": [80, 10, 50, 60], "iscrowd": 1}]
    )
    asked = questions(folder)
    assert not any("many dogs" in q or "dog on the left" in q for q in asked)


def test_boxes_outside_are_clipped_or_dropped_and_counted(tmp_path):
    folder = folder_of(tmp_path, [
        {"name": "dog", "bbox": [-20, 10, 60, 60]},
        {"name": "cat", "bbox": [200, 10, 30, 30]},
        {"name": "bus", "bbox": [100, 50, 0, 30]},
        {"name": "bus", "bbox": [90, 20, 30, 30]},
    ])  # fmt: skip
    samples, counts = data.load(folder, *FILTERS)
    assert counts["boxes clipped to the image"] == 1
    assert counts["boxes of no area inside the image, dropped"] == 2
    boxes = {s.question: s.boxes for s in samples}
    assert boxes["How many dogs are there in the image?"] == ((0, 10, 40, 60),)
    assert not any("many buses" in q or "many cats" in q for q in boxes)  # the true number is not known


def test_filters_drop_and_count(tmp_path):
    folder = folder_of(tmp_path, [{"name": "dog", "bbox": [0, 0, 150, 115]}, {"name": "cat", "bbox": [3, 3, 5, 5]}])
    samples, counts = data.load(folder, FILTERS[0], 0.005, 0.6, 1)
    assert {s.family for s in samples} == {"presence"}
    assert counts["counting: asked"] == 2 and counts["counting: dropped, area fraction outside [0.005, 0.6]"] == 2
    _, counts = data.load(folder, FILTERS[0], 0.0, 1.0, 2)
    assert counts["counting: dropped, fewer than 2 visual tokens or all of them"] == 1


def test_presence_keeps_every_region_that_leaves_something_to_compare_it_with(tmp_path):
    records = [
        {"image": "000000000001.jpg", "question": "Is there a dog?", "answer": "yes", "family": "presence", "target_bbox": box}
        for box in ([0, 0, 160, 120], [3, 3, 5, 5])
    ]
    folder_of(tmp_path, [{"name": "dog", "bbox": [3, 3, 5, 5]}])
    image = next((tmp_path / "images").iterdir())
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join(json.dumps(r | {"image": f"images/{image.name}"}) for r in records))
    samples, counts = data.load(path, *FILTERS)
    assert [s.boxes for s in samples] == [((3, 3, 5, 5),)]
    assert counts["presence: dropped, fewer than 1 visual tokens or all of them"] == 1


def test_priority_chain():
    record = {"id": "x", "size": (100, 200)}
    assert data.evidence_boxes(record) == [pytest.approx((32.5, 65, 35, 70))]
    for key in ("metadata", "argument_bbox", "target_bbox", "proposal_bbox"):  # each beats all before it
        box = [len(key), 1, 10, 20]
        record[key] = {"bbox": box} if key == "metadata" else box
        assert data.evidence_boxes(record) == [tuple(box)]
    with pytest.raises(InputError, match=r"record x: box \[300, 0, 5, 5\] has no area inside 100x200"):
        data.evidence_boxes({"id": "x", "size": (100, 200), "target_bbox": [300, 0, 5, 5]})


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "P", "LA", "1"])
def test_every_image_mode_just_works(tmp_path, mode):
    folder = folder_of(tmp_path, [{"name": "dog", "bbox": [10, 10, 50, 60]}], mode=mode)
    sample = data.load(folder, *FILTERS)[0][0]
    image = data.open_image(sample.image)
    assert image.mode == "RGB" and image.size == (160, 120)


# ── bad input ──
def test_folder_without_instances(tmp_path):
    with pytest.raises(InputError, match="expected a COCO folder with an instances.json"):
        data.load(tmp_path, *FILTERS)


@pytest.mark.parametrize(
    "content, message", [("{nope", "not JSON"), ("[1]", "expected COCO's lists"), ("{}", "expected COCO's lists")]
)
def test_broken_instances(tmp_path, content, message):
    (tmp_path / "instances.json").write_text(content)
    with pytest.raises(InputError, match=message):
        data.load(tmp_path, *FILTERS)


@pytest.mark.parametrize(
    "annotation, message",
    [
        ({"image_id": 99}, "annotation 1: no image 99"),
        ({"category_id": 99}, "annotation 1: no category 99"),
        ({"bbox": [1, 2, 3]}, r"annotation 1: bbox: expected \[x, y, width, height\]"),
        ({"bbox": None}, r"annotation 1: bbox: expected \[x, y, width, height\]"),
    ],
)
def test_annotations_that_point_nowhere(tmp_path, annotation, message):
    folder = folder_of(tmp_path, [{"name": "dog", "bbox": [10, 10, 50, 60]}])
    content = json.loads((folder / "instances.json").read_text())
    content["annotations"][0] |= annotation
    (folder / "instances.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        data.load(folder, *FILTERS)


def test_missing_image(tmp_path):
    folder = folder_of(tmp_path, [{"name": "dog", "bbox": [10, 10, 50, 60]}])
    (folder / "images" / "a.png").unlink()
    with pytest.raises(InputError, match="image 7: no file a.png"):
        data.load(folder, *FILTERS)


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_truncated_image(tmp_path, mode):
    folder = folder_of(tmp_path, [{"name": "dog", "bbox": [10, 10, 50, 60]}], mode=mode)
    path = next((folder / "images").iterdir())
    noise = Image.frombytes("RGB", (160, 120), random.Random(0).randbytes(160 * 120 * 3))
    noise.convert(mode).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=f"{path.name}: the image does not decode"):
        data.load(folder, *FILTERS)


def test_image_of_another_size(tmp_path):
    folder = folder_of(tmp_path, [{"name": "dog", "bbox": [10, 10, 50, 60]}], image={"width": 150})
    with pytest.raises(InputError, match="annotated as 150x120, found 160x120"):
        data.load(folder, *FILTERS)


def test_folder_without_any_sample(tmp_path):
    folder = folder_of(tmp_path, [], image={"neg_category_ids": []})
    with pytest.raises(InputError, match="no usable sample"):
        data.load(folder, *FILTERS)


# ── one's own data, and the sample file ──
def jsonl(tmp_path: Path, *rows) -> Path:
    folder_of(tmp_path, [])
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


OWN = {
    "image": "images/a.png",
    "question": "What is it?",
    "answer": "dog",
    "family": "attribute",
    "target_bbox": [10, 10, 50, 60],
}


def test_own_data_as_json_lines(tmp_path):
    path = jsonl(tmp_path, OWN, OWN | {"family": "counting", "answer": 2, "id": "mine", "argument_bbox": [0, 0, 5, 5]})
    first, second = data.load(path, *FILTERS)[0]
    assert first.boxes == ((10, 10, 50, 60),) and first.size == (160, 120) and first.id == "line-1"
    assert (second.id, second.answer, second.kind) == ("mine", "2", "count")
    assert second.boxes == first.boxes  # target_bbox outranks argument_bbox


def test_every_bad_line_is_reported_with_its_number(tmp_path):
    bad = [OWN, "{nope", OWN | {"image": "images/b.png"}, {"image": "images/a.png"}, OWN | {"family": "smell"},
           OWN | {"target_bbox": [500, 0, 5, 5]}, OWN | {"target_bbox": [1, 2]}, "[1]"]  # fmt: skip
    with pytest.raises(InputError) as error:
        data.load(jsonl(tmp_path, *bad), *FILTERS)
    text = str(error.value)
    assert "7 bad lines" in text and all(f"line {n}: " in text for n in range(2, 9)) and "line 1:" not in text
    assert "line 4: lacks question, answer, family" in text and "found 'smell'" in text


def test_the_sample_file_reads_back_as_the_same_samples(tmp_path, capsys):
    folder = folder_of(tmp_path, [{"name": "dog", "bbox": [10, 10, 50, 60]}, {"name": "bus", "bbox": [90, 20, 40, 40]}])
    out = tmp_path / "samples.jsonl"
    assert data.main(["--coco", str(folder), "--out", str(out), "--cell", "16"]) == 0
    assert out.with_suffix(".png").is_file() and "counting: kept: 2" in capsys.readouterr().out
    again, direct = data.load(out, *FILTERS)[0], data.load(folder, *FILTERS)[0]
    assert [(s.id, s.question, s.answer, s.boxes, s.image_id) for s in again] == [
        (s.id, s.question, s.answer, s.boxes, s.image_id) for s in direct]  # fmt: skip
    assert data.main(["--coco", str(tmp_path / "nowhere"), "--out", str(out)]) == 2


# ── splits and sampler ──
def test_splits_keep_images_whole():
    counts = Counter(data.split_of(str(i)) for i in range(20000))
    assert abs(counts["train"] / 20000 - 0.8) < 0.02 and abs(counts["val"] / 20000 - 0.1) < 0.01
    assert data.split_of("397133") == data.split_of("397133")


def fake_samples() -> list[data.Sample]:
    sizes = {"attribute": 5, "counting": 3, "spatial": 1, "presence": 4}
    box = ((0.0, 0.0, 1.0, 1.0),)
    return [data.Sample(f"{f}{i}", "1", Path("x"), (9, 9), "?", "a", f, box) for f, n in sizes.items() for i in range(n)]


def test_sampler_is_balanced_and_uses_a_family_up_before_it_repeats():
    drawn = data.BalancedSampler(fake_samples(), seed=3).draw(60)
    assert Counter(s.family for s in drawn) == dict.fromkeys(data.FAMILIES, 15)
    for family, n in {"attribute": 5, "counting": 3}.items():
        ids = [s.id for s in drawn if s.family == family]
        assert all(len(set(ids[i : i + n])) == n for i in range(0, 15, n))
    assert drawn != data.BalancedSampler(fake_samples(), seed=4).draw(60)


def test_sampler_goes_on_from_its_cursor():
    whole = data.BalancedSampler(fake_samples(), seed=3).draw(40)
    first = data.BalancedSampler(fake_samples(), seed=3)
    head = first.draw(17)
    assert head + data.BalancedSampler(fake_samples(), seed=3, cursor=first.cursor).draw(23) == whole


# ── words ──
def test_questions_are_grammatical():
    assert data.ask_count("person") == "How many people are there in the image?"
    assert data.ask_presence("apple") == "Is there an apple in the image?"
    assert data.ask_presence("skis") == "Is there a pair of skis in the image?"
    assert data.ask_color("wine glass", 2) == "What color are the wine glasses?"
    assert [data.plural(n) for n in ("knife", "bench", "toothbrush", "mouse", "sheep", "bus")] == [
        "knives", "benches", "toothbrushes", "mice", "sheep", "buses"]  # fmt: skip


def test_plurals_of_all_80_coco_names(coco_mini):
    names = [c["name"] for c in json.loads((coco_mini / "instances.json").read_text())["categories"]]
    special = {"person": "people", "mouse": "mice", "knife": "knives", "sheep": "sheep", "skis": "pairs of skis",
               "scissors": "pairs of scissors", "broccoli": "pieces of broccoli", "bus": "buses", "bench": "benches",
               "couch": "couches", "sandwich": "sandwiches", "toothbrush": "toothbrushes",
               "wine glass": "wine glasses"}  # fmt: skip
    assert len(names) == 80
    for name in names:
        assert data.plural(name) == special.get(name, name + "s")
    vowels = [n for n in names if data.with_article(n).startswith("an ")]
    assert sorted(vowels) == ["airplane", "apple", "elephant", "orange", "oven", "umbrella"]


def test_real_coco(coco_mini):
    samples, counts = data.load(coco_mini, *FILTERS)
    asked = Counter(s.family for s in samples)
    assert all(asked[family] > 50 for family in data.FAMILIES)
    content = json.loads((coco_mini / "instances.json").read_text())
    names = {c["id"]: c["name"] for c in content["categories"]}
    rows = Counter((str(a["image_id"]), names[a["category_id"]]) for a in content["annotations"])
    crowds = {(str(a["image_id"]), names[a["category_id"]]) for a in content["annotations"] if a.get("iscrowd")}
    for s in samples:
        if s.family == "counting":
            name = next(n for n in names.values() if s.question == data.ask_count(n))
            assert (s.image_id, name) not in crowds and rows[s.image_id, name] == int(s.answer) == len(s.boxes)
