"""From COCO-format annotations to samples a policy can be asked about.

Data's way: a folder (`instances.json` + images) → records (question, answer, family, box keys) → `Sample`s with an
Evidence Region → quality filters → splits → `BalancedSampler`.

    family      question (kind of answer)                                     Evidence Region Ω_ev
    counting    How many dogs are there in the image?   (count)               every instance of the class
    attribute   What color is the star?                 (word)                every instance of the class
                Which is larger, the dog or the cat?    (word)                both objects
    spatial     Is the dog on the left or on the right of the image? (word)   every instance of the class
    presence    Is there a dog in the image?            (yesno)               every instance; the centre box if absent

Source: Evidence-RL, Appendix A.1 (data), A.2 (proposals, filters); the question templates are this project's own.
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

import ced
from answers import is_correct
from config import InputError, outside
from reading import (
    BOX,
    FLAG,
    ID,
    IDS,
    LIST,
    OBJECT,
    PIXELS,
    SIZE,
    TEXT,
    Field,
    fields,
    json_lines,
    locate,
    make_folder,
    open_image,
    optional,
    parse_json,
    probe,
    read_json,
    require,
    shown,
    unique,
)  # fmt: skip
from words import class_name, plural, singular, with_article

FAMILIES = ("attribute", "counting", "spatial", "presence")
CONTEXTS = ("sufficient", "insufficient")  # the families of questions about pages: do these tell the answer?
BOX_KEYS = ("proposal_bbox", "target_bbox", "argument_bbox")  # then metadata.bbox, then the centre box: A.2's priority
CENTRE_BOX_SIDE = 0.35  # the fallback region, as a fraction of the image's width and height
SIZE_RATIO = 2.0  # "which is larger" is asked only when one box has at least twice the other's area
MAX_COUNT = 10
GridOf = Callable[[tuple[int, int]], tuple[int, int]]  # image size (width, height) → the grid (rows, columns) of visual tokens
SOMETHING = "…"  # the evidence of a page of which is known only that it has some
MIN_SIDE = 2  # pixels; what is left of a box after clipping must be at least this wide and high


@dataclass(frozen=True)
class Sample:
    """One question about one image, with the region that should decide its answer."""

    id: str
    image_id: str
    image: Path
    size: tuple[int, int]  # (width, height) of the stored image, pixels
    question: str
    answer: str
    family: str  # one of FAMILIES
    boxes: tuple[tuple[float, float, float, float], ...]  # Ω_ev as COCO boxes (x, y, width, height), original pixels

    @property
    def kind(self) -> str:
        return kind_of(self.family)

    @property
    def pages(self) -> tuple["Sample"]:
        """The one page of the question: itself. `PagedSample` has several."""
        return (self,)


@dataclass(frozen=True)
class Page:
    """One of the pages that a question is asked about."""

    image: Path
    size: tuple[int, int]  # (width, height) of the stored image, pixels
    boxes: tuple[tuple[float, float, float, float], ...] = ()  # the part of Ω_ev that lies here; none: nothing here decides
    evidence: str = ""  # what a reader should record of this page; "": nothing here is relevant


@dataclass(frozen=True)
class PagedSample:
    """One question about several pages, answered in four stages: see related/rs_grpo.py."""

    id: str
    image_id: str  # of the book: no book is in two splits
    pages: tuple[Page, ...]
    question: str
    answer: str  # some form of "insufficient" where the pages do not tell
    family: str  # one of CONTEXTS
    gold: str = "exact"  # how a record must agree with a page's evidence: exact, contained, or "" where that is not known
    template: str = ""  # of the prompt: see `Policy.prompt_of_pages`; "": that of the real backbones

    @property
    def kind(self) -> str:
        return "pages"


def kind_of(family: str) -> str:
    """How an answer is judged: see `answers.is_correct`."""
    return {"counting": "count", "presence": "yesno"}.get(family, "word")


# ── 1. questions ────────────────────────────────────────────────────────────────────────────────────────────────────
def subject(name: str, n: int) -> str:
    """The noun of a question about n objects: `star`, or `stars`."""
    return singular(name) if n == 1 else plural(name)


def ask_count(name: str) -> str:
    return f"How many {plural(name)} are there in the image?"


def ask_color(name: str, n: int) -> str:
    return f"What color {'is' if n == 1 else 'are'} the {subject(name, n)}?"


def ask_side(name: str, n: int) -> str:
    return f"{'Is' if n == 1 else 'Are'} the {subject(name, n)} on the left or on the right of the image?"


def ask_larger(first: str, second: str) -> str:
    return f"Which is larger, the {singular(first)} or the {singular(second)}?"


def ask_presence(name: str) -> str:
    return f"Is there {with_article(name)} in the image?"


# ── 2. COCO annotations → records ───────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Instances:
    """What one image says of one class. `countable` is False when a crowd, an unusable box or LVIS's list of classes
    that are not exhaustively annotated hides the true number."""

    name: str
    boxes: list[tuple[float, float, float, float]]
    colors: set[str | None]
    countable: bool  # every object of the class is there, with a box

    def side(self, width: int) -> str | None:
        """`left` or `right` if every box lies on that side of the image's middle, else None."""
        if all(x + w <= width / 2 for x, _, w, _ in self.boxes):
            return "left"
        return "right" if all(x >= width / 2 for x, _, _, _ in self.boxes) else None


