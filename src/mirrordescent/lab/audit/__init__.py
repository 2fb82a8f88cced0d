"""Audits of labels: the page on which a person looks at the suspicious ones, and the decisions that come of it."""

from mirrordescent.lab.audit.decisions import Decision, read_decisions
from mirrordescent.lab.audit.page import Findings, Histogram, Shown, write_audit_page

__all__ = ["Decision", "Findings", "Histogram", "Shown", "read_decisions", "write_audit_page"]
