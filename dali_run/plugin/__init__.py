"""Iterators for frameworks: pytorch, jax, tf, paddle, numpy."""


def missing(package: str, module: str, install: str) -> ModuleNotFoundError:
    """The error for a framework that is not installed: ``module`` is what a program imports, ``install`` what pip
    installs."""
    return ModuleNotFoundError(
        f"this plugin needs {package}, which is not installed: pip install {install}", name=module
    )
