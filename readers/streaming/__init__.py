"""Readers of the shards of streaming libraries: MosaicML's MDS and litData's chunks."""
