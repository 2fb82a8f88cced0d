"""Data sets: one interface, and every way in which data come to it."""

from mirrordescent.lab.data.base import Data, DataError, Scaling
from mirrordescent.lab.data.datasets import Source, load

__all__ = ["Data", "DataError", "Scaling", "Source", "load"]
