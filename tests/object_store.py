"""An S3 server on this host, for the code that only an object store takes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

Respond = Callable[[dict[str, Any], Any], Iterable[bytes]]
BUCKET = "checkpoints"


class LocalS3:
    """moto's S3; requests are taken one by one, as S3 decides conditional writes atomically.

    `answer`, if set, may answer a request instead of moto, before or after asking it.
    """

    def __init__(self) -> None:
        self._app: Respond = DomainDispatcherApplication(create_backend_app)
        self._one_by_one = threading.Lock()
        self.answer: Callable[[dict[str, Any], Any, Respond], Iterable[bytes]] | None = None
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = make_server("127.0.0.1", 0, self._respond, threaded=True)
        self._folders = 0

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def folder(self) -> str:
        """A place nobody else uses."""
        self._folders += 1
        return f"s3://{BUCKET}/{self._folders}"

    def _respond(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        with self._one_by_one:
            if self.answer is None:
                return list(self._app(environ, start))
            return list(self.answer(environ, start, self._app))

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[LocalS3]:
        server = cls()
        thread = threading.Thread(target=server._server.serve_forever, daemon=True)
        thread.start()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in server.environment.items():
                patch.setenv(name, value)
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            yield server
        server._server.shutdown()
        thread.join()
