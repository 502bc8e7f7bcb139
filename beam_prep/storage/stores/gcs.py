"""Google Cloud Storage, by google-cloud-storage."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from beam_prep.storage.stores.client import (
    ANY,
    SHA256,
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
