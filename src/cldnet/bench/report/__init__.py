"""The report: one page that a person likes to read, and every plot of it as a file."""

from cldnet.bench.report.audit import audit_page, write_audit
from cldnet.bench.report.evaluation import evaluation_page, write_evaluation
from cldnet.bench.report.write import Report, write_report

__all__ = ["Report", "audit_page", "evaluation_page", "write_audit", "write_evaluation", "write_report"]
