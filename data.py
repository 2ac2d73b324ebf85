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
import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from pycocotools.coco import COCO

import ced
from config import InputError

FAMILIES = ("attribute", "counting", "spatial", "presence")
BOX_KEYS = ("proposal_bbox", "target_bbox", "argument_bbox")  # then metadata.bbox, then the centre box: A.2's priority
CENTRE_BOX_SIDE = 0.35  # the fallback region, as a fraction of the image's width and height
SIZE_RATIO = 2.0  # "which is larger" is asked only when one box has at least twice the other's area
MAX_COUNT = 10
GridOf = Callable[[tuple[int, int]], tuple[int, int]]  # image size (width, height) → the grid (rows, columns) of visual tokens
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
        """How the answer is judged: see `answers.is_correct`."""
        return {"counting": "count", "presence": "yesno"}.get(self.family, "word")


# ── 1. words ────────────────────────────────────────────────────────────────────────────────────────────────────────
# Some names need more than the rules: the singular with its article, and the plural.
IRREGULAR = {
    "person": ("a person", "people"),
    "mouse": ("a mouse", "mice"),
    "knife": ("a knife", "knives"),
    "sheep": ("a sheep", "sheep"),
    "skis": ("a pair of skis", "pairs of skis"),
    "scissors": ("a pair of scissors", "pairs of scissors"),
    "broccoli": ("a piece of broccoli", "pieces of broccoli"),
}


def with_article(name: str) -> str:
    """`dog` → `a dog`, `apple` → `an apple`."""
    if name in IRREGULAR:
        return IRREGULAR[name][0]
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def singular(name: str) -> str:
    """The noun after "the": `skis` → `pair of skis`."""
    return with_article(name).split(" ", 1)[1]


def plural(name: str) -> str:
    """`bus` → `buses`, `person` → `people`."""
    if name in IRREGULAR:
        return IRREGULAR[name][1]
    return f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"


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
    """What one image says of one class. `countable` is False when a crowd or an unusable box hides the true number."""

    name: str
    boxes: list[tuple[float, float, float, float]]
    colors: set[str | None]
    countable: bool

    def side(self, width: int) -> str | None:
        """`left` or `right` if every box lies on that side of the image's middle, else None."""
        if all(x + w <= width / 2 for x, _, w, _ in self.boxes):
            return "left"
        return "right" if all(x >= width / 2 for x, _, _, _ in self.boxes) else None


def read_coco(folder: Path) -> COCO:
    """The folder's `instances.json` through pycocotools. Raises InputError for a missing or malformed file."""
    path = folder / "instances.json"
    if not path.is_file():
        raise InputError(f"{folder}: expected a COCO folder with an instances.json and its images; found no {path.name}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools reports its progress on stdout
            coco = COCO(str(path))
        lists = coco.dataset["images"], coco.dataset["annotations"], coco.dataset["categories"]
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    except (KeyError, TypeError, AssertionError) as error:
        raise InputError(f"{path}: expected COCO's lists images, annotations and categories: {error!r}") from error
    for annotation in lists[1]:
        check_annotation(annotation, coco, path)
    return coco


def check_annotation(annotation: dict, coco: COCO, path: Path) -> None:
    """Raises InputError unless the annotation's image and category exist and its box is four finite numbers."""
    where = f"{path}: annotation {annotation.get('id')}"
    if annotation.get("image_id") not in coco.imgs:
        raise InputError(f"{where}: no image {annotation.get('image_id')}")
    if annotation.get("category_id") not in coco.cats:
        raise InputError(f"{where}: no category {annotation.get('category_id')}")
    box = annotation.get("bbox")
    if not (isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) and math.isfinite(v) for v in box)):
        raise InputError(f"{where}: bbox: expected [x, y, width, height]; found {box!r}")


def clip(box: Sequence[float], size: tuple[int, int]) -> tuple[float, float, float, float] | None:
    """The part (x, y, w, h) of a box inside the image; None if less than MIN_SIDE pixels are left of a side."""
    x, y, w, h = box
    x0, y0 = max(0.0, x), max(0.0, y)
    w, h = min(x + w, size[0]) - x0, min(y + h, size[1]) - y0
    return (x0, y0, w, h) if min(w, h) >= MIN_SIDE else None


