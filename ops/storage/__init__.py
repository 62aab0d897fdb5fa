"""URLs, checksums, .npy headers, inventories: shared by readers and writers; no operators."""
