"""A stand-in for Hugging Face on loopback: the endpoints that huggingface-hub uses to list and fetch."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server has, and how it behaves. `files`: by repository and name. `sizes`: claimed in the
    list instead of the real ones. `break_after`: bytes after which a download's connection is cut, once
    for each entry. `status`, `error_code`: answered to everything instead. `ranges`: those asked for."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    break_after: list[int] = field(default_factory=list)
    status: int = 0
    error_code: str = ""
    ranges: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.status:
            self._send(
                self.hub.status, b"{}", {"X-Error-Code": self.hub.error_code} if self.hub.error_code else {}
            )
            return
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._list("/".join(parts[2:4]), body)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), "/".join(parts[4:]), body)
        else:
            self._send(404, b"{}", {})

    def _list(self, repo: str, body: bool) -> None:
        files = self.hub.files.get(repo)
        if files is None:
            self._send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            return
        siblings = [
            {"rfilename": name, "size": self.hub.sizes.get(name, len(data)), "blobId": _etag(data)}
            for name, data in files.items()
        ]
        answer = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [],
                  "downloads": 0, "likes": 0}  # fmt: skip
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"}, body)

    def _file(self, repo: str, name: str, body: bool) -> None:
        data = self.hub.files.get(repo, {}).get(name)
        if data is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes",
                   "Content-Type": "application/octet-stream"}  # fmt: skip
        asked, status = self.headers.get("Range", ""), 200
        total = len(data)
        if body and asked.startswith("bytes="):
            self.hub.ranges.append(asked)
            start = int(asked[6:].split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
            data, status = data[start:], 206
        if body and self.hub.break_after:
            cut = self.hub.break_after.pop(0)
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data[:cut])
            self.wfile.flush()
            self.close_connection = True
            return
        self._send(status, data, headers, body)

    def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool = True) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(data)


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """A running server; `url` is its address."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
