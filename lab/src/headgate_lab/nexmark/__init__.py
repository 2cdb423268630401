"""Nexmark: people, auctions and bids, 24 queries, an oracle, and peers over the same files."""
