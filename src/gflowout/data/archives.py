"""Unpacking tar and zip archives into a folder, and nowhere else.

Only files and folders come out: links, devices and paths that lead elsewhere are refused, before
anything is written. Knows nothing of data sets.
"""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from gflowout.data.errors import DataError

# zipfile raises a plain RuntimeError for a file with a password.
_BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError),
)


def unpack(archive: Path, folder: Path, strip: int = 0) -> None:
    """Unpack an archive.

    Args:
        archive: A tar file, compressed or not, or a zip file; told apart by their content.
        folder: Where to; made if it is not there.
        strip: How many leading folders to leave out of every path.

    Raises:
        DataError: If the archive is damaged, or holds anything but files and folders inside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, folder, strip)
        else:
            _untar(archive, folder, strip)
    except _BROKEN as error:
        raise DataError(f"{archive}: not an archive that can be unpacked ({error})") from error


def _untar(archive: Path, folder: Path, strip: int) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            _inside(archive, member.name)
            if not (member.isfile() or member.isdir()):
                raise DataError(f"{archive}: refused, {member.name!r} is a link or a device")
        wanted = [
            member.replace(name=name)
            for member in members
            if member.isfile() and (name := _stripped(member.name, strip))
        ]
        # Python before 3.11.4 has no filter; links, devices and ways out are refused above already.
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(folder, members=wanted, **safe)


def _unzip(archive: Path, folder: Path, strip: int) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        for member in members:
            # Zip files made on Windows may have backslashes, which are names elsewhere.
            _inside(archive, member.filename.replace("\\", "/"))
        needed, free = sum(member.file_size for member in members), shutil.disk_usage(folder).free
        if free < needed:
            raise DataError(f"{folder}: unpacking needs {needed:,} bytes, {free:,} are free")
        for member in members:
            name = _stripped(member.filename, strip)
            if member.is_dir() or not name:
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with packed.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)


def _inside(archive: Path, name: str) -> None:
    path = PurePosixPath(name)
    drive = bool(path.parts) and path.parts[0].endswith(":")
    if path.is_absolute() or ".." in path.parts or drive:
        raise DataError(f"{archive}: refused, {name!r} leads out of the folder")


def _stripped(name: str, strip: int) -> str:
    return "/".join(PurePosixPath(name).parts[strip:])
