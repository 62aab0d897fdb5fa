"""DALI's Python API: pipelines, operators as functions and classes, iterators, external sources and control flow."""
