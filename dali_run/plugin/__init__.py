"""Iterators for frameworks: pytorch, jax, tf, paddle, numpy."""


def missing(package: str, install: str) -> ModuleNotFoundError:
    """The error for a framework that is not installed; ``install``: what pip installs."""
    return ModuleNotFoundError(
        f"this plugin needs {package}, which is not installed: pip install {install}", name=package
    )