def instances_of(coco: COCO, image: dict, counts: Counter) -> list[Instances]:
    """The image's annotations by class, in the classes' order. Clipped and unusable boxes are added to `counts`."""
    by_class: dict[str, list[dict]] = {}
    for annotation in coco.imgToAnns[image["id"]]:
        by_class.setdefault(coco.cats[annotation["category_id"]]["name"], []).append(annotation)
    found = []
    for name, annotations in sorted(by_class.items()):
        single = [a for a in annotations if not a.get("iscrowd", 0)]
        clipped = [clip(a["bbox"], (image["width"], image["height"])) for a in single]
        boxes = [box for box in clipped if box is not None]
        counts["boxes clipped to the image"] += sum(
            box is not None and not np.allclose(box, a["bbox"]) for box, a in zip(clipped, single)
        )
        counts["boxes of no area inside the image, dropped"] += len(clipped) - len(boxes)
        if boxes:
            colors = {a.get("color") for a in single}
            found.append(Instances(name, boxes, colors, countable=len(boxes) == len(annotations)))
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
        if len(group.colors) == 1 and None not in group.colors:
            yield {"family": "attribute", "question": ask_color(group.name, n), "answer": min(group.colors), **target}
        if (side := group.side(image["width"])) and group.countable:
            yield {"family": "spatial", "question": ask_side(group.name, n), "answer": side, **target}
    single = [g for g in found if g.countable and len(g.boxes) == 1 and g.colors == {None}]
    for pair in itertools.combinations(single, 2):
        a, b = sorted(pair, key=lambda g: g.boxes[0][2] * g.boxes[0][3])  # a is the smaller
        if b.boxes[0][2] * b.boxes[0][3] >= SIZE_RATIO * a.boxes[0][2] * a.boxes[0][3]:
            question = ask_larger(*(g.name for g in rng.sample(pair, 2)))  # either order, or "the first" would be right
            boxes = {"argument_bbox": a.boxes + b.boxes}
            yield {"family": "attribute", "question": question, "answer": singular(b.name), **boxes}
    if absent and (bool(image["neg_category_ids"]) if "neg_category_ids" in image else rng.random() < 0.5):
        yield {"family": "presence", "question": ask_presence(rng.choice(absent)), "answer": "no"}
    elif found:
        group = rng.choice(found)
        question = ask_presence(group.name)
        yield {"family": "presence", "question": question, "answer": "yes", "target_bbox": group.boxes}


def coco_records(folder: Path, counts: Counter) -> Iterator[dict]:
    """Records of all images of a COCO-format folder, in the order of image ids."""
    coco = read_coco(folder)
    names = {i: c["name"] for i, c in coco.cats.items()}
    for image_id in sorted(coco.imgs):
        image = coco.imgs[image_id]
        missing = {"file_name", "width", "height"} - image.keys()
        if missing:
            raise InputError(f"{folder}/instances.json: image {image_id} lacks {', '.join(sorted(missing))}")
        path = next((p for p in (folder / "images" / image["file_name"], folder / image["file_name"]) if p.is_file()), None)
        if path is None:
            raise InputError(f"{folder}/instances.json: image {image_id}: no file {image['file_name']} there or in images/")
        found = instances_of(coco, image, counts)
        seen = {names[a["category_id"]] for a in coco.imgToAnns[image_id]}  # a crowd is present, though never counted
        negatives = image.get("neg_category_ids", names)
        absent = [names[i] for i in sorted(negatives) if names[i] not in seen]
        common = {"image_id": str(image_id), "image": str(path), "size": (image["width"], image["height"])}
        for i, record in enumerate(ask_about(image, found, absent, random.Random(f"ask {image_id}"))):
            yield {"id": f"{image_id}-{i}", **common, **record}


# ── 3. records → samples ────────────────────────────────────────────────────────────────────────────────────────────
def evidence_boxes(record: dict) -> list[tuple[float, float, float, float]]:
    """Ω_ev of a record: proposal_bbox > target_bbox > argument_bbox > metadata.bbox > centre box (A.2), clipped.

    A key holds one box [x, y, width, height] or a list of boxes. The centre box is 35 % × 35 % of the image.
    """
    width, height = record["size"]
    keyed = [record.get(key) for key in BOX_KEYS] + [(record.get("metadata") or {}).get("bbox")]
    boxes = next((b for b in keyed if b), None)
    if boxes is None:
        margin = (1 - CENTRE_BOX_SIDE) / 2
        boxes = [margin * width, margin * height, CENTRE_BOX_SIDE * width, CENTRE_BOX_SIDE * height]
    boxes = [boxes] if isinstance(boxes[0], (int, float)) else boxes
    clipped = [clip(box, (width, height)) for box in boxes]
    if None in clipped:
        raise InputError(f"record {record['id']}: box {boxes[clipped.index(None)]} has no area inside {width}x{height}")
    return clipped


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


def jsonl_records(path: Path) -> Iterator[dict]:
    """Records of one's own data, a JSON object a line: image (a path, from the file's folder), question, answer, family, and
    any of the box keys of `evidence_boxes`. Raises InputError with the numbers of all bad lines.
    """
    bad = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
            missing = [key for key in ("image", "question", "answer", "family") if not record.get(key)]
            if missing:
                raise InputError(f"lacks {', '.join(missing)}")
            if record["family"] not in FAMILIES:
                raise InputError(f"family: expected one of {', '.join(FAMILIES)}; found {record['family']!r}")
            image = path.parent / record["image"]
            with Image.open(image) as opened:
                size = opened.size
            record = {"id": f"line-{number}", "image_id": str(record["image"])} | record | {"image": str(image), "size": size}
            record["answer"] = str(record["answer"])
            evidence_boxes(record)
        except (InputError, AttributeError, TypeError, ValueError, OSError) as error:
            bad.append(f"line {number}: {error}")
            continue
        if not bad:
            yield record
    if bad:
        raise InputError(f"{path}: {len(bad)} bad lines: " + "; ".join(bad[:20]))


