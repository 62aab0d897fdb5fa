"""Commands about the machine: what it supports, and compiling in advance."""
