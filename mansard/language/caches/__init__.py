"""The caches of keys and values of several texts, as a batch engine manages them."""
