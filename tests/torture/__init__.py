"""Proofs that take longer than a test suite may: run by hand, with figures in their last line."""
