"""The version of this package, in one place; CHANGELOG.md and the wheel use the same."""

__version__ = "0.1.0"