def color_of(value: Any) -> str | None:
    """A color is one if it is a word: tools also store the index or the RGB of a pen there."""
    return value.lower() if isinstance(value, str) and re.fullmatch(r"[^\W\d_]+([ -][^\W\d_]+)*", value) else None


COCO_LISTS = {"images": LIST, "annotations": LIST, "categories": LIST}
CATEGORY = {"id": ID, "name": TEXT, "supercategory": optional(Field("anything", str))}
IMAGE = {
    "id": ID,
    "file_name": TEXT,
    "width": PIXELS,
    "height": PIXELS,
    "neg_category_ids": optional(IDS),  # LVIS: classes verified absent
    "not_exhaustive_category_ids": optional(IDS),  # LVIS: classes of which more are there than were annotated
}
ANNOTATION = {
    "image_id": ID,
    "category_id": ID,
    "bbox": BOX,
    "iscrowd": optional(FLAG),
    "color": optional(Field("anything", color_of)),  # this project's own
}


@dataclass(frozen=True)
class Coco:
    """What an `instances.json` says, its fields read by the tables above. Ids are texts."""

    images: dict[str, dict]
    names: dict[str, str]  # category id → the class's name in questions; two categories may share one
    annotations: dict[str, list[dict]]  # image id → its annotations, of the classes in `names`


def read_coco(folder: Path, counts: Counter | None = None) -> Coco:
    """The folder's `instances.json`. What is left out is added to `counts`. Raises InputError, naming file, entry and field."""
    path, counts = folder / "instances.json", Counter() if counts is None else counts
    if not path.is_file():
        raise InputError(f"{folder}: expected a COCO folder with an instances.json and its images; found no {path.name}")
    lists = fields(read_json(path), COCO_LISTS, path)
    tables = {"images": IMAGE, "annotations": ANNOTATION, "categories": CATEGORY}
    images, annotations, categories = (
        [fields(entry, table, place(path, kind, i, entry)) for i, entry in enumerate(lists[kind])]
        for kind, table in tables.items()
    )
    for kind, entries in (("images", images), ("categories", categories)):
        unique([entry["id"] for entry in entries], path, kind)
    by_image: dict[str, list[dict]] = {image["id"]: [] for image in images}
    known = {category["id"] for category in categories}
    for i, annotation in enumerate(annotations):
        where = place(path, "annotations", i, lists["annotations"][i])
        for name, ids in (("image_id", by_image), ("category_id", known)):
            if annotation[name] not in ids:
                raise InputError(f"{where}: {name}: expected the id of one of the file's; found {annotation[name]!r}")
        by_image[annotation["image_id"]].append(annotation)
    names = names_of(categories, {a["category_id"] for a in annotations}, counts)
    return Coco({i["id"]: i for i in images}, names, {i: distinct(found, names, counts) for i, found in by_image.items()})


def place(path: Path, kind: str, position: int, entry: Any) -> str:
    """Where an entry of a list is: by its position, and its id where it has one."""
    own = f" (id {shown(entry['id'])})" if isinstance(entry, dict) and "id" in entry else ""
    return f"{path}: {kind}[{position}]{own}"


