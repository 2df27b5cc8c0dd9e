"""The tool chain on a small book of the test's own: text, execution, pages, JupyterLab."""

import nbformat
import pytest

from tests.browser.harness import Nb, Watch, jupyter_lab, press_each_slider, small_book

CHAPTER = r"""---
kernelspec:
  name: python3
  display_name: Python 3
---
# Sample

Inline $x^2$, and displayed:

$$
\mathrm{CKA}(A, B) = \frac{\langle A, B\rangle_F}{\lVert A\rVert_F \lVert B\rVert_F}
$$

```{code-cell}
import anywidget, ipywidgets, traitlets

class View(anywidget.AnyWidget):
    _esm = '''
    function render({ model, el }) {
      const draw = () => {
        const bytes = new Uint8Array(model.get("data").buffer);
        const width = bytes[model.get("first")] + model.get("second");
        el.innerHTML = `<svg width="100" height="20"><rect height="20" width="${width}"/></svg>`;
      };
      for (const name of ["first", "second"]) model.on(`change:${name}`, draw);
      draw();
    }
    export default { render };
    '''
    data = traitlets.Bytes(bytes([0, 30, 60, 90])).tag(sync=True)
    first = traitlets.Int(0).tag(sync=True)
    second = traitlets.Int(0).tag(sync=True)

view = View()
names = ("first", "second")
sliders = [ipywidgets.SelectionSlider(options=range(4), description=f"${n}$") for n in names]
links = [ipywidgets.jslink((s, "index"), (view, n)) for s, n in zip(sliders, names)]
box = ipywidgets.VBox([*sliders, view])
box.add_class("rb-explorer")
box
```

```{code-cell}
:tags: [hide-cell]
:mystnb: {code_prompt_show: "Show the solution"}

6 * 7
```
"""

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def book(root, scripts, tmp_path_factory):
    """A checkout with one chapter, made by the same code as the real one."""
    checkout = tmp_path_factory.mktemp("sample")
    small_book(root, checkout, "00-sample", CHAPTER)
    return checkout


def test_page_is_alive_without_kernel_and_network(book, page):
    page.goto((book / "build" / "html" / "00-sample.html").as_uri())
    page.wait_for_function(
        "() => [...document.querySelectorAll('.math')].every(e => e.querySelector('mjx-container'))"
    )
    explorer = page.locator(".rb-explorer")
    explorer.locator("svg").first.wait_for(timeout=20_000)
    pairs = press_each_slider(page, explorer)
    assert len(pairs) == 2
    assert all(before != after for before, after in pairs)
    page.locator(".widget-label mjx-container").nth(1).wait_for(timeout=10_000)
    solution = page.get_by_text("Show the solution")
    assert not page.get_by_text("6 * 7").is_visible()
    solution.click()
    assert page.get_by_text("6 * 7").is_visible()


@pytest.fixture(scope="module")
def sample_lab(book, tmp_path_factory):
    with jupyter_lab(book / "notebooks", tmp_path_factory.mktemp("sample-lab")) as address:
        yield address


def test_notebook_is_alive_in_jupyterlab(sample_lab, lab_page):
    notebook = Nb(lab_page, sample_lab, "00-sample.ipynb")
    notebook.clear()
    assert notebook.run_all() == []
    notebook.scroll_to(notebook.cell_with("class View"))
    explorer = lab_page.locator(".rb-explorer")
    explorer.locator("svg").first.wait_for(timeout=20_000)
    assert all(before != after for before, after in press_each_slider(lab_page, explorer))
    notebook.close()


def test_failing_cell_is_seen_in_jupyterlab(book, sample_lab, lab_page):
    broken = nbformat.read(book / "notebooks" / "00-sample.ipynb", as_version=4)
    broken.cells[-1].source = "1 / 0"
    nbformat.write(broken, book / "notebooks" / "broken.ipynb")
    notebook = Nb(lab_page, sample_lab, "broken.ipynb")
    assert notebook.run_all() == ["2: ZeroDivisionError: division by zero"]
    notebook.close()


def test_watch_sees_what_a_page_asks_and_complains_of(browser):
    context = browser.new_context()
    page = context.new_page()
    watch = Watch(page)
    page.route("http://**", lambda route: route.abort())
    page.set_content("<img src='http://example.invalid/a.png'><script>console.error('no')</script>")
    page.wait_for_timeout(300)
    context.close()
    assert watch.abroad == ["http://example.invalid/a.png"]
    assert any("no" in error for error in watch.errors)
