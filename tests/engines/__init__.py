"""Tests on real engines and servers: `make test-engines`. What they need is built once, by `make engines`."""
