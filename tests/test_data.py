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


def test_records_without_a_box_are_counted_and_where_the_evidence_is_found_no_box_is_looked_at(tmp_path):
    bare = {key: value for key, value in OWN.items() if key != "target_bbox"}
    path = jsonl(tmp_path, OWN, bare, bare | {"target_bbox": [0, 0, 3, 3]}, bare | {"metadata": {"bbox": None}})
    samples, counts = data.load(path, *FILTERS)
    said = "attribute: without a box, audited at the image's centre (--evidence attributed needs no box)"
    assert counts[said] == 2 and [s.id for s in samples] == ["line-1", "line-2", "line-4"]
    assert samples[1].boxes == (data.centre_box(samples[1].size),)
    samples, counts = data.load(path, *FILTERS, by_boxes=False)
    assert len(samples) == 4 and dict(counts) == {"attribute: asked": 4}


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
    "content, message", [("{nope", "not JSON"), ("[1]", "expected an object"), ("{}", "images: expected a list; found nothing")]
)
def test_broken_instances(tmp_path, content, message):
    (tmp_path / "instances.json").write_text(content)
    with pytest.raises(InputError, match=message):
        data.load(tmp_path, *FILTERS)


@pytest.mark.parametrize(
    "annotation, message",
    [
        ({"image_id": 99}, r"annotations\[0\] \(id 1\): image_id: expected the id of one of the file's; found '99'"),
        ({"category_id": 99}, r"annotations\[0\] \(id 1\): category_id: expected the id of one of the file's; found '99'"),
        ({"bbox": [1, 2, 3]}, r"annotations\[0\] \(id 1\): bbox: expected \[x, y, width, height\]"),
        ({"bbox": None}, r"annotations\[0\] \(id 1\): bbox: expected \[x, y, width, height\]"),
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
    assert "line 4: question: expected a text; found nothing; answer: expected" in text and "found 'smell'" in text


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


# ── what people bring: annotations ──
def content_of(annotations: list[dict] | None = None, categories: list[dict] | None = None, images: int = 1, **image) -> dict:
    """An `instances.json` with a dog and a cat in each image of 160 × 120."""
    return {
        "images": [{"id": i, "file_name": f"{i}.png", "width": 160, "height": 120} | image for i in range(1, images + 1)],
        "annotations": annotations if annotations is not None else [
            {"id": 2 * i + c, "image_id": i, "category_id": c, "bbox": [10 + 80 * (c - 1), 10, 40 + 20 * c, 60]}
            for i in range(1, images + 1) for c in (1, 2)
        ],
        "categories": categories or [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}],
    }  # fmt: skip


def brought(tmp_path: Path, content: dict, encoding: str = "utf-8") -> Path:
    for image in content["images"]:
        if isinstance(image.get("file_name"), str):
            Image.new("RGB", (160, 120)).save(tmp_path / image["file_name"])
    (tmp_path / "instances.json").write_text(json.dumps(content), encoding=encoding)
    return tmp_path


def changed(kind: str, **change) -> dict:
    content = content_of()
    content[kind][0] |= change
    return content


@pytest.mark.parametrize("kind, change, message", [
    ("images", {"width": None}, r"images\[0\] \(id 1\): width: expected a whole number above 0; found None"),
    ("images", {"width": 0, "height": 0}, "width: expected .*; found 0; height: expected"),
    ("images", {"width": "160"}, "width: expected a whole number above 0; found '160'"),
    ("images", {"file_name": None}, "file_name: expected a text; found None"),
    ("images", {"neg_category_ids": 3}, "neg_category_ids: expected a list of ids; found 3"),
    ("annotations", {"bbox": ["1", "2", "3", "4"]}, r"annotations\[0\] .*: bbox: expected"),
    ("annotations", {"bbox": {"x": 1}}, "bbox: expected"),
    ("annotations", {"iscrowd": "yes"}, "iscrowd: expected 0 or 1; found 'yes'"),
    ("annotations", {"image_id": None}, "image_id: expected a whole number or a text"),
    ("categories", {"name": 0}, r"categories\[0\] \(id 1\): name: expected a text; found 0"),
    ("categories", {"name": ""}, "name: expected a text; found ''"),
    ("categories", {"name": None}, "name: expected a text; found None"),
    ("categories", {"id": 2}, "categories: expected ids that differ; found '2' twice"),
    ("categories", {"id": "2"}, "categories: expected ids that differ; found '2' twice"),
])  # fmt: skip
def test_wrong_fields_are_named(tmp_path, kind, change, message):
    with pytest.raises(InputError, match=f"instances.json: .*{message}"):
        data.load(brought(tmp_path, changed(kind, **change)), *FILTERS)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_annotations_in_a_declared_encoding(tmp_path, encoding):
    assert data.load(brought(tmp_path, content_of(), encoding), *FILTERS)[0]


@pytest.mark.parametrize("ids", [("img_1", 2), ("1", 2), (1.0, 2), ("a", "b")])
def test_ids_of_any_type_are_one(tmp_path, ids):
    content = content_of(images=2)
    for image, own in zip(content["images"], ids):
        image["id"] = own
    for annotation in content["annotations"]:
        annotation["image_id"] = ids[annotation["image_id"] - 1]
        annotation["category_id"] = str(annotation["category_id"])
    samples = data.load(brought(tmp_path, content), *FILTERS)[0]
    assert {s.image_id for s in samples} == {str(int(i) if isinstance(i, float) else i) for i in ids}


def asked_of(tmp_path: Path, content: dict) -> tuple[dict[str, str], Counter]:
    samples, counts = data.load(brought(tmp_path, content), *FILTERS)
    return {s.question: s.answer for s in samples}, counts


@pytest.mark.parametrize("color", [7, [255, 0, 0], "#ff0000", "", None, {"r": 1}, "12"])
def test_a_color_is_one_if_it_is_a_word(tmp_path, color):
    assert not any("color" in q for q in asked_of(tmp_path, changed("annotations", color=color))[0])


def test_words_are_colors(tmp_path):
    assert asked_of(tmp_path, changed("annotations", color="Light blue"))[0]["What color is the dog?"] == "light blue"


def test_a_parent_that_annotates_nothing_is_no_class(tmp_path):
    categories = [{"id": 0, "name": "pets", "supercategory": "none"}] + [
        {"id": i, "name": name, "supercategory": "pets"} for i, name in ((1, "dog"), (2, "cat"))]  # fmt: skip
    asked, counts = asked_of(tmp_path, content_of(categories=categories, images=12))
    assert not any("pet" in q for q in asked) and counts["parent classes that annotate nothing, left out"] == 1


def test_lvis_lists_are_obeyed(tmp_path):
    content = changed("images", not_exhaustive_category_ids=[1], neg_category_ids=[77])
    asked, _ = asked_of(tmp_path, content)
    assert not any("many dogs" in q or "dog on the" in q or "larger" in q for q in asked)
    assert asked["How many cats are there in the image?"] == "1"
    assert not any(q.startswith("Is there") and a == "no" for q, a in asked.items())  # 77 was removed


@pytest.mark.parametrize("lists", [{"neg_category_ids": None}, {"not_exhaustive_category_ids": None}])
def test_lvis_lists_may_be_null(tmp_path, lists):
    assert asked_of(tmp_path, changed("images", **lists)) == asked_of(tmp_path, content_of())


def test_a_name_that_two_categories_share_is_absent_only_if_both_are(tmp_path):
    content = changed("images", neg_category_ids=[3])
    content["categories"] += [{"id": 3, "name": "bat_(animal)"}, {"id": 4, "name": "bat_(sports)"}]
    assert not any("bat" in q for q in asked_of(tmp_path, content)[0])
    content["images"][0]["neg_category_ids"] = [3, 4]
    assert asked_of(tmp_path, content)[0]["Is there a bat in the image?"] == "no"


@pytest.mark.parametrize("value, countable", [("0", True), (0, True), (False, True), (None, True), ("1", False), (True, False)])
def test_iscrowd_in_every_type(tmp_path, value, countable):
    content = content_of()
    content["annotations"] += [content["annotations"][0] | {"id": 9, "bbox": [10, 80, 60, 30], "iscrowd": value}]
    assert ("How many dogs are there in the image?" in asked_of(tmp_path, content)[0]) == countable


def test_the_same_box_twice_is_one_object(tmp_path):
    content = content_of()
    content["annotations"] += [a | {"id": 100 + a["id"]} for a in content["annotations"]]
    asked, counts = asked_of(tmp_path, content)
    assert asked["How many dogs are there in the image?"] == "1" and counts["boxes that their class has twice, taken once"] == 2


def test_names_are_english_and_those_without_a_letter_left_out(tmp_path):
    categories = [{"id": 1, "name": "Strawberries"}, {"id": 2, "name": "+"}]
    asked, counts = asked_of(tmp_path, content_of(categories=categories))
    assert asked["How many strawberries are there in the image?"] == "1" and not any("+" in q for q in asked)
    assert counts["classes whose name holds no letter, left out"] == 1


# ── what people bring: pixels ──
def photo(tmp_path: Path, orientation: int, size: tuple[int, int]) -> Path:
    """A COCO folder with one photo of 160 × 120 stored pixels, flagged by EXIF, and annotated at a size."""
    content = content_of(file_name="1.jpg", width=size[0], height=size[1])
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "instances.json").write_text(json.dumps(content))
    Image.new("RGB", (160, 120)).save(tmp_path / "1.jpg", exif=exif)
    return tmp_path


