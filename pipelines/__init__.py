"""From a spec or a Python program to a running job: specs, graphs, compiler, engine, jobs, servers and tools."""
