"""Operators on sequences: reorder frames, extract frames, split sequences into samples, optical flow; and running
operators of single images on frames."""