@pytest.mark.parametrize("orientation, told", [
    (6, "the transpose; EXIF orientation 6 has viewers turn it"), (1, "the transpose: boxes"),
])  # fmt: skip
def test_annotations_of_the_turned_image_are_refused(tmp_path, orientation, told, capsys):
    folder = photo(tmp_path, orientation, (120, 160))
    with pytest.raises(InputError, match=f"annotated as 120x160, found 160x120, {told}"):
        data.load(folder, *FILTERS)
    assert data.main(["--coco", str(folder), "--out", str(tmp_path / "samples.jsonl")]) == 2  # not only in training
    assert told in capsys.readouterr().err and not (tmp_path / "samples.jsonl").exists()


@pytest.mark.parametrize("orientation, noticed", [(1, 0), (3, 1), (6, 1)])
def test_a_flag_that_leaves_the_size_alone_is_noticed(tmp_path, orientation, noticed):
    counts = data.load(photo(tmp_path, orientation, (160, 120)), *FILTERS)[1]
    assert sum(n for name, n in counts.items() if "EXIF" in name) == noticed


def test_the_size_in_a_line_is_compared_with_the_pixels(tmp_path):
    with pytest.raises(InputError, match="line 2: .*a.png: annotated as 120x160, found 160x120"):
        data.load(jsonl(tmp_path, OWN | {"size": [160, 120]}, OWN | {"size": [120, 160]}), *FILTERS)


