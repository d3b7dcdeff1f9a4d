"""What a model keeps, and whether it keeps its promises: bytes, constant size, and likeness to the rows that it learned."""

from __future__ import annotations

from cldnet.audit.likeness import LIMIT, Finding, compare
from cldnet.audit.report import FEW, Audit, audit_model

__all__ = ["FEW", "LIMIT", "Audit", "Finding", "audit_model", "compare"]
