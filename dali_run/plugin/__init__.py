"""Iterators that yield the batches of pipelines to frameworks: pytorch, jax, tf, paddle, numpy."""


def missing(package: str, module: str, install: str) -> ModuleNotFoundError:
    """Return the error for a framework that is not installed.

    ``module`` is the name that programs import, ``install`` the argument for pip.
    """
    return ModuleNotFoundError(
        f"this plugin needs {package}, which is not installed: pip install {install}", name=module
    )