# ── what people bring: lines ──
@pytest.mark.parametrize("change, answer", [
    ({"family": "counting", "answer": 0}, "0"), ({"family": "counting", "answer": 2.0}, "2.0"),
    ({"family": "presence", "answer": False}, "no"), ({"family": "presence", "answer": True}, "yes"), ({"answer": "A"}, "A"),
])  # fmt: skip
def test_every_answer_is_one(tmp_path, change, answer):
    assert data.load(jsonl(tmp_path, OWN | change), *FILTERS)[0][0].answer == answer


@pytest.mark.parametrize("change, message", [
    ({"family": "counting", "answer": "many"}, "answer: expected a number; found 'many'"),
    ({"family": "counting", "answer": "1 or 2"}, "answer: expected a number; found '1 or 2'"),
    ({"family": "counting", "answer": True}, "answer: expected a number; found 'yes'"),
    ({"family": "presence", "answer": "maybe"}, "answer: expected yes or no; found 'maybe'"),
    ({"answer": "?"}, "answer: expected a word; found '\\?'"),
    ({"answer": ["red", "crimson"]}, "answer: expected a text or a number, one; found \\['red', 'crimson'\\]"),
    ({"answer": None}, "answer: expected"), ({"answer": " "}, "answer: expected"), ({"answer": {"a": 1}}, "answer: expected"),
    ({"target_bbox": {"x": 5}}, "target_bbox: expected"), ({"target_bbox": ["5", "10", "60", "60"]}, "target_bbox: expected"),
    ({"target_bbox": [5, 10, 60, 60, 0.9]}, "target_bbox: expected"), ({"target_bbox": [None] * 4}, "target_bbox: expected"),
    ({"target_bbox": [5, 10, 65, 10, 65, 70, 5, 70]}, "target_bbox: expected"),
    ({"proposal_bbox": 3}, "proposal_bbox: expected"),
    ({"metadata": "val"}, "metadata: expected an object; found 'val'"),
    ({"metadata": {"bbox": [1]}}, "metadata: bbox: expected"), ({"image": 7}, "found 7"),
    ({"image": ["images/a.png", "images/a.png"]}, "expected one image; found 2"), ({"image": {}}, "image: expected"),
    ({"image": "A" * 5000}, "image: expected the path of a file; found str of 5000 characters"),
    ({"image": "https://host/a.png"}, "found an address"), ({"question": 5}, "question: expected a text"),
])  # fmt: skip
def test_wrong_lines_are_refused(tmp_path, change, message):
    with pytest.raises(InputError, match=rf"own\.jsonl: 1 bad line: line 2: .*{message}") as error:
        data.load(jsonl(tmp_path, OWN, OWN | change), *FILTERS)
    assert "AAAAA" not in str(error.value)


