"""Reports on runs: a table, pictures, one page. They read records, and never train."""

from mirrordescent.lab.report.table import columns, table, tasks
from mirrordescent.lab.report.writing import Report, write_report

__all__ = ["Report", "columns", "table", "tasks", "write_report"]
