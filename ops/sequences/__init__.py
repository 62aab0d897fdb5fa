"""Sequences: their frames in another order, apart, and one by one for operators of single images."""
