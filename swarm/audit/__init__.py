"""A whole mailbox: whether all of it is sound, where its bytes are, and what nobody needs."""
