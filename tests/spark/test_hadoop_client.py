"""Create if absent through Hadoop's client, as on HDFS; here on Hadoop's local file system."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headgate.runtime.session import lend_hadoop_client
from headgate.state import storage
from unit.state.remote import NotLocal


def test_hadoops_client_says_who_was_first(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "rename_if_absent", None)
    lend_hadoop_client(spark)
    first, second = (NotLocal.at(str(tmp_path)) for _ in range(2))

    assert first.create("manifests/7", b"first")
    assert not second.create("manifests/7", b"second")
    assert first.read("manifests/7") == b"first"
    assert first.list() == ["manifests/7"]


def test_what_else_goes_wrong_there_is_an_os_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "rename_if_absent", None)
    lend_hadoop_client(spark)
    rename = storage.rename_if_absent

    with pytest.raises(OSError, match="FileNotFoundException"):
        rename(str(tmp_path / "not there"), str(tmp_path / "new"))
