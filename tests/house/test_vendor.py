"""The scripts of the HTML book: fetched once, kept, and refused if they are not the pinned ones."""

import base64
import dataclasses
import hashlib
import io
import stat
import sys
import tarfile

import pytest

from richbook.course import vendor
from richbook.measure.errors import RichbookError


def tarball(**files: str) -> bytes:
    """A package as npm packs it: all files in a folder called `package`."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    return packed.getvalue()


BODY = tarball(**{"dist/a.js": "a", "dist/b.css": "b", "README.md": "c"})
SAMPLE = vendor.Package(
    "@scope/sample",
    "1.2.3",
    base64.b64encode(hashlib.sha512(BODY).digest()).decode(),
    (("dist/*.js", "scripts"), ("dist/*.js", ".")),
)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """A cache of the test's own, and no npm but what the test puts there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return vendor.cache_folder()


@pytest.fixture
def npm(tmp_path):
    """A stand-in for npm that packs what it is told, or fails."""

    def install(body: bytes | None) -> None:
        program = tmp_path / "bin" / "npm"
        action = "sys.exit('npm error network is down')"
        if body is not None:
            action = f"open('scope-sample-1.2.3.tgz', 'wb').write({body!r})"
        program.write_text(
            f"#!{sys.executable}\nimport sys\n"
            f"assert sys.argv[1:] == ['pack', '--silent', '@scope/sample@1.2.3']\n{action}\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    return install


def test_package_is_fetched_once_and_then_comes_from_the_cache(npm, cache, tmp_path):
    npm(BODY)
    assert vendor.fetch(SAMPLE) == cache / "scope-sample-1.2.3.tgz"
    (tmp_path / "bin" / "npm").unlink()
    assert vendor.fetch(SAMPLE).read_bytes() == BODY
    assert [path.name for path in cache.iterdir()] == ["scope-sample-1.2.3.tgz"]


def test_other_content_is_refused_and_not_kept(npm, cache):
    npm(tarball(**{"dist/a.js": "something else"}))
    with pytest.raises(RichbookError, match="expected " + SAMPLE.sha512.replace("+", r"\+")):
        vendor.fetch(SAMPLE)
    assert list(cache.iterdir()) == []


def test_spoilt_cache_is_fetched_again(npm, cache):
    cache.mkdir(parents=True)
    (cache / SAMPLE.tarball).write_bytes(BODY[:-5])
    npm(BODY)
    assert vendor.fetch(SAMPLE).read_bytes() == BODY


def test_missing_and_failing_npm_say_why(npm):
    with pytest.raises(OSError, match="npm is not installed"):
        vendor.fetch(SAMPLE)
    npm(None)
    with pytest.raises(OSError, match="could not fetch @scope/sample: npm error network is down"):
        vendor.fetch(SAMPLE)


def test_only_the_named_files_are_copied(tmp_path):
    path = tmp_path / SAMPLE.tarball
    path.write_bytes(BODY)
    vendor.extract(path, SAMPLE, tmp_path / "out")
    found = sorted(
        p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")
    )
    assert found == ["a.js", "scripts/a.js"]
    other = dataclasses.replace(SAMPLE, files=(("lib/*.js", "."),))
    with pytest.raises(RichbookError, match=r"holds nothing named lib/\*\.js"):
        vendor.extract(path, other, tmp_path / "out")


def test_without_npm_the_pages_name_exact_versions(tmp_path):
    assert vendor.vendor(tmp_path / "vendor") == "npm is not installed"
    assert (tmp_path / "vendor" / "anywidget.js").exists(), "it comes with the Python package"
    addresses = [vendor.settings(local=False)["mathjax_path"]]
    addresses += [a for a in vendor.settings(local=False)["nb_ipywidgets_js"] if "/" in a]
    for package, address in zip(vendor.PACKAGES, addresses, strict=True):
        assert address.startswith(f"{vendor.NETWORK}/{package.name}@{package.version}/")


def test_local_pages_name_nothing_outside():
    settings = vendor.settings(local=True)
    assert "//" not in "".join([settings["mathjax_path"], *settings["nb_ipywidgets_js"]])
