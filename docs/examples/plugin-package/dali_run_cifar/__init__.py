"""The package's declarations: importing the modules that hold the classes is enough."""

from . import operator, reader, writer

__all__ = ["operator", "reader", "writer"]
