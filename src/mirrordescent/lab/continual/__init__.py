"""Tasks that are learnt one after the other: how much of the old ones is left, under RMD and under what is usual."""

from mirrordescent.lab.continual.courses import METHODS, SEEDS, Course, Lessons, courses
from mirrordescent.lab.continual.learning import Learnt, learn, read_courses, source_of
from mirrordescent.lab.continual.table import Line, Setting, settings
from mirrordescent.lab.continual.tasks import batch_notes
from mirrordescent.lab.continual.writing import write_page

__all__ = [
    "METHODS",
    "SEEDS",
    "Course",
    "Learnt",
    "Lessons",
    "Line",
    "Setting",
    "batch_notes",
    "courses",
    "learn",
    "read_courses",
    "settings",
    "source_of",
    "write_page",
]
