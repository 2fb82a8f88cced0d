"""Audits of labels: find the suspicious ones, let a person decide on them on a page, and clean the data."""

from mirrordescent.lab.audit.decisions import Decision, read_decisions
from mirrordescent.lab.audit.page import Findings, Histogram, Shown, write_audit_page

__all__ = ["Decision", "Findings", "Histogram", "Shown", "read_decisions", "write_audit_page"]
