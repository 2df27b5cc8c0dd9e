"""Reading files and archives whole, with errors that name them."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath

from richbook.measure import RichbookError

#: Everything that reading a broken or forbidden file or archive raises.
UNREADABLE = (OSError, EOFError, zlib.error, tarfile.TarError)


def is_file(path: Path) -> bool:
    """Whether there is such a file.

    Raises:
        RichbookError: the folder it would be in may not be looked into.

    Example:
        >>> is_file(Path("no such folder") / "file")
        False
    """
    return _is(path, path.is_file)


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; raises as ``is_file`` does.

    Example:
        >>> is_folder(Path("."))
        True
    """
    return _is(path, path.is_dir)


def _is(path: Path, kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError as error:
        raise RichbookError(f"{path}: cannot be read ({error})") from error


def read_file(path: Path) -> bytes:
    """What a file holds, unpacked if its name ends in .gz.

    Raises:
        RichbookError: it cannot be read, or its archive is damaged or ends early.
    """
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except UNREADABLE as error:
        raise RichbookError(f"{path}: cannot be read ({error}); is it complete?") from error


def read_archive(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """What the files of these names hold in a .tar.gz, in whichever folder of it they lie.

    Nothing is unpacked to disk, and the archive is read to its end, where its checksum stands.

    Raises:
        RichbookError: it cannot be read, is damaged, ends early, or lacks one of the files.
    """
    found = {}
    try:
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if member.isfile() and name in names:
                        found[name] = archive.extractfile(member).read()
            while stream.read(1 << 20):
                pass
    except UNREADABLE as error:
        raise RichbookError(f"{path}: cannot be read ({error}); is it complete?") from error
    for name in names:
        if name not in found:
            raise RichbookError(f"{path}: expected the file {name} in it; is it complete?")
    return found
