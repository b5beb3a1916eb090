"""Look at the service's HTTP pages."""

import json
import urllib.error
import urllib.request
from typing import Any

from tests.support.patience import PATIENCE_S


def fetch(port: int, path: str) -> tuple[int, str]:
    """Return the status and the body of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def fetch_json(port: int, path: str) -> tuple[int, Any]:
    status, body = fetch(port, path)
    return status, json.loads(body)


def metric(port: int, name: str) -> float:
    """Return one sample of /metrics by its full name with labels, 0 where it is not there."""
    for line in fetch(port, "/metrics")[1].splitlines():
        if line.startswith(name) and line[len(name)] == " ":
            return float(line.split(" ")[1])
    return 0.0
