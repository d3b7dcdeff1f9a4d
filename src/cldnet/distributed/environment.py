"""How this process was started: alone, or by torchrun as one of several ranks. It needs no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """The number of a rank, from 0, how many ranks there are, and how many of them are on this machine."""

    rank: int = 0
    size: int = 1
    local_size: int = 1
    restarts: int = 0  # how often torchrun has started the ranks again

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self.size > 1

    @property
    def first(self) -> bool:
        """Whether this rank prints and writes files."""
        return self.rank == 0

    @classmethod
    def from_environment(cls) -> World:
        """Read what torchrun sets; without it, this process is alone."""
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
            return cls()
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        return cls(rank, size, local_size, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)))
