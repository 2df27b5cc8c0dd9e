"""Drive the book's pages and a running JupyterLab in headless Chromium."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from richbook.course.book import make_book
from richbook.course.checkup import BROWSERS

# Chromium as root and without a display; and none of its own calls home, which tests would see.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HANDLE = ".noUi-handle"
TOKEN = "test"
AT_HOME = ("file:", "data:", "blob:", "http://127.0.0.1:", "ws://127.0.0.1:")

# The widgets whose sliders work without a kernel, and those that need one.
STATIC_WIDGETS = ".rb-explorer, .rb-alignment-explorer, .rb-flip-book"
LIVE_WIDGETS = ".rb-live"
# What the reader sees of a widget beside its sliders.
DRAWING = """root => [...root.querySelectorAll('svg, img')]
    .filter(part => part.getClientRects().length).map(part => part.outerHTML).join('\\n')"""
#: A model as anywidget hands it to a view, with nobody at the other end.
START_VIEW = """async ({ script, state, width }) => {
    document.body.innerHTML = '<div class="rb-explorer"><div id="view"></div></div>';
    document.getElementById("view").style.width = `${width}px`;
    state.packed = new DataView(Uint8Array.from(state.packed).buffer);
    const heard = {};
    window.model = {
        get: (name) => state[name],
        set: (changes) => { for (const name in changes) {
            state[name] = changes[name]; (heard[`change:${name}`] ?? []).forEach((f) => f()); } },
        on: (name, f) => (heard[name] ??= []).push(f),
        save_changes: () => { window.saved = true; },
    };
    const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const view = await import(url);
    view.default.render({ model: window.model, el: document.getElementById("view") });
}"""


def small_book(root: Path, checkout: Path, name: str, chapter: str) -> None:
    """Make a book of one chapter, with the code and the looks of the real one."""
    (checkout / "notebooks" / "text").mkdir(parents=True)
    for kept in ("conf.py", "index.md"):
        shutil.copy(root / "notebooks" / kept, checkout / "notebooks")
    shutil.copytree(root / "notebooks" / "_static", checkout / "notebooks" / "_static")
    (checkout / "notebooks" / "text" / f"{name}.md").write_text(chapter, encoding="utf-8")
    make_book(root=checkout)


def chromium() -> str | None:
    """The path of a browser of the Chromium family, if there is one."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Watch:
    """What a page asked of the network, and what it complained of."""

    def __init__(self, page):
        self.abroad: list[str] = []
        self.errors: list[str] = []
        page.on("request", self._request)
        page.on("requestfailed", lambda request: self.errors.append(f"failed: {request.url}"))
        page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))
        page.on("console", self._console)

    def _request(self, request) -> None:
        if not request.url.startswith(AT_HOME):
            self.abroad.append(request.url)

    def _console(self, message) -> None:
        if message.type == "error":
            self.errors.append(f"console: {message.text}")


def show_view(page, view, width: int) -> None:
    """Draw an anywidget view with its script and style, `width` pixels wide, without a book."""
    names = set(view.traits(sync=True)) - {"layout", "tabbable", "tooltip"}
    state = {name: getattr(view, name) for name in names if not name.startswith("_")}
    state["packed"] = list(view.packed)
    page.add_style_tag(content=view._css)
    page.evaluate(START_VIEW, {"script": view._esm, "state": state, "width": width})
    page.wait_for_timeout(100)


#: Texts of the view that stick out of it, or run into the panel beside them.
STICKS_OUT = """() => {
    const view = document.getElementById("view").getBoundingClientRect(), bad = [];
    for (const svg of document.querySelectorAll("#view svg")) {
        const own = svg.getBoundingClientRect();
        for (const text of svg.querySelectorAll("text")) {
            const box = text.getBoundingClientRect();
            const right = Math.min(own.right + 8, view.right + 1);
            if (box.right > right || box.left < own.left - 2) bad.push(text.textContent);
        }
    }
    return bad;
}"""


