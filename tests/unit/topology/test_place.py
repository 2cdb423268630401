"""One place, as users, pyarrow and Spark name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import DeclarationError
from headgate.topology.arguments import absolute, spark_uri


@pytest.mark.parametrize(
    ("given", "arrow", "spark"),
    [
        ("/a/b", "/a/b", "file:///a/b"),
        (Path("/a/b"), "/a/b", "file:///a/b"),
        ("file:/a/b", "/a/b", "file:///a/b"),
        ("file:///a/b", "/a/b", "file:///a/b"),
        ("file://localhost/a/b", "/a/b", "file:///a/b"),
        (Path("/a b/c").as_uri(), "/a b/c", "file:///a b/c"),
        ("s3://bucket/a", "s3://bucket/a", "s3a://bucket/a"),
        ("s3a://bucket/a", "s3://bucket/a", "s3a://bucket/a"),
        ("S3A://bucket/a", "s3://bucket/a", "s3a://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a", "gs://bucket/a"),
        ("hdfs://name:8020/a", "hdfs://name:8020/a", "hdfs://name:8020/a"),
        ("abfss://c@a.dfs.core.windows.net/x",) + ("abfss://c@a.dfs.core.windows.net/x",) * 2,
    ],
)
def test_a_place_has_one_name_for_pyarrow_and_one_for_spark(
    given: str | Path, arrow: str, spark: str
) -> None:
    assert absolute(given) == arrow
    assert absolute(arrow) == arrow
    assert spark_uri(arrow) == spark


def test_a_relative_path_is_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert absolute("a") == absolute(Path("a")) == str(tmp_path / "a")
    assert absolute("odd:name") == str(tmp_path / "odd:name")


@pytest.mark.parametrize(
    "given", ["dbfs:/x", "wasbs://c@a/x", "ftp://h/x", "file://host/x", "s3:/x", "s3://b/x?a=b"]
)
def test_a_place_that_cannot_hold_files_is_refused_before_anything_is_written(given: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        absolute(given)

    assert caught.value.place == given and repr(given) in str(caught.value)
