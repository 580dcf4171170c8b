"""Published lists of checksums, in the form that ``sha256sum`` writes."""

from __future__ import annotations

import re

from gflowout.core.optional import require
from gflowout.data.catalog import Download
from gflowout.data.errors import DataError
from gflowout.data.resume import TIMEOUT

_LINE = re.compile(r"\\?([0-9a-fA-F]{64})[ \t]+\*?(.+)")


def published_hash(download: Download) -> str:
    """The checksum of a download, ``"md5:..."`` or ``"sha256:..."``; a list is fetched if need be.

    Raises:
        DataError: If the list cannot be fetched, or does not name the file.
    """
    if not download.checksum.startswith("sums:"):
        return download.checksum
    requests = require("requests", extra="data", purpose="downloading data")
    url = download.checksum.removeprefix("sums:")
    try:
        answer = requests.get(url, timeout=TIMEOUT)
    except requests.RequestException as error:
        raise DataError(f"{url}: no connection, so no checksums") from error
    if not answer.ok:
        raise DataError(f"{url}: the server answered {answer.status_code} {answer.reason}")
    listed = parse_sums(answer.text)
    path = download.url.removeprefix(url.rpartition("/")[0] + "/")
    if path not in listed:
        raise DataError(f"{url}: does not list {path}")
    return f"sha256:{listed[path]}"


def parse_sums(text: str) -> dict[str, str]:
    """Read a list: SHA-256 by path.

    Examples:
        >>> parse_sums("0" * 64 + "  ./tables/stays.csv.gz")["tables/stays.csv.gz"][:4]
        '0000'
    """
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {match[2].removeprefix("./"): match[1].lower() for match in found if match}
