"""The clients of Google Cloud Storage, by google-cloud-storage, and of S3, by boto3."""

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


class GCSClient:
    """Google Cloud Storage, by google-cloud-storage."""

    def __init__(self, options: "PipelineOptions") -> None:
        from apache_beam.io.gcp import gcsio

        self._gcs = gcsio.create_storage_client(options)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        import requests
        import urllib3
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

        try:
            yield
        except GoogleAPICallError as error:
            raise failed(path, error.code or 500, error) from None
        except InvalidResponse as error:  # of uploads
            raise failed(path, error.response.status_code, error) from None
        except (TransportError, requests.RequestException, urllib3.exceptions.HTTPError, DataCorruption) as error:
            raise StoreUnavailable(str(error)) from None
        except (KeyError, AttributeError) as error:  # an empty answer is b"", not a dict
            raise StoreUnavailable(f"its answer about {path} is incomplete: {error}") from None
        except GoogleAuthError as error:
            raise refused(path, error) from None

    def _blob(self, path: str, version: str | None = None) -> Any:
        bucket, name = bucket_and_name(path)
        return self._gcs.bucket(bucket).blob(name, generation=None if version is None else int(version))

    def find(self, path: str) -> ObjectInfo:
        blob = self._blob(path)
        with self._errors(path):
            blob.reload(retry=None)
            return _of_gcs(blob)

    def get(self, path: str, start: int, stop: int, version: str | None) -> bytes:
        with self._errors(path):
            only = None if version is None else int(version)
            # `raw_download`, because the library would decompress objects that are marked as gzip.
            data: bytes = self._blob(path).download_as_bytes(
                start=start, end=stop - 1, raw_download=True, if_generation_match=only, checksum=None, retry=None
            )
        return data

    def put(self, path: str, data: bytes, version: str | None, sha256: str) -> None:
        self._upload(path, io.BytesIO(data), len(data), version, sha256)

    def _upload(self, path: str, body: BinaryIO, size: int, version: str | None, sha256: str) -> None:
        """See `put`. A large object is uploaded by a resumable upload, and exists only when it is complete."""
        generation = None if version == ANY else int(version or 0)  # no object has generation 0
        blob = self._blob(path)
        blob.metadata = {SHA256: sha256}
        with self._errors(path):
            blob.upload_from_file(body, size=size, checksum="crc32c", if_generation_match=generation, retry=None)

    def upload(self, path: str, file: str, sha256: str, version: str | None) -> None:
        with open(file, "rb") as body:
            try:
                self._upload(path, body, os.path.getsize(file), version, sha256)
            except FileNotFoundError:  # the upload's session has expired, or its address was cut
                raise StoreUnavailable("the upload's session is lost, or there is no such bucket") from None

    def copy(self, source: ObjectInfo, path: str, sha256: str) -> None:
        blob, token = self._blob(path), None
        blob.metadata = {SHA256: sha256}
        blob.content_type = "application/octet-stream"
        with self._errors(path):
            while True:  # a large object takes several requests
                token, _, _ = blob.rewrite(
                    self._blob(source.path),
                    token=token,
                    if_source_generation_match=int(source.version),
                    retry=None,
                )
                if token is None:
                    return

    def delete(self, path: str) -> None:
        with self._errors(path):
            self._blob(path).delete(retry=None)

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        bucket, name = bucket_and_name(prefix)
        with self._errors(prefix):
            for blob in self._gcs.list_blobs(bucket, prefix=name, retry=None):
                yield _of_gcs(blob)


def _of_gcs(blob: Any) -> ObjectInfo:
    path = f"gs://{blob.bucket.name}/{blob.name}"
    sha256 = (blob.metadata or {}).get(SHA256)
    return ObjectInfo(path, int(blob.size), str(blob.generation), blob.crc32c, blob.updated.timestamp(), sha256)


_IN_PARTS = 8 << 20
"""boto3 uploads a file of at least this many bytes in parts."""

_AGAIN = ("InvalidPart", "NoSuchUpload", "RequestTimeout")
"""Errors of uploads in parts whose answer was cut or lost, and of slow requests."""


class S3Client:
    """S3, by boto3."""

    def __init__(self, options: "PipelineOptions") -> None:
        from apache_beam.io.aws.clients.s3 import boto3_client

        self._s3 = boto3_client.Client(options).client

    @contextmanager
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