def names_of(categories: list[dict], annotated: set[str], counts: Counter) -> dict[str, str]:
    """Category id → the name that questions use. Without those that are no class to ask about: names without a letter, and the
    parents of other classes that annotate nothing themselves, as Roboflow exports them."""
    parents = {category["supercategory"] for category in categories}
    names = {}
    for category in categories:
        if not (name := class_name(category["name"])):
            counts["classes whose name holds no letter, left out"] += 1
        elif category["id"] not in annotated and category["name"] in parents:
            counts["parent classes that annotate nothing, left out"] += 1
        else:
            names[category["id"]] = name
    return names


def distinct(annotations: list[dict], names: dict[str, str], counts: Counter) -> list[dict]:
    """One image's annotations of the classes in names; a box that a class has twice is one object."""
    kept: dict[tuple, dict] = {}
    for a in annotations:
        if a["category_id"] in names:
            kept.setdefault((names[a["category_id"]], a["bbox"], a["iscrowd"]), a)
    repeated = sum(a["category_id"] in names for a in annotations) - len(kept)
    if repeated:
        counts["boxes that their class has twice, taken once"] += repeated
    return list(kept.values())


def clip(box: Sequence[float], size: tuple[int, int]) -> tuple[float, float, float, float] | None:
    """The part (x, y, w, h) of a box inside the image; None if less than MIN_SIDE pixels are left of a side."""
    x, y, w, h = box
    x0, y0 = max(0.0, x), max(0.0, y)
    w, h = min(x + w, size[0]) - x0, min(y + h, size[1]) - y0
    return (x0, y0, w, h) if min(w, h) >= MIN_SIDE else None


def instances_of(coco: Coco, image: dict, counts: Counter) -> list[Instances]:
    """The image's annotations by class, in the classes' order. Clipped and unusable boxes are added to `counts`."""
    by_class: dict[str, list[dict]] = {}
    for annotation in coco.annotations[image["id"]]:
        by_class.setdefault(coco.names[annotation["category_id"]], []).append(annotation)
    more = {coco.names.get(i) for i in image["not_exhaustive_category_ids"] or ()}
    found = []
    for name, annotations in sorted(by_class.items()):
        single = [a for a in annotations if not a["iscrowd"]]
        clipped = [clip(a["bbox"], (image["width"], image["height"])) for a in single]
        boxes = [box for box in clipped if box is not None]
        counts["boxes clipped to the image"] += sum(
            box is not None and not np.allclose(box, a["bbox"]) for box, a in zip(clipped, single)
        )
        counts["boxes of no area inside the image, dropped"] += len(clipped) - len(boxes)
        if boxes:
            countable = len(boxes) == len(annotations) and name not in more
            found.append(Instances(name, boxes, {a["color"] for a in single}, countable))
    return found


def ask_about(image: dict, found: list[Instances], absent: list[str], rng: random.Random) -> Iterator[dict]:
    """Every question the annotations of one image can answer, as records (see `evidence_boxes` for the box keys).

    One presence question an image. Its polarity is a coin toss, unless the image carries LVIS's `neg_category_ids`
    (classes verified absent): then a non-empty list asks about one of those, an empty list about a present class.
    """
    for group in found:
        n, target = len(group.boxes), {"target_bbox": group.boxes}
        if group.countable and n <= MAX_COUNT:
            yield {"family": "counting", "question": ask_count(group.name), "answer": str(n), **target}
        if group.countable and len(group.colors) == 1 and None not in group.colors:
            yield {"family": "attribute", "question": ask_color(group.name, n), "answer": min(group.colors), **target}
        if (side := group.side(image["width"])) and group.countable:
            yield {"family": "spatial", "question": ask_side(group.name, n), "answer": side, **target}
    single = [g for g in found if g.countable and len(g.boxes) == 1 and g.colors == {None} and " or " not in g.name]
    for pair in itertools.combinations(single, 2):
        a, b = sorted(pair, key=lambda g: g.boxes[0][2] * g.boxes[0][3])  # a is the smaller
        if b.boxes[0][2] * b.boxes[0][3] >= SIZE_RATIO * a.boxes[0][2] * a.boxes[0][3]:
            question = ask_larger(*(g.name for g in rng.sample(pair, 2)))  # either order, or "the first" would be right
            boxes = {"argument_bbox": a.boxes + b.boxes}
            yield {"family": "attribute", "question": question, "answer": singular(b.name), **boxes}
    verified = image["neg_category_ids"]
    if absent and (rng.random() < 0.5 if verified is None else verified):
        yield {"family": "presence", "question": ask_presence(rng.choice(absent)), "answer": "no"}
    elif found:
        group = rng.choice(found)
        question = ask_presence(group.name)
        yield {"family": "presence", "question": question, "answer": "yes", "target_bbox": group.boxes}


