"""Compile with some guards left out, safely: filters, combined, and a mode that checks them."""
