"""Reports as HTML pages that need nothing else: of a folder of results, of an audit, of an evaluation on photos."""

from cldnet.bench.report.model_pages import audit_page, evaluation_page, write_audit, write_evaluation
from cldnet.bench.report.page import Report, write_report

__all__ = ["Report", "audit_page", "evaluation_page", "write_audit", "write_evaluation", "write_report"]