def absent_names(coco: Coco, image: dict) -> list[str]:
    """Names of classes that the image does not show: of those that LVIS has verified, where it has; by category id."""
    verified = coco.names if image["neg_category_ids"] is None else image["neg_category_ids"]
    seen = {coco.names[a["category_id"]] for a in coco.annotations[image["id"]]}  # a crowd is present, though never counted
    doubtful = seen | {name for i, name in coco.names.items() if i not in verified}  # two categories may share a name
    return list(dict.fromkeys(coco.names[i] for i in in_order(verified) if i in coco.names and coco.names[i] not in doubtful))


def in_order(ids: Iterable[str]) -> list[str]:
    """Ids in the order of their numbers, if they are numbers."""
    return sorted(ids, key=lambda i: (len(i), i))


def coco_records(folder: Path, counts: Counter) -> Iterator[dict]:
    """Records of all images of a COCO-format folder, in the order of image ids."""
    coco = read_coco(folder, counts)
    for image_id in in_order(coco.images):
        image = coco.images[image_id]
        path = next((p for p in (folder / "images" / image["file_name"], folder / image["file_name"]) if p.is_file()), None)
        if path is None:
            raise InputError(f"{folder}/instances.json: image {image_id}: no file {image['file_name']} there or in images/")
        size, found = (image["width"], image["height"]), instances_of(coco, image, counts)
        records = list(ask_about(image, found, absent_names(coco, image), random.Random(f"ask {image_id}")))
        if records:
            check_image(path, size, counts)
        for i, record in enumerate(records):
            yield {"id": f"{image_id}-{i}", "image_id": image_id, "image": str(path), "size": size, **record}


def check_image(path: Path, size: tuple[int, int] | None, counts: Counter) -> tuple[int, int]:
    """The stored size of an image. Raises InputError unless it decodes, at the annotated (width, height) if that is given."""
    stored, orientation = probe(path)
    if size not in (None, stored):
        told = f"; EXIF orientation {orientation} has viewers turn it" if orientation != 1 else ""
        turned = f", the transpose{told}: boxes must refer to the pixels as they are stored" if size == stored[::-1] else ""
        raise InputError(f"{path}: annotated as {size[0]}x{size[1]}, found {stored[0]}x{stored[1]}{turned}")
    if orientation != 1:
        counts["images that viewers turn (EXIF orientation): boxes are taken to refer to the pixels as stored"] += 1
    return stored


# ── 3. records → samples ────────────────────────────────────────────────────────────────────────────────────────────
def evidence_boxes(record: dict) -> list[tuple[float, float, float, float]]:
    """Ω_ev of a record: proposal_bbox > target_bbox > argument_bbox > metadata.bbox > centre box (A.2), clipped.

    A key holds one box [x, y, width, height] or a list of boxes.
    """
    boxes = given_boxes(record) or [centre_box(record["size"])]
    boxes = [boxes] if isinstance(boxes[0], (int, float)) else boxes
    clipped = [clip(box, record["size"]) for box in boxes]
    if None in clipped:
        raise InputError("record {}: box {} has no area inside {}x{}".format(
            record["id"], boxes[clipped.index(None)], *record["size"]))  # fmt: skip
    return clipped


def given_boxes(record: dict) -> Any:
    """What the first of a record's box keys says, a box or a list of boxes; None if it has no box at all."""
    keyed = [record.get(key) for key in BOX_KEYS] + [(record.get("metadata") or {}).get("bbox")]
    return next((boxes for boxes in keyed if boxes), None)


