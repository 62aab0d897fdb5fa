"""The version, in one place; CHANGELOG.md and the wheel follow it."""

__version__ = "0.1.0"