@pytest.mark.parametrize("image", [["images/a.png"], {"path": "images/a.png"}, "images/a.png"])
def test_every_way_to_name_a_file(tmp_path, image):
    assert data.load(jsonl(tmp_path, OWN | {"image": image}), *FILTERS)[0][0].image == tmp_path / "images" / "a.png"


def test_ids_are_texts_and_differ(tmp_path):
    sample = data.load(jsonl(tmp_path, OWN | {"id": 3, "image_id": 139}), *FILTERS)[0][0]
    assert (sample.id, sample.image_id) == ("3", "139") and data.split_of(sample.image_id)
    (tmp_path / "own.jsonl").write_text("\n".join(json.dumps(OWN | {"id": one}) for one in (3, "3")))
    with pytest.raises(InputError, match="line 2: id: expected ids that differ; found '3' again"):
        data.load(tmp_path / "own.jsonl", *FILTERS)


@pytest.mark.parametrize("flags, message", [
    (["--cell", "0"], "--cell: expected at least 1; found 0"), (["--min-area", "nan"], "--min-area: expected a finite number"),
    (["--max-area", "inf"], "--max-area: expected a finite number"), (["--out", "samples.json"], "--out: expected a file"),
])  # fmt: skip
def test_wrong_flags_of_data(tmp_path, capsys, flags, message):
    out = [] if "--out" in flags else ["--out", str(tmp_path / "x.jsonl")]
    assert data.main(["--coco", str(brought(tmp_path, content_of())), *out, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_for_out_is_made_and_debug_shows_the_cause(tmp_path):
    folder = brought(tmp_path, content_of())
    assert data.main(["--coco", str(folder), "--out", str(tmp_path / "new" / "below" / "samples.jsonl")]) == 0
    with pytest.raises(InputError):
        data.main(["--coco", str(tmp_path / "absent"), "--out", str(tmp_path / "x.jsonl"), "--debug"])


def test_another_file_is_no_data(tmp_path):
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(InputError, match="x.json: expected a COCO folder, or a file of JSON lines"):
        data.load(tmp_path / "x.json", *FILTERS)


def test_annotations_are_those_that_pycocotools_reads(coco_mini, capsys):
    """An independent reader of the same file: images, names and boxes."""
    from pycocotools.coco import COCO

    ours, theirs = data.read_coco(coco_mini), COCO(str(coco_mini / "instances.json"))
    assert ours.images.keys() == {str(i) for i in theirs.imgs}
    for i, image in theirs.imgs.items():
        assert (ours.images[str(i)]["width"], ours.images[str(i)]["height"]) == (image["width"], image["height"])
        found = sorted((ours.names[a["category_id"]], a["bbox"]) for a in ours.annotations[str(i)])
        assert found == sorted((theirs.cats[a["category_id"]]["name"], tuple(a["bbox"])) for a in theirs.imgToAnns[i])
