"""Makes fits.npz with astropy: FITS files of every type, scaled, and compressed in tiles, and what it reads of them."""

import io
from pathlib import Path

import numpy as np
from astropy.io import fits


def files():
    random = np.random.default_rng(1)
    for dtype in ("uint8", "int16", "int32", "int64", "float32", "float64", "uint16", "uint32", "int8"):
        low, high = (0, 200) if dtype.startswith("u") else (-100, 100)
        yield dtype, [fits.PrimaryHDU(), fits.ImageHDU(random.integers(low, high, (3, 4, 5)).astype(dtype))]
    scaled = fits.ImageHDU(random.integers(-99, 99, (6, 7)).astype("int16"))
    scaled.header["BSCALE"], scaled.header["BZERO"] = 2.5, 1.0
    yield "scaled", [fits.PrimaryHDU(), scaled]
    primary = fits.PrimaryHDU(random.integers(0, 9, (4, 6)).astype("int16"))
    primary.header["OBSERVER"] = "O'Neill / a 'quoted' name"
    yield "several", [primary, fits.ImageHDU(np.arange(6, dtype="int32").reshape(2, 3)),
                      fits.ImageHDU(np.arange(8, dtype="float32").reshape(2, 4))]  # fmt: skip
    smooth = np.cumsum(random.integers(-3, 4, (45, 70)), axis=1)
    for method in ("RICE_1", "GZIP_1", "GZIP_2"):
        for dtype in ("uint8", "int16", "int32", "uint16"):
            data = (
                (smooth + (100 if dtype.startswith("u") else 0))
                .clip(0 if dtype == "uint8" else -30000, 255)
                .astype(dtype)
            )
            if dtype == "int32":
                data[3, 5:40] = random.integers(-(2**31), 2**31 - 1, 35)  # what Rice's code leaves as it is
                data[7:9] = 5
            if dtype == "uint16":
                data = data.clip(0)
            for tile in (None, (16, 32)):
                hdu = fits.CompImageHDU(data, compression_type=method, tile_shape=tile)
                yield f"{method}-{dtype}-{'rows' if tile is None else 'tiles'}", [fits.PrimaryHDU(), hdu]
    cube = random.integers(0, 50, (3, 10, 12)).astype("int16")
    yield "cube", [fits.PrimaryHDU(), fits.CompImageHDU(cube, compression_type="RICE_1", tile_shape=(2, 4, 5))]
    yield "floats", [fits.PrimaryHDU(), fits.CompImageHDU(random.random((9, 9)).astype("float32"))]


if __name__ == "__main__":
    stored = {}
    for name, hdus in files():
        out = io.BytesIO()
        fits.HDUList(hdus).writeto(out, output_verify="ignore")
        stored[f"{name}/file"] = np.frombuffer(out.getvalue(), np.uint8)
        with fits.open(io.BytesIO(out.getvalue())) as opened:
            for k, hdu in enumerate(opened):
                if hdu.data is not None:
                    data = np.asarray(hdu.data)
                    stored[f"{name}/{k + 1}"] = data.astype(data.dtype.newbyteorder("="))
    np.savez_compressed(Path(__file__).with_name("fits.npz"), **stored)
