"""Data sets: `load` turns a known name, or the path of a table, arrays or a folder of images, into `Data`."""

from mirrordescent.lab.data.base import Data, DataError, Scaling
from mirrordescent.lab.data.datasets import Source, load

__all__ = ["Data", "DataError", "Scaling", "Source", "load"]
