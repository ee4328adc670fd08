"""Operators of the optimizing backend; a file each, in the order that `backbay.kit.kernels` has."""
