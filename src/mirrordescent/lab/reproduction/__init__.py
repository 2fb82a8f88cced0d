"""The report on the paper's tables: our runs beside the paper's figures. It reads records, and never trains."""

from mirrordescent.lab.reproduction.comparison import Best, Row, bests, compared
from mirrordescent.lab.reproduction.writing import page, write_page

__all__ = ["Best", "Row", "bests", "compared", "page", "write_page"]