def press_each_slider(page, root) -> list[tuple[str, str]]:
    """Move each slider of a widget by key; the drawing before and after, slider by slider."""
    pairs = []
    for number in range(root.locator(HANDLE).count()):
        handle = root.locator(HANDLE).nth(number)
        handle.scroll_into_view_if_needed()
        handle.focus()
        at_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
        before = root.evaluate(DRAWING)
        page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
        page.wait_for_timeout(200)
        pairs.append((before, root.evaluate(DRAWING)))
    return pairs


@contextmanager
def jupyter_lab(folder: Path, scratch: Path):
    """A JupyterLab that serves `folder` and knows nothing of the user's settings: its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    environment |= {f"JUPYTER_{name}": str(scratch / name) for name in own}
    environment |= {"IPYTHONDIR": str(scratch / "ipython"), "JUPYTER_PREFER_ENV_PATH": "1"}
    command = [
        *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"),
        *("--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"),
        *(f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={TOKEN}"),
        *("--expose-app-in-browser", "--LabApp.news_url=None"),
        "--LabApp.extension_manager=readonly",
    ]
    log = scratch / "lab.log"
    with log.open("w") as sink:
        server = subprocess.Popen(command, env=environment, stdout=sink, stderr=subprocess.STDOUT)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api?token={TOKEN}", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


def _wait_for(address: str, server: subprocess.Popen, log: Path, seconds: int = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=1)
            return
        except OSError:
            time.sleep(0.25)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()}")


class Nb:
    """A notebook that is open in JupyterLab."""

    def __init__(self, page, address: str, name: str):
        self.page = page
        page.goto(f"{address}/lab/tree/{name}?token={TOKEN}&reset")
        page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext", timeout=60_000
        )
        page.evaluate(
            """async () => {
                const panel = jupyterapp.shell.currentWidget;
                await panel.context.ready; await panel.sessionContext.ready;
            }"""
        )

    def run_all(self, timeout: float = 180) -> list[str]:
        """Run every cell and wait for the last; the errors that cells gave, as text."""
        self.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells') }")
        self.page.wait_for_function(
            """() => [...jupyterapp.shell.currentWidget.content.model.cells].every(cell => {
                const { cell_type, source, execution_count, outputs } = cell.toJSON();
                return cell_type !== 'code' || !source.length || execution_count
                    || (outputs || []).some(output => output.output_type === 'error');
            })""",
            timeout=timeout * 1000,
        )
        self.page.evaluate(
            """async () => {
                const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                await kernel.requestExecute({ code: '' }).done;
            }"""
        )
        return self.errors()

    def clear(self) -> None:
        """Drop all outputs, so that what is seen next was made now and not read from the file."""
        self.page.evaluate(
            "async () => { await jupyterapp.commands.execute('notebook:clear-all-cell-outputs') }"
        )

    def errors(self) -> list[str]:
        """What cells raised, as `cell: name: message`."""
        return self.page.evaluate(
            """() => [...jupyterapp.shell.currentWidget.content.model.cells].flatMap((cell, i) =>
                (cell.toJSON().outputs || []).filter(output => output.output_type === 'error')
                    .map(output => `${i}: ${output.ename}: ${output.evalue}`))"""
        )

    def cell_with(self, source: str) -> int | None:
        """The index of the first code cell whose source holds a text."""
        index = self.page.evaluate(
            """text => [...jupyterapp.shell.currentWidget.content.model.cells].findIndex(cell =>
                cell.type === 'code' && cell.sharedModel.getSource().includes(text))""",
            source,
        )
        return None if index < 0 else index

    def scroll_to(self, index: int) -> None:
        """Bring a cell into view: JupyterLab draws only the cells that are near."""
        self.page.evaluate(
            """async index => {
                const notebook = jupyterapp.shell.currentWidget.content;
                notebook.activeCellIndex = index;
                await notebook.scrollToCell(notebook.widgets[index], 'start');
            }""",
            index,
        )
        self.page.wait_for_timeout(500)

    def execute(self, code: str) -> None:
        """Run code in the notebook's kernel, beside its cells."""
        self.page.evaluate(
            """async code => {
                const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                await kernel.requestExecute({ code }).done;
            }""",
            code,
        )

    def close(self) -> None:
        """End the kernel."""
        self.page.evaluate(
            "async () => { await jupyterapp.shell.currentWidget.sessionContext.shutdown() }"
        )
