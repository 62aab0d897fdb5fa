"""The code of `inspect`, `validate`, `plan`, `ops`, `doctor` and `sample-data`."""
