"""Execute a chapter's text, and make the result the same each time.

Everything that would differ between two executions of the same text (time stamps, random
identifiers) is taken out, so that a difference in the notebook is one in what the reader sees.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import tempfile
from pathlib import Path

import nbformat
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from PIL import Image

from richbook.course.chapters import LANGUAGE, read_text
from richbook.measure.errors import RichbookError

CELL_TIMEOUT = 300  # seconds; a chapter is meant to end within 60
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class _ThisPython(KernelSpecManager):
    """Kernels run in the environment that builds the book, not in one that a user installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


class _Kernel(AsyncKernelManager):
    def _kernel_spec_manager_default(self) -> KernelSpecManager:
        return _ThisPython(parent=self)


def execute(text: Path, folder: Path | None = None) -> nbformat.NotebookNode:
    """Execute a chapter's text in a new kernel and return the notebook, settled.

    Args:
        text: the MyST text.
        folder: where the kernel runs; the folder of the notebook by default, as for the reader.

    Raises:
        RichbookError: if a cell fails or takes more than `CELL_TIMEOUT` seconds. The message names
            the chapter and the cell and shows source and traceback.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "00-sample.md"
        >>> _ = path.write_text("```{code-cell}\\n1 + 1\\n```\\n")
        >>> execute(path, folder=path.parent).cells[0].outputs[0].data["text/plain"]
        '2'
    """
    notebook = read_text(text)
    folder = Path(folder or text.parent.parent)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_manager_class=_Kernel,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],  # it warns of a transport that is this machine's own
    )
    with tempfile.TemporaryDirectory() as profile:
        # A profile of its own keeps a user's start-up files out of the book.
        # The chapters' networks are small: a second thread wins little, and on a machine that has
        # other work the threads wait for each other most of the time.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        environment |= {"IPYTHONDIR": profile, "PYTHONHASHSEED": "0"}
        try:
            client.execute(env=environment)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise RichbookError(_failure(text, notebook, error)) from error
    return settle(notebook, text.stem)


def _failure(text: Path, notebook: nbformat.NotebookNode, error: Exception) -> str:
    """Which cell of which chapter failed, its source, and what it said."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    begun = [number for number, cell in enumerate(code, start=1) if cell.execution_count]
    said = str(error)
    if isinstance(error, CellExecutionError):  # source and traceback
        number = begun[-1] if begun else 1
    else:  # a cell that was stopped has no execution count yet
        number = min(len(begun) + 1, len(code))
        said = f"{code[number - 1].source}\n\n{said}"
    where = f"text: {text.name}, code cell {number} of {len(code)} failed"
    return f"{where}\n{COLOURS.sub('', said).rstrip()}"


def settle(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """Replace what execution draws at random, and drop what only takes room.

    Widgets are numbered in the order of their making, in place of random identifiers. Pictures keep
    256 colours: for a plot the eye sees no difference, and it takes a third of the room. What is
    unset in a widget's layout goes: a page assumes it.

    Example:
        >>> empty = nbformat.v4.new_notebook()
        >>> settle(empty, "00-sample").cells
        []
    """
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = thin(output.data["image/png"])
    notebook.metadata["language_info"] = nbformat.from_dict(LANGUAGE)
    state = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    for model in state.values():
        for buffer in model.get("buffers", []):
            buffer["data"] = thin(buffer["data"])
        if model["model_name"] == "LayoutModel":
            model["state"] = {k: v for k, v in model["state"].items() if v is not None}
    serial = json.dumps(notebook)
    prefix = hashlib.sha256(name.encode()).hexdigest()[:16]
    for number, identifier in enumerate(state):
        serial = serial.replace(identifier, f"{prefix}{number:016x}")
    return nbformat.from_dict(json.loads(serial))


def thin(encoded: str) -> str:
    """Give a picture, a PNG file in base64, a palette of 256 colours; leave other data alone.

    Example:
        >>> thin("AAEC")
        'AAEC'
    """
    raw = base64.b64decode(encoded)
    if not raw.startswith(b"\x89PNG"):
        return encoded
    with Image.open(io.BytesIO(raw)) as picture:
        if picture.mode == "RGBA" and picture.getextrema()[3] != (255, 255):
            return encoded  # see-through pictures would lose what makes them so
        flat = picture.convert("RGB").quantize(
            256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        thinner = io.BytesIO()
        flat.save(thinner, "png", optimize=True, dpi=picture.info.get("dpi"))
    return min(encoded, base64.b64encode(thinner.getvalue()).decode(), key=len)
