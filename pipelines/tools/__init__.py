"""Implementation of `inspect`, `validate`, `plan`, `ops`, `doctor`, `port`, `sample-data` and the index commands."""
