"""For Beam's --setup_file; the metadata stands in pyproject.toml."""

from setuptools import setup

setup()
