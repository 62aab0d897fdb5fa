"""Readers of the shards of streaming libraries: MosaicML's MDS, litData's chunks, Grain's ArrayRecord."""
