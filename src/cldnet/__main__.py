"""``python -m cldnet`` is the command ``cldnet``: torchrun starts modules."""

from __future__ import annotations

from cldnet.cli import main

main()