def centre_box(size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The region of last resort (A.2): 35 % × 35 % of an image of size (width, height)."""
    width, height = size
    margin = (1 - CENTRE_BOX_SIDE) / 2
    return (margin * width, margin * height, CENTRE_BOX_SIDE * width, CENTRE_BOX_SIDE * height)


def to_sample(record: dict) -> Sample:
    """A record (a dict as `coco_records` yields it) as a Sample."""
    return Sample(
        id=record["id"],
        image_id=record["image_id"],
        image=Path(record["image"]),
        size=tuple(record["size"]),
        question=record["question"],
        answer=record["answer"],
        family=record["family"],
        boxes=tuple(evidence_boxes(record)),
    )


def boxes_of(value: Any) -> list[tuple[float, float, float, float]]:
    """One box, or a list of boxes, as a list."""
    nested = isinstance(value, list) and all(isinstance(one, list) for one in value)
    return [BOX.read(one) for one in (value if nested else [value])]


def answer_of(value: Any) -> str:
    """An answer as text: 0 and false are answers."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    require(isinstance(value, str) and value.strip() != "" or isinstance(value, int | float) and math.isfinite(value))
    return str(value)


def family_of(value: Any) -> str:
    require(value in FAMILIES)
    return value


ANSWER = Field("a text or a number, one", answer_of)
BOXES = Field("[x, y, width, height], four finite numbers, or a list of such boxes", boxes_of)
RECORD = {  # a line of one's own data
    "image": Field("the path of an image", lambda cell: cell if cell else require(False)),
    "question": TEXT,
    "answer": ANSWER,
    "family": Field(f"one of {', '.join(FAMILIES)}", family_of),
    "id": optional(ID),
    "image_id": optional(ID),
    "size": optional(SIZE),
    **dict.fromkeys(BOX_KEYS, optional(BOXES)),
    "metadata": optional(OBJECT),
}
METADATA = {"bbox": optional(BOXES)}
ANSWERS = {"count": "a number", "yesno": "yes or no", "word": "a word"}


def jsonl_records(path: Path, counts: Counter) -> Iterator[dict]:
    """Records of one's own data, a JSON object a line: image (a path, from the file's folder), question, answer, family, and
    any of the box keys of `evidence_boxes`. Raises InputError with the numbers of all bad lines.
    """
    sizes: dict = {}
    yield from good_lines(path, lambda entry, number: line_record(entry, number, path.parent, sizes, counts))


def good_lines(path: Path, record_of: Callable[[Any, int], dict]) -> Iterator[dict]:
    """The records of a file of JSON lines, up to the first bad one. Raises InputError with the numbers of all bad lines."""
    bad, ids = [], Counter()
    for number, line in json_lines(path):
        try:
            record = record_of(parse_json(line, "line"), number)
            ids[record["id"]] += 1
            if ids[record["id"]] > 1:
                raise InputError(f"id: expected ids that differ; found {record['id']!r} again")
        except InputError as error:
            bad.append(f"line {number}: {str(error).removeprefix('line: ')}")
            continue
        if not bad:
            yield record
    if bad:
        raise InputError(f"{path}: {len(bad)} bad line{'s' * (len(bad) > 1)}: " + "; ".join(bad[:20]))


def line_record(entry: Any, number: int, folder: Path, sizes: dict, counts: Counter) -> dict:
    """The record of one line. sizes holds those of the images seen so far. Raises InputError without the line's place."""
    values = fields(entry, RECORD, "line")
    values["metadata"] = fields(values["metadata"] or {}, METADATA, "line: metadata")
    image = locate(values["image"], folder)
    if not isinstance(image, Path):
        raise InputError(f"image: expected the path of a file; found {shown(values['image'])}")
    if image not in sizes or values["size"] not in (None, sizes[image]):
        sizes[image] = check_image(image, values["size"], counts)
    name = str(image.relative_to(folder)) if image.is_relative_to(folder) else str(image)
    names = {"id": values["id"] or f"line-{number}", "image_id": values["image_id"] or name}
    record = values | names | {"image": str(image), "size": sizes[image]}
    evidence_boxes(record)
    check_gold(record["answer"], kind_of(record["family"]))
    return record


def check_gold(answer: str, kind: str) -> None:
    """Raises InputError unless an answer can be read by the parser that will judge by it."""
    try:
        if is_correct(f"<answer>{answer}</answer>", answer, kind):
            return
    except ValueError:
        pass
    raise InputError(f"answer: expected {ANSWERS[kind]}; found {shown(answer)}, which cannot be read as one")


def usable_records(
    source: Path,
    grid_of: GridOf,
    min_area: float,
    max_area: float,
    min_tokens: int,
    counts: Counter,
    by_boxes: bool = True,
) -> Iterator[tuple[dict, Sample]]:
    """Records of a COCO-format folder or a JSONL file that pass the quality filters of A.2, each with its Sample.

    grid_of maps an image size (width, height) to the policy's visual-token grid (rows, columns). Of the presence family
    only regions that leave nothing to compare them with are dropped: its reward uses none, and "no" has no box of its own.
    Every record is counted. Where the evidence is not found by boxes, none is looked at, and nothing dropped.
    """
    if source.is_file() and source.suffix != ".jsonl":
        raise InputError(f"{source}: expected a COCO folder, or a file of JSON lines that is called .jsonl; found another file")
    for record in (jsonl_records if source.suffix == ".jsonl" else coco_records)(source, counts):
        sample = to_sample(record)
        counts[f"{sample.family}: asked"] += 1
        if by_boxes and not given_boxes(record):
            counts[f"{sample.family}: without a box, audited at the image's centre (--evidence attributed needs no box)"] += 1
        if by_boxes and (reason := unfit(sample, grid_of, min_area, max_area, min_tokens)):
            counts[f"{sample.family}: dropped, {reason}"] += 1
        else:
            yield record, sample


def unfit(sample: Sample, grid_of: GridOf, min_area: float, max_area: float, min_tokens: int) -> str:
    """Why a sample's region is too small or too large to be audited (A.2); "" if it is not."""
    boxes = torch.tensor(sample.boxes)
    area = ced.union_area(boxes) / math.prod(sample.size)
    if sample.family != "presence" and not min_area <= area <= max_area:
        return f"area fraction outside [{min_area}, {max_area}]"
    least = 1 if sample.family == "presence" else min_tokens
    return f"fewer than {least} visual tokens or all of them" if region_size(boxes, sample.size, grid_of) < least else ""


def region_size(boxes: torch.Tensor, size: tuple[int, int], grid_of: GridOf) -> int:
    """How many visual tokens a region owns; 0 if it owns all of them, for then nothing is left to compare it with."""
    tokens = ced.region_tokens(boxes, size, grid_of(size))
    return 0 if tokens.all() else int(tokens.sum())


def load(
    source: Path, grid_of: GridOf, min_area: float, max_area: float, min_tokens: int, by_boxes: bool = True
) -> tuple[list[Sample], Counter]:
    """Samples of a COCO-format folder or a JSONL file, and what was asked and dropped: see `usable_records`."""
    source, counts = Path(source), Counter()
    samples = [sample for _, sample in usable_records(source, grid_of, min_area, max_area, min_tokens, counts, by_boxes)]
    if not samples:
        raise InputError(f"{source}: no usable sample; counts: {dict(counts) or 'no annotations'}")
    return samples, counts


def split_of(image_id: str) -> str:
    """`train`, `val` or `probe` (0.8 / 0.1 / 0.1) by the image id's hash, so that no image is in two splits."""
    bucket = int(hashlib.md5(image_id.encode()).hexdigest(), 16) % 10
    return ("val", "probe")[bucket - 8] if bucket >= 8 else "train"


def by_split(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """The samples in their splits; every split is a key."""
    return {name: [s for s in samples if split_of(s.image_id) == name] for name in ("train", "val", "probe")}


class BalancedSampler:
    """`balanced_no_replacement` (A.1): families in turn, each in a shuffled order that is used up before it repeats.

    The n-th draw is a function of (seed, n) alone, so `cursor` is the whole state: save it, set it, and go on.
    """

    def __init__(self, samples: Sequence[Sample], seed: int, cursor: int = 0):
        self.families = [group for f in FAMILIES + CONTEXTS if (group := [s for s in samples if s.family == f])]
        self.seed, self.cursor = seed, cursor

    def draw(self, n: int) -> list[Sample]:
        """The next n samples."""
        drawn = [self._at(i) for i in range(self.cursor, self.cursor + n)]
        self.cursor += n
        return drawn

    def _at(self, i: int) -> Sample:
        turn, which = divmod(i, len(self.families))
        family = self.families[which]
        epoch, position = divmod(turn, len(family))
        order = random.Random(f"{self.seed} {family[0].family} {epoch}").sample(range(len(family)), len(family))
        return family[order[position]]


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────
def write_samples(source: Path, out: Path, cell: int, min_area: float, max_area: float, min_tokens: int) -> list[Sample]:
    """Writes a folder's usable records to a JSONL file that `train.py --data` reads, and prints every count."""
    counts, lines, samples = Counter(), [], []

    def grid_of(size: tuple[int, int]) -> tuple[int, int]:
        return max(1, round(size[1] / cell)), max(1, round(size[0] / cell))

    for record, sample in usable_records(source, grid_of, min_area, max_area, min_tokens, counts):
        image = os.path.relpath(record["image"], out.parent)
        lines.append(json.dumps(record | {"image": image, "split": split_of(sample.image_id)}))
        samples.append(sample)
        counts[f"{sample.family}: kept"] += 1
        counts[f"{split_of(sample.image_id)}: kept"] += 1
    if not samples:
        raise InputError(f"{source}: no usable sample; counts: {dict(counts)}")
    make_folder(out.parent, "--out")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(*(f"{name}: {n}" for name, n in sorted(counts.items())), sep="\n")
    return samples


def draw_samples(samples: Sequence[Sample]) -> Image.Image:
    """A sheet of samples, four in a row: question, answer, and the image with its evidence boxes."""
    side, head, per_row = 320, 32, 4
    sheet = Image.new("RGB", (per_row * side, -(-len(samples) // per_row) * (side + head)), "white")
    draw = ImageDraw.Draw(sheet)
    for i, sample in enumerate(samples):
        left, top = i % per_row * side, i // per_row * (side + head)
        scale = (side - 8) / max(sample.size)
        image = open_image(sample.image)
        sheet.paste(image.resize([max(1, round(edge * scale)) for edge in image.size]), (left, top + head))
        draw.text((left, top + 2), f"{sample.family}: {sample.question}\n{sample.answer}", fill="black")
        for x, y, w, h in sample.boxes:
            corners = (x * scale, y * scale, (x + w) * scale, (y + h) * scale)
            draw.rectangle([c + offset for c, offset in zip(corners, (left, top + head) * 2)], outline="#d95f02", width=3)
    return sheet


def check_flags(args: argparse.Namespace) -> None:
    """Raises InputError, naming the flag, for numbers out of range, and for a file that `train.py --data` would not know."""
    bounds = {"cell": {"least": 1}, "min_area": {"least": 0}, "max_area": {"above": 0}, "min_tokens": {"least": 1}}
    for name, bound in bounds.items():
        if expected := outside(getattr(args, name), **bound):
            raise InputError(f"--{name.replace('_', '-')}: expected {expected}; found {getattr(args, name)}")
    if args.out.suffix != ".jsonl" or args.out.is_dir():
        raise InputError(f"--out: expected a file that is called .jsonl, by which train.py knows it; found {args.out}")


def main(argv: Sequence[str] | None = None) -> int:
    """`python data.py --coco DIR --out samples.jsonl`: a COCO folder as a sample file, with counts and a picture."""
    parser = argparse.ArgumentParser(description="Build a sample file from a COCO-format folder.")
    parser.add_argument("--coco", type=Path, required=True, help="folder with instances.json and its images")
    parser.add_argument("--out", type=Path, required=True, help="the JSONL file to write; a .png of 12 samples goes beside it")
    parser.add_argument("--cell", type=int, default=28, help="pixels of one visual token (Qwen2.5-VL 28, others 32)")
    parser.add_argument("--min-area", type=float, default=0.005, help="smallest area fraction of an evidence region")
    parser.add_argument("--max-area", type=float, default=0.6, help="largest area fraction of an evidence region")
    parser.add_argument("--min-tokens", type=int, default=2, help="fewest visual tokens of an evidence region")
    parser.add_argument("--debug", action="store_true", help="show where an error of the input was met")
    args = parser.parse_args(argv)
    try:
        check_flags(args)
        samples = write_samples(args.coco, args.out, args.cell, args.min_area, args.max_area, args.min_tokens)
    except InputError as error:
        if args.debug:
            raise
        print(f"data.py: {error}", file=sys.stderr)
        return 2
    draw_samples(random.Random(0).sample(samples, min(12, len(samples)))).save(args.out.with_suffix(".png"))
    print(f"wrote {args.out} and {args.out.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
