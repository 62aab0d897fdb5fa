"""The dynamic mode: operators as functions of tensors and batches, readers as iterators, no pipeline to define."""
