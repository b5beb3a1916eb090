"""Receive callbacks: check the signature, drop what was seen before, do the work once.

    pip install pynacl
    WEBHOOK_KEY=whpk_… PORT=9000 python receiver.py

`timer-service signing-keys list --tenant …` shows the key, and with `--secret` also one for HMAC (whsec_…).
While keys rotate, give both with a space between.
"""

import base64
import hmac
import os
import re
import sqlite3
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

KEYS = os.environ["WEBHOOK_KEY"].split()
TOLERANCE_S = 5 * 60
MAX_BODY_BYTES = 1024 * 1024
DATABASE = os.environ.get("DATABASE", "receiver.db")


def is_valid(headers, body: bytes) -> bool:
    """Check the signature over the exact bytes received, and that it is recent."""
    callback_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    # Not isdigit(): that is true of "²" as well.
    if not re.fullmatch("[0-9]{1,15}", timestamp) or abs(time.time() - int(timestamp)) > TOLERANCE_S:
        return False
    content = f"{callback_id}.{timestamp}.".encode() + body
    signatures = [part.partition(",") for part in headers.get("webhook-signature", "").split(" ")]
    return any(is_signed(key, version, text, content) for version, _, text in signatures for key in KEYS)


def is_signed(key: str, version: str, text: str, content: bytes) -> bool:
    """Check one signature by one key."""
    prefix, _, encoded = key.partition("_")
    try:
        if (version, prefix) == ("v1a", "whpk"):
            VerifyKey(base64.b64decode(encoded)).verify(content, base64.b64decode(text))
            return True
        if (version, prefix) == ("v1", "whsec"):
            expected = hmac.digest(base64.b64decode(encoded), content, sha256)
            return hmac.compare_digest(expected, base64.b64decode(text))
    except (BadSignatureError, ValueError):
        pass
    return False


def handle(database: sqlite3.Connection, callback_id: str, body: bytes) -> bool:
    """Do the work and remember the callback in one transaction: it is done once, however often it comes."""
    with database:
        new = database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (callback_id,)).rowcount > 0
        if new:
            database.execute("INSERT INTO work VALUES (?)", (body,))
    return new


class Receiver(BaseHTTPRequestHandler):
    """Answers 2xx only after the work is committed: everything else comes again."""

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", "0"))
        if size > MAX_BODY_BYTES:
            return self.answer(413)
        body = self.rfile.read(size)
        if not is_valid(self.headers, body):
            return self.answer(401)
        database = sqlite3.connect(DATABASE)
        new = handle(database, self.headers["webhook-id"], body)
        database.close()
        print(self.headers["timer-id"], "done" if new else "seen before", flush=True)
        return self.answer(204)

    do_PUT = do_PATCH = do_POST

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


def main() -> None:
    database = sqlite3.connect(DATABASE)
    database.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)")
    database.execute("CREATE TABLE IF NOT EXISTS work (body BLOB)")
    database.close()
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Receiver)
    print(f"listening on port {server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
