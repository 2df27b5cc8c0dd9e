"""Where a running recipe keeps what it has: a folder beside the file that it will write.

Each trial has one file, replaced whole at every checkpoint, so that a run that is killed at any
moment goes on from its last checkpoint, and nothing half-written is ever read.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from richbook.measure import RichbookError


@dataclass(frozen=True)
class Workplace:
    """The folder of one unfinished result."""

    folder: Path

    @classmethod
    def beside(cls, out: Path) -> Workplace:
        """The workplace of a result that will lie at ``out``."""
        return cls(out.with_name(out.name + ".unfinished"))

    def open(self, plan: dict, restart: bool) -> None:
        """Begin, or go on with what is there if it was begun with the same plan.

        Raises:
            RichbookError: what is there was begun with another plan; it says what differs.
        """
        if restart:
            self.close()
        stored = self.folder / "plan.json"
        plan = json.loads(json.dumps(plan))
        if stored.is_file():
            begun = json.loads(stored.read_text(encoding="utf-8"))
            differs = sorted(
                name for name in begun | plan if begun.get(name, "-") != plan.get(name, "-")
            )
            if differs:
                name = differs[0]
                raise RichbookError(
                    f"out: {self.folder} holds an unfinished run with another {name} "
                    f"({begun.get(name, '-')}, now {plan.get(name, '-')}); finish that one, or "
                    "throw it away with restart=True (--restart)"
                )
            return
        self.folder.mkdir(exist_ok=True)
        self._write(stored, json.dumps(plan, indent=1).encode())

    def load(self, index: int, seed: int) -> dict | None:
        """What a trial had at its last checkpoint, or None."""
        path = self._path(index, seed)
        return torch.load(path, weights_only=True) if path.is_file() else None

    def save(self, index: int, seed: int, content: dict) -> None:
        """Replace what a trial has, whole or not at all."""
        path = self._path(index, seed)
        partial = path.with_suffix(".partial")
        torch.save(content, partial)
        os.replace(partial, path)

    def close_if_bare(self) -> None:
        """Remove the folder if no trial has got anywhere: there is nothing to go on with."""
        if not list(self.folder.glob("*.pt")):
            self.close()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, index: int, seed: int) -> Path:
        return self.folder / f"value{index}-seed{seed}.pt"

    def _write(self, path: Path, content: bytes) -> None:
        partial = path.with_suffix(".partial")
        partial.write_bytes(content)
        os.replace(partial, path)
