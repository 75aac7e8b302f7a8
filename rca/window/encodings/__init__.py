"""The window's encodings: a directory of Parquet files, JSON, and a multipart body of Arrow streams."""
