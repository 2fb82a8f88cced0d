"""Makes small pictures of image samples, as PNG for an audit's page; needs Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.data.imagefolder import upright

if TYPE_CHECKING:
    from PIL import Image

SIDE = 128  # pixels of the longer side, at most


def png_of_file(file: Path, side: int, bits: int = 0) -> bytes:
    """An image file, upright and on white, scaled down to at most `side` pixels; DataError if it cannot be read.

    bits: as for `upright`.
    """
    return _png(upright(file, side, bits), side)


def png_of_pixels(pixels: Tensor, low: float, high: float, side: int) -> bytes:
    """An image (channels, height, width) with values from `low` to `high`, scaled down to at most `side` pixels.

    One channel is grey, three are RGB, four RGB and opacity, laid on white; of any other number the first is shown.
    """
    try:
        from PIL import Image
    except ImportError:
        raise DataError("pictures need Pillow, which is not installed; pip install 'mirrordescent[lab]'") from None
    mode = {3: "RGB", 4: "RGBA"}.get(len(pixels), "L")
    shown = pixels[: len(mode)] if mode != "L" else pixels[:1]
    levels = ((shown.double() - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8)
    content = levels.permute(1, 2, 0).contiguous().numpy().tobytes()
    image = Image.frombytes(mode, (pixels.shape[2], pixels.shape[1]), content)
    if mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return _png(image, side)


def levels_of(inputs: Tensor) -> tuple[float, float]:
    """The values of black and white in images: 0 and 1, or 0 and 255, if all values lie between; else the extremes.

    >>> levels_of(torch.tensor([0.0, 0.5])), levels_of(torch.tensor([0.0, 17.0])), levels_of(torch.tensor([-2.0, 3.0]))
    ((0.0, 1.0), (0.0, 255.0), (-2.0, 3.0))
    """
    if inputs.dtype == torch.uint8:
        return 0.0, 255.0
    low, high = (float(extreme) for extreme in inputs.aminmax())
    if low >= 0 and high <= 255:
        return 0.0, 1.0 if high <= 1 else 255.0
    return low, high if high > low else low + 1


def _png(image: Image.Image, side: int) -> bytes:
    image.thumbnail((side, side))  # never larger than it is
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
