"""Shared by readers and writers: URLs, checksums, .npy headers, inventories. There are no operators here."""
