"""Fixtures for pages and for JupyterLab in a browser."""

from __future__ import annotations

import shutil

import pytest

from richbook.course import vendor
from richbook.course.book import render
from tests.browser.harness import FLAGS, Watch, chromium, jupyter_lab


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if chromium() is None:
        pytest.skip("no chromium on this machine")
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def watched(browser):
    """An empty page and the watch over it. A request to the network fails the test in the end."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    opened = context.new_page()
    watch = Watch(opened)
    yield opened, watch
    context.close()
    assert watch.abroad == [], "the page asked for something from the network"


@pytest.fixture
def page(watched):
    """An empty page for the book. What it complains of in its console fails the test, too."""
    opened, watch = watched
    yield opened
    assert watch.errors == []


@pytest.fixture
def lab_page(watched):
    """An empty page for JupyterLab, whose console holds complaints of its own making."""
    return watched[0]


@pytest.fixture(scope="session")
def scripts():
    """Skips where the scripts of the pages can be neither fetched nor found in the cache."""
    try:
        for package in vendor.PACKAGES:
            vendor.fetch(package)
    except OSError as error:
        pytest.skip(f"no scripts for the HTML pages: {error}")


@pytest.fixture(scope="session")
def html(root, scripts, tmp_path_factory):
    """The HTML book of the notebooks as they are kept."""
    return render(root, tmp_path_factory.mktemp("book") / "html").parent


@pytest.fixture(scope="session")
def lab(root, tmp_path_factory):
    """The address of a JupyterLab that serves a copy of the notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    served = folder / "notebooks"
    served.mkdir()
    for notebook in (root / "notebooks").glob("*.ipynb"):
        shutil.copy(notebook, served)
    with jupyter_lab(served, folder) as address:
        yield address
