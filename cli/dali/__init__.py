"""Commands for users of DALI: for DALI's programs, and for its serialized pipelines."""
