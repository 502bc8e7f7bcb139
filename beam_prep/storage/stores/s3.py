"""S3, by boto3."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from beam_prep.storage.stores.client import (
    ANY,
    SHA256,
    Changed,
    ObjectInfo,
    StoreUnavailable,
    bucket_and_name,
    failed,
    refused,
)

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_IN_PARTS = 8 << 20
"""boto3 uploads a file of at least this many bytes in parts."""

_AGAIN = ("InvalidPart", "NoSuchUpload", "RequestTimeout")
"""Errors of uploads in parts whose answer was cut or lost, and of slow requests."""


class S3Client:
    """S3, by boto3."""

    def __init__(self, options: "PipelineOptions") -> None:
        from apache_beam.io.aws.clients.s3 import boto3_client

        self._s3 = boto3_client.Client(options).client

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        from boto3.exceptions import S3UploadFailedError
        from botocore import exceptions
        from botocore.parsers import ResponseParserError

        try:
            yield
        except exceptions.ClientError as error:
            raise _failed(path, error) from None
        except S3UploadFailedError as error:
            raise _failed(path, error.__context__) from None
        except (exceptions.HTTPClientError, exceptions.ConnectionError, ResponseParserError) as error:
            raise StoreUnavailable(str(error)) from None
        except (exceptions.IncompleteReadError, exceptions.FlexibleChecksumError) as error:
            raise StoreUnavailable(str(error)) from None
        except (KeyError, ValueError) as error:  # a header is missing or cut
            raise StoreUnavailable(f"its answer about {path} is incomplete: {error}") from None
        except exceptions.BotoCoreError as error:  # no credentials
            raise refused(path, error) from None

    def find(self, path: str) -> ObjectInfo:
        bucket, name = bucket_and_name(path)
        with self._errors(path):
            return _of_s3(path, self._s3.head_object(Bucket=bucket, Key=name), "ContentLength")

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        bucket, name = bucket_and_name(path)
        only = {} if version is None else {"IfMatch": version}
        with self._errors(path):
            found = self._s3.get_object(Bucket=bucket, Key=name, Range=f"bytes={start}-{stop - 1}", **only)
            return bytes(found["Body"].read())

    def put(self, path: str, data: bytes | BinaryIO, version: str | None, sha256: str) -> None:
        bucket, name = bucket_and_name(path)
        wanted = {} if version == ANY else {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        try:
            with self._errors(path):
                self._s3.put_object(Bucket=bucket, Key=name, Body=data, Metadata={SHA256: sha256}, **wanted)
        except FileNotFoundError:
            raise (FileNotFoundError if version in (None, ANY) else Changed)(path) from None

    def upload(self, path: str, file: str, sha256: str, version: str | None) -> None:
        bucket, name = bucket_and_name(path)
        if os.path.getsize(file) < _IN_PARTS:
            with open(file, "rb") as body:
                self.put(path, body, version, sha256)
            return
        with self._errors(path):  # the parts count only if all arrive; boto3 sets no condition
            self._s3.upload_file(file, bucket, name, ExtraArgs={"Metadata": {SHA256: sha256}})

    def copy(self, source: ObjectInfo, path: str, sha256: str) -> None:
        (from_bucket, from_name), (bucket, name) = bucket_and_name(source.path), bucket_and_name(path)
        extra = {"MetadataDirective": "REPLACE", "Metadata": {SHA256: sha256}, "CopySourceIfMatch": source.version}
        with self._errors(path):  # a large object is copied in parts, which count only if all are copied
            self._s3.copy({"Bucket": from_bucket, "Key": from_name}, bucket, name, ExtraArgs=extra)

    def delete(self, path: str) -> None:
        bucket, name = bucket_and_name(path)
        with self._errors(path):
            self._s3.delete_object(Bucket=bucket, Key=name)

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        bucket, name = bucket_and_name(prefix)
        with self._errors(prefix):
            for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=name):
                _ = page["IsTruncated"]  # the answer is cut if it is not there
                for entry in page.get("Contents", []):
                    yield _of_s3(f"s3://{bucket}/{entry['Key']}", entry, "Size")


def _failed(path: str, error: Any) -> Exception:
    response = getattr(error, "response", {})
    if response.get("Error", {}).get("Code") in _AGAIN:
        return StoreUnavailable(str(error))
    return failed(path, response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0), error)


def _of_s3(path: str, found: Mapping[str, Any], size: str) -> ObjectInfo:
    etag, updated = found["ETag"], found["LastModified"].timestamp()
    return ObjectInfo(path, int(found[size]), etag, etag, updated, found.get("Metadata", {}).get(SHA256))
