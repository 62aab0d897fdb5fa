"""Specs that run: `dali-run configs` lists them."""
