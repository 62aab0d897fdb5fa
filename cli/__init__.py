"""The command line: one file a command. It parses, calls one function of pipelines, and prints."""
