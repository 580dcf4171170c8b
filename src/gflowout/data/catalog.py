"""The data sets: names, folders, files with published checksums, downloads, licences.

They are listed in ``catalog.toml`` beside this module. :mod:`gflowout.data.store` finds the files
on disk, :mod:`gflowout.data.download` fetches them.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflowout.core import checks


@dataclass(frozen=True)
class File:
    """A file of a data set.

    Attributes:
        name: Its path inside the data set's folder. The unpacked file, without ``.gz``, will do.
        checksum: ``"md5:..."`` or ``"sha256:..."`` of the published file, if one is published.
        split: The part of the data it holds; empty for files that every part needs.
        optional: Whether the data set is complete without it.
    """

    name: str
    checksum: str | None = None
    split: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Download:
    """A file or archive to fetch for a data set.

    Attributes:
        url: Where it is.
        checksum: ``"md5:..."``, ``"sha256:..."``, or ``"sums:URL"``: a published list of SHA-256
            sums, as ``sha256sum`` writes it, that is fetched as well.
        name: Name of the file in the folder. Default: the last part of the URL.
        unpack: Whether it is an archive, to be unpacked and then deleted.
        strip: Number of leading folders to drop from the paths in the archive.
    """

    url: str
    checksum: str
    name: str = ""
    unpack: bool = False
    strip: int = 0

    @property
    def filename(self) -> str:
        """Name of the file on disk."""
        return self.name or self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Entry:
    """One data set.

    Attributes:
        name: Name that users type.
        title: What it is, in a few words.
        kind: ``"images"``, ``"overlays"``, ``"vqa"`` or ``"clinical"``.
        folders: Folders in the data directory that may hold it; a download goes to the first.
        files: Its files. A folder with any file of a split is taken to hold the data set; with any
            file at all, if no file belongs to one split only.
        licence: Terms of use.
        home: Page that describes it.
        citation: Whom to cite.
        downloads: What ``gflowout data get`` fetches; empty if users must get it by hand.
        by_hand: How to get it otherwise.
        package: A Python package that ships the data, and the folder inside it.
        size: Approximate number of bytes of the downloads.
        inside: Sub-folders of the data set's folder that may hold the files.
        classes: Names of the classes, if it is a set of labelled images.
    """

    name: str
    title: str
    kind: str
    folders: tuple[str, ...]
    files: tuple[File, ...]
    licence: str
    home: str
    citation: str
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    package: tuple[str, str] | None = None
    size: int = 0
    inside: tuple[str, ...] = ("",)
    classes: tuple[str, ...] = ()

    @property
    def splits(self) -> tuple[str, ...]:
        """The parts of the data, in the order of the files."""
        return tuple(dict.fromkeys(file.split for file in self.files if file.split))


def entry(name: str) -> Entry:
    """Return the data set called ``name``.

    Examples:
        >>> entry("mnist").licence
        'CC BY-SA 3.0'
        >>> entry("minst")
        Traceback (most recent call last):
            ...
        ValueError: name must be one of 'mnist', ..., got 'minst'; did you mean 'mnist'?
    """
    return ENTRIES[checks.choice("name", name, ENTRIES)]


def _parse(name: str, fields: dict[str, Any]) -> Entry:
    files = tuple(File(**file) for file in fields.pop("files"))
    downloads = tuple(Download(**download) for download in fields.pop("downloads", ()))
    if mirror := fields.pop("mirror", ""):
        required = [file for file in files if not file.optional]
        downloads = tuple(
            Download(mirror + file.name, file.checksum) for file in required if file.checksum
        )
    fields["classes"] = fields.get("classes", "").split()
    rest: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    return Entry(name=name, files=files, downloads=downloads, **rest)


ENTRIES: dict[str, Entry] = {
    name: _parse(name, fields)
    for name, fields in tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    ).items()
}
