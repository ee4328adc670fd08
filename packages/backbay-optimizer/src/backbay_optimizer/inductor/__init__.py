"""Compile with Inductor, and cache the analysis and the launchers of Backbay's Triton kernels."""
