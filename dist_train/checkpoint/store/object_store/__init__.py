"""Checkpoints in an object store, by the library obstore; s3, gs and az say how each is reached.

object_storage      ObjectStorage: the layout below a URL, and its commit
bucket              the requests, each with its errors as OSError
request_errors      what a refused request says, without credentials
object_stream       read an object by ranges, several at once
credentials         whether this process has credentials for S3
"""
