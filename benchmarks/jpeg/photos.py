"""Large photos out of small pictures, for benchmarks: mosaics that have the statistics of what they are made of.

python benchmarks/jpeg/photos.py FOLDER OUT --count 24
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

SIZE, TILE = (4032, 3024), (504, 378)  # 12 megapixels, as most telephones take them; 8 x 8 pictures


def write_photos(pictures: Path, folder: Path, count: int) -> list[Path]:
    """``count`` baseline JPEGs, 4:2:0, quality 90, named photo_0000.jpg and so on. The same pictures give the same
    photos, with the same Pillow."""
    paths = sorted(p for p in pictures.iterdir() if p.is_file())
    if not paths:
        raise SystemExit(f"{pictures}: no pictures to make photos of")
    rng = np.random.default_rng(0)
    written = []
    for i in range(count):
        photo = Image.new("RGB", SIZE)
        for y in range(0, SIZE[1], TILE[1]):
            for x in range(0, SIZE[0], TILE[0]):
                with Image.open(paths[rng.integers(len(paths))]) as picture:
                    photo.paste(ImageOps.fit(picture.convert("RGB"), TILE), (x, y))
        path = folder / f"photo_{i:04d}.jpg"
        photo.save(path, "JPEG", quality=90, subsampling="4:2:0")
        written.append(path)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=24)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in write_photos(arguments.folder, arguments.out, arguments.count):
        print(path)


if __name__ == "__main__":
    main()
