"""The toy world: small drawings in which almost everything is as usual, until it is not.

84 × 84 pixels, a 3 × 3 grid of cells; up to three classes an image, each in a column of its own, all its shapes in one color.
`PRIOR` is what is usual of a class: its color, count and side. Where it holds, a glance at the image and a guess give the same
answer (`train`, `consistent`); on the `conflict` split it never holds. The world is drawn as an ordinary COCO-format folder
and read back through `data.load`, so nothing downstream knows which of the two it sees.
"""

import itertools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

COLORS = {
    "red": (220, 50, 47),
    "green": (60, 170, 60),
    "blue": (50, 90, 220),
    "yellow": (235, 210, 50),
    "purple": (150, 60, 190),
    "white": (240, 240, 240),
}
PRIOR = {  # shape → (color, count, side)
    "circle": ("red", 1, "left"),
    "square": ("green", 2, "right"),
    "triangle": ("blue", 3, "left"),
    "cross": ("yellow", 1, "right"),
    "ring": ("purple", 2, "left"),
    "star": ("white", 3, "right"),
}
SHAPES = tuple(PRIOR)
COUNTS = (1, 2, 3)
SIDES = ("left", "right")
CELL, CELLS = 28, 3  # one cell is 2 × 2 visual tokens of the tiny backbone
WORLD_SPLITS = {"train": 600, "consistent": 100, "conflict": 100}  # images of each


@dataclass(frozen=True)
class Shapes:
    """All shapes of one class in a scene."""

    name: str
    color: str
    boxes: list[tuple[int, int, int, int]]


def pick(options: Sequence[Any], usual: Any, mode: str, rng: random.Random) -> Any:
    """What a trait is in this mode: the usual value, an unusual one, or any."""
    allowed = {"prior": [usual], "conflict": [o for o in options if o != usual], "free": list(options)}[mode]
    return rng.choice(allowed)


def make_scene(mode: str, rng: random.Random) -> list[Shapes]:
    """Up to three classes: one on the left, one on the right, one in the middle column (where no side is asked)."""
    scene, columns = [], {"left": 0, "right": CELLS - 1}
    names = rng.sample(SHAPES, len(SHAPES))
    for side in rng.sample(SIDES, 2) + ["middle"]:
        fits = [n for n in names if side == "middle" or mode == "free" or (PRIOR[n][2] == side) == (mode == "prior")]
        if not fits or (scene and rng.random() < 0.25):
            continue
        names.remove(name := fits[0])
        color = pick(list(COLORS), PRIOR[name][0], mode, rng)
        rows = rng.sample(range(CELLS), pick(COUNTS, PRIOR[name][1], mode, rng))
        scene.append(Shapes(name, color, [place(row, columns.get(side, 1), rng) for row in rows]))
    return scene


def place(row: int, column: int, rng: random.Random) -> tuple[int, int, int, int]:
    """A box (x, y, side, side) inside a cell that covers the centres of the cell's four visual tokens."""
    side = rng.randint(20, 24)
    x, y = (rng.randint(2, CELL - 2 - side) for _ in range(2))
    return column * CELL + x, row * CELL + y, side, side


def draw_scene(scene: list[Shapes], rng: random.Random) -> Image.Image:
    """The scene on a noisy grey background, 84 × 84 RGB."""
    noise = np.random.default_rng(rng.getrandbits(32)).integers(70, 111, (CELLS * CELL, CELLS * CELL, 1), dtype=np.uint8)
    image = Image.fromarray(noise.repeat(3, axis=2))
    draw = ImageDraw.Draw(image)
    for group in scene:
        for x, y, w, h in group.boxes:
            draw_shape(draw, group.name, (x, y, x + w - 1, y + h - 1), COLORS[group.color])
    return image


def draw_shape(draw: ImageDraw.ImageDraw, name: str, box: tuple[int, int, int, int], color: tuple[int, int, int]) -> None:
    """One shape, filling its box (x0, y0, x1, y1)."""
    x0, y0, x1, y1 = box
    cx, cy, r = (x0 + x1) / 2, (y0 + y1) / 2, (x1 - x0) / 2
    if name == "circle":
        draw.ellipse(box, fill=color)
    elif name == "ring":
        draw.ellipse(box, outline=color, width=5)
    elif name == "square":
        draw.rectangle(box, fill=color)
    elif name == "triangle":
        draw.polygon([(cx, y0), (x1, y1), (x0, y1)], fill=color)
    elif name == "cross":
        draw.rectangle((x0, cy - r / 3, x1, cy + r / 3), fill=color)
        draw.rectangle((cx - r / 3, y0, cx + r / 3, y1), fill=color)
    else:  # a five-pointed star: ten points, alternating between two radii
        angles = [math.pi * (i / 5 - 0.5) for i in range(10)]
        radii = itertools.cycle((r, 0.45 * r))
        draw.polygon([(cx + q * math.cos(a), cy + q * math.sin(a)) for a, q in zip(angles, radii)], fill=color)


def draw_world(folder: Path, seed: int) -> dict[str, Path]:
    """Draws the toy world's splits, each an ordinary COCO-format folder; returns them by name.

    Annotations carry a `color`; images carry LVIS's `neg_category_ids`, so that the prior of presence ("yes, as usual")
    holds on train and consistent images and fails on conflict ones.
    """
    for split, n in WORLD_SPLITS.items():
        images = folder / split / "images"
        images.mkdir(parents=True)
        content = {"images": [], "annotations": [], "categories": [{"id": i, "name": s} for i, s in enumerate(SHAPES, 1)]}
        for i in range(1, n + 1):
            mode = "conflict" if split == "conflict" else "prior"
            add_scene(content, i, mode, images, random.Random(f"world {seed} {split} {i}"))
        (folder / split / "instances.json").write_text(json.dumps(content))
    return {split: folder / split for split in WORLD_SPLITS}


def add_scene(content: dict, image_id: int, mode: str, folder: Path, rng: random.Random) -> None:
    """Draws one image into `folder` and appends its COCO entries to `content`."""
    scene = make_scene(mode, rng)
    file_name = f"{image_id:06d}.png"
    draw_scene(scene, rng).save(folder / file_name)
    absent = [SHAPES.index(s) + 1 for s in SHAPES if s not in {group.name for group in scene}]
    entry = {"id": image_id, "file_name": file_name, "width": CELLS * CELL, "height": CELLS * CELL}
    content["images"].append(entry | {"neg_category_ids": absent if mode == "conflict" else []})
    for group in scene:
        for box in group.boxes:
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": image_id,
                    "category_id": SHAPES.index(group.name) + 1,
                    "bbox": list(box),
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                    "color": group.color,
                }
            )


def looks(response: str) -> bool:
    """Whether a toy response's chain of thought looks at the image (the alternative recalls what is usual)."""
    return "look at" in response.split("</think>")[0]