def usable_records(
    source: Path,
    grid_of: GridOf,
    min_area: float,
    max_area: float,
    min_tokens: int,
    counts: Counter,
) -> Iterator[tuple[dict, Sample]]:
    """Records of a COCO-format folder or a JSONL file that pass the quality filters of A.2, each with its Sample.

    grid_of maps an image size (width, height) to the policy's visual-token grid (rows, columns). Of the presence family
    only regions that leave nothing to compare them with are dropped: its reward uses none, and "no" has no box of its own.
    Every record is counted.
    """
    for record in jsonl_records(source) if source.suffix == ".jsonl" else coco_records(source, counts):
        sample = to_sample(record)
        boxes = torch.tensor(sample.boxes)
        tokens = region_size(boxes, sample.size, grid_of)
        area = ced.union_area(boxes) / math.prod(sample.size)
        least = 1 if sample.family == "presence" else min_tokens
        counts[f"{sample.family}: asked"] += 1
        if sample.family != "presence" and not min_area <= area <= max_area:
            counts[f"{sample.family}: dropped, area fraction outside [{min_area}, {max_area}]"] += 1
        elif tokens < least:
            counts[f"{sample.family}: dropped, fewer than {least} visual tokens or all of them"] += 1
        else:
            yield record, sample


def region_size(boxes: torch.Tensor, size: tuple[int, int], grid_of: GridOf) -> int:
    """How many visual tokens a region owns; 0 if it owns all of them, for then nothing is left to compare it with."""
    tokens = ced.region_tokens(boxes, size, grid_of(size))
    return 0 if tokens.all() else int(tokens.sum())


def load(
    source: Path, grid_of: GridOf, min_area: float, max_area: float, min_tokens: int
) -> tuple[list[Sample], Counter]:
    """Samples of a COCO-format folder or a JSONL file, and what was asked and dropped: see `usable_records`."""
    source, counts = Path(source), Counter()
    if source.suffix == ".jsonl" and not source.is_file():
        raise InputError(f"{source}: no such file")
    samples = [sample for _, sample in usable_records(source, grid_of, min_area, max_area, min_tokens, counts)]
    if not samples:
        raise InputError(f"{source}: no usable sample; counts: {dict(counts) or 'no annotations'}")
    for path, size in {s.image: s.size for s in samples}.items():
        check_image(path, size)
    return samples, counts


def check_image(path: Path, size: tuple[int, int]) -> None:
    """Raises InputError unless the image decodes at the annotated (width, height): boxes refer to stored pixels."""
    try:
        with Image.open(path) as image:
            found = image.size
            image.draft("L", (1, 1))  # JPEG: decode at 1/8 of the size, enough to notice a truncated file
            image.load()
    except (OSError, SyntaxError) as error:
        raise InputError(f"{path}: the image does not decode: {error}") from error
    if found != tuple(size):
        raise InputError(f"{path}: annotated as {size[0]}x{size[1]}, found {found[0]}x{found[1]}")


def open_image(path: Path) -> Image.Image:
    """The stored pixels as RGB, whatever the file's mode (grey, palette, RGBA, CMYK). EXIF rotation is not applied,
    because COCO boxes refer to the pixels as stored."""
    with Image.open(path) as image:
        return image.convert("RGBA").convert("RGB") if image.mode in ("P", "PA", "LA") else image.convert("RGB")


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
        self.families = [group for f in FAMILIES if (group := [s for s in samples if s.family == f])]
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
    out.write_text("\n".join(lines) + "\n")
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


def main(argv: Sequence[str] | None = None) -> int:
    """`python data.py --coco DIR --out samples.jsonl`: a COCO folder as a sample file, with counts and a picture."""
    parser = argparse.ArgumentParser(description="Build a sample file from a COCO-format folder.")
    parser.add_argument("--coco", type=Path, required=True, help="folder with instances.json and its images")
    parser.add_argument("--out", type=Path, required=True, help="the JSONL file to write; a .png of 12 samples goes beside it")
    parser.add_argument("--cell", type=int, default=28, help="pixels of one visual token (Qwen2.5-VL 28, others 32)")
    parser.add_argument("--min-area", type=float, default=0.005, help="smallest area fraction of an evidence region")
    parser.add_argument("--max-area", type=float, default=0.6, help="largest area fraction of an evidence region")
    parser.add_argument("--min-tokens", type=int, default=2, help="fewest visual tokens of an evidence region")
    args = parser.parse_args(argv)
    try:
        samples = write_samples(args.coco, args.out, args.cell, args.min_area, args.max_area, args.min_tokens)
    except InputError as error:
        print(f"data.py: {error}", file=sys.stderr)
        return 2
    draw_samples(random.Random(0).sample(samples, min(12, len(samples)))).save(args.out.with_suffix(".png"))
    print(f"wrote {args.out} and {args.out.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
