"""The command line, one file per command. A command parses its arguments, calls one function of pipelines, and
prints."""
